"""Stacks trajectory messages into one batch, and arranges batches as training samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from lambda_actor.frames import stack_frames, unpack_frames
from lambda_actor.policy import FORBIDDEN
from lambda_actor.spaces import Spaces
from runtime.learner.interfaces import Batch, DetectorSamples, TrainingSamples

Tensors = Mapping[str, torch.Tensor]
"""Samples by name, each ``[N, …]``: the fields of `DetectorSamples`, with observations as network inputs."""
_BY_TRAJECTORY = ("policy_versions", "lengths", "bootstrap_observations")


def assemble_batch(
    trajectories: Sequence[Mapping[str, Any]], spaces: Spaces, *, clip_rewards: bool = False
) -> Batch:
    """Stacks decoded TRAJECTORY messages (FRAME_TRAJECTORY for pixels) in the given order.

    The flight has checked that they match the spaces.

    Args:
        clip_rewards: Whether the batch holds only the sign of each reward.

    Raises:
        CorruptedMessageError: Frames cannot be unpacked.
    """
    lengths = np.array([len(trajectory["rewards"]) for trajectory in trajectories], np.int64)

    def stacked(name: str) -> np.ndarray:
        first = trajectories[0][name]
        array = np.zeros((lengths.max(), len(lengths), *first.shape[1:]), first.dtype)
        for column, trajectory in enumerate(trajectories):
            array[: lengths[column], column] = trajectory[name]
        return array

    rewards = stacked("rewards")
    bootstrap_mask = np.zeros(rewards.shape, np.bool_)
    observations = np.zeros(
        (*rewards.shape, *spaces.observation_shape), np.uint8 if spaces.is_pixels else np.float32
    )
    bootstraps = []
    for column, trajectory in enumerate(trajectories):
        bootstrap_mask[trajectory["bootstrap_steps"], column] = True
        seen, after = _observations(trajectory, spaces)
        # One trajectory at a time, because stacks of pixels are large.
        observations[: lengths[column], column] = seen
        bootstraps.append(after)
    return Batch(
        policy_versions=np.array(
            [int(trajectory["policy_version"]) for trajectory in trajectories], np.int64
        ),
        lengths=lengths,
        observations=observations,
        actions=stacked("actions"),
        log_probs=stacked("log_probs"),
        rewards=np.sign(rewards) if clip_rewards else rewards,
        terminated=stacked("terminated"),
        bootstrap_mask=bootstrap_mask,
        bootstrap_observations=np.concatenate(bootstraps),
        action_masks=stacked("action_masks") if "action_masks" in trajectories[0] else None,
    )


def select_trajectories(batch: Batch, columns: np.ndarray) -> Batch:
    """Returns a copy of these trajectories of ``batch``: int64 indices into ``B``, in their order."""
    ends = np.cumsum(batch.bootstrap_mask.sum(axis=0))
    # The last part is empty, for a selection without trajectories.
    bootstraps = np.split(batch.bootstrap_observations, ends)
    by_step = {
        name: array[:, columns]
        for name, array in vars(batch).items()
        if name not in _BY_TRAJECTORY and array is not None
    }
    return Batch(
        policy_versions=batch.policy_versions[columns],
        lengths=batch.lengths[columns],
        bootstrap_observations=np.concatenate([bootstraps[column] for column in [*columns, -1]]),
        **by_step,
    )


def _observations(
    trajectory: Mapping[str, np.ndarray], spaces: Spaces
) -> tuple[np.ndarray, np.ndarray]:
    """Returns a trajectory's observations ``[T, …]`` and the successors of its cut sequences ``[K, …]``."""
    if spaces.is_pixels:
        frames = unpack_frames(trajectory)
        return (
            stack_frames(frames, trajectory["observation_frames"]),
            stack_frames(frames, trajectory["bootstrap_frames"]),
        )
    return trajectory["observations"], trajectory["bootstrap_observations"]


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
