"""Checks a learner function's result before anything uses it."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from lambda_actor.spaces import Spaces
from runtime.errors import NotFiniteError
from runtime.learner.remote.messages import Result
from runtime.learner.samples import flat
from runtime.ports.learning import Batch, DetectorSamples, State


def check_result(result: Result, *, before: State, batch: Batch, spaces: Spaces) -> None:
    """Checks that a result fits an update.

    Args:
        before: The learner's state before the update.
        batch: The function's training batch.
        spaces: The environment's.

    Raises:
        ValueError: It belongs to another version, network or batch.
        NotFiniteError: It belongs to this update, but is not finite.
    """
    state, update = result.state, result.update
    _check_kinds(state.arrays, before.arrays)
    _check_values(state.values, before.values)
    _check_samples(update.samples, batch, spaces)
    staleness = sorted(update.staleness.tolist())
    if staleness != (
        known := sorted((before.values["policy_version"] - batch.policy_versions).tolist())
    ):
        raise ValueError(f"its trajectories are {staleness!s:.80} versions old, not {known!s:.80}")
    for name, figure in vars(update.metrics).items():
        if figure is not None and not math.isfinite(figure):
            raise NotFiniteError(f"{name} is {figure}")
    for name, array in {**vars(update.samples), **state.arrays}.items():
        if len(wrong := array[~np.isfinite(array)]):
            raise NotFiniteError(f"{name} is {wrong[0]}")


def _check_names(found: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Checks that a part of a state has its earlier names."""
    if missing := sorted(known.keys() - found.keys()):
        raise ValueError(f"its state lacks {missing[0]}")
    if odd := sorted(found.keys() - known.keys()):
        raise ValueError(f"its state has {odd[0]!r:.80}, which is unknown")


def _check_kinds(found: Mapping[str, np.ndarray], known: Mapping[str, np.ndarray]) -> None:
    """Checks that arrays fit the same networks and optimizer."""
    _check_names(found, known)
    for name, array in found.items():
        if (array.dtype, array.shape) != (known[name].dtype, known[name].shape):
            raise ValueError(
                f"{name} is {array.dtype}{list(array.shape)}, not {known[name].dtype}"
                f"{list(known[name].shape)}"
            )


def _check_values(found: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Checks the values of a state: their types, the algorithm, and the update's version."""
    _check_names(found, known)
    for name, value in found.items():
        if type(value) is not type(known[name]):
            raise ValueError(
                f"{name} is {value!r:.80}, which is not of the type of {known[name]!r:.80}"
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise NotFiniteError(f"{name} is {value}")
    expected = {"policy_version": known["policy_version"] + 1, "algorithm": known["algorithm"]}
    for name, value in expected.items():
        if found[name] != value:
            raise ValueError(f"{name} is {found[name]!r:.80}, not {value!r}")


def _check_samples(samples: DetectorSamples, batch: Batch, spaces: Spaces) -> None:
    """Checks that samples are the batch's, in any order, each with a distribution."""
    for name in ("observations", "actions", "log_probs"):
        found, known = getattr(samples, name), flat(batch, getattr(batch, name))
        if (found.dtype, found.shape) != (known.dtype, known.shape) or _rows(found) != _rows(known):
            raise ValueError(
                f"{name} of its {len(found)} samples differ from the {len(known)} that it was sent"
            )
    size = spaces.output_size * (1 if spaces.is_discrete else 2)
    if samples.old_outputs.shape[1] != size:
        raise ValueError(
            f"its distributions have {samples.old_outputs.shape[1]} parameters, not {size}"
        )


def _rows(array: np.ndarray) -> list[int]:
    """Returns the samples' checksums, sorted."""
    return sorted(zlib.crc32(row.tobytes()) for row in array.reshape(len(array), -1))
