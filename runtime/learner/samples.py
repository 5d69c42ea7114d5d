"""Arranges batches as training samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from lambda_actor.policy import FORBIDDEN
from runtime.learner.interfaces import (
    Batch,
    DetectorSamples,
    TrainingSamples,
)

Tensors = Mapping[str, torch.Tensor]
"""Samples by name, each ``[N, …]``: the fields of `DetectorSamples`, with observations as network inputs."""


def flat(batch: Batch, array: np.ndarray) -> np.ndarray:
    """Joins steps and trajectories of a batch, without padding: ``[T, B, …]`` → ``[N, …]``."""
    if _is_full(batch):
        return array.reshape(-1, *array.shape[2:])
    steps: np.ndarray = array[batch.is_step]
    return steps


def unflat(batch: Batch, samples: np.ndarray) -> np.ndarray:
    """Gives samples back their steps and trajectories, with zeros as padding: ``[N]`` → ``[T, B]``."""
    if _is_full(batch):
        return samples.reshape(batch.rewards.shape)
    array = np.zeros(batch.rewards.shape, samples.dtype)
    array[batch.is_step] = samples
    return array


def masked(batch: Batch, outputs: np.ndarray) -> np.ndarray:
    """Returns a policy's outputs ``[N, D]`` for a batch, with the batch's masks applied."""
    if batch.action_masks is None:
        return outputs
    return np.where(flat(batch, batch.action_masks), outputs, FORBIDDEN)


def float32(array: Any) -> Any:
    """Returns an array or a tensor as float32."""
    return array.float() if isinstance(array, torch.Tensor) else array.astype(np.float32)


def _is_full(batch: Batch) -> bool:
    """Whether the batch has no padding."""
    return batch.env_steps == math.prod(batch.rewards.shape)


def joined(parts: Sequence[TrainingSamples]) -> TrainingSamples:
    """Joins samples of several minibatches, in order."""
    arrays = {
        name: np.concatenate([vars(part.arrays)[name] for part in parts])
        for name in vars(parts[0].arrays)
    }
    return TrainingSamples(
        arrays=DetectorSamples(**arrays),
        tensors={
            name: torch.cat([part.tensors[name] for part in parts]) for name in parts[0].tensors
        },
        values=np.concatenate([part.values for part in parts]),
        policy_versions=np.concatenate([part.policy_versions for part in parts]),
    )
