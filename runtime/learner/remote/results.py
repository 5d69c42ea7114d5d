"""Checks what a learner function says of its update, before anybody goes on from it."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from lambda_actor.spaces import Spaces
from runtime.errors import NotFiniteError
from runtime.learner import LearnerSpec
from runtime.learner.remote.messages import Result
from runtime.learner.samples import flat
from runtime.ports.learning import Batch, DetectorSamples, State

CLIP_ROUNDING = 1.001
"""A gradient that is clipped to a norm may be this many times as long, by the rounding of float32."""
_FROM_ZERO = ("variance", "exp_avg_sq", "step")
"""Last parts of the names of arrays that are never negative."""
_POWERS = {"exp_avg": 1, "exp_avg_sq": 2}
"""Powers of the gradient that Adam keeps running means of."""
_STEP_MAX = 4.0
"""Learning rates that one step of Adam moves a weight at most; 0.1 / √0.001, rounded up."""
_ROUNDING = 1.0 + 1e-6
_COUNTERS = ("_count", "steps_since_target")
"""Ends of the names of values that no update increases by more than its steps."""


def check_result(result: Result, *, before: State, batch: Batch, spec: LearnerSpec) -> None:
    """Checks that a result can be that of an update.

    Args:
        before: The learner's state before the update.
        batch: What the function was to train on.
        spec: What its learner was to be made of.

    Raises:
        ValueError: It is of another version, network or batch, or has figures that no update makes.
        NotFiniteError: It is of this update, but not finite.
    """
    state, update = result.state, result.update
    _check_kinds(state.arrays, before.arrays)
    _check_values(state.values, before.values, env_steps=batch.env_steps)
    _check_samples(update.samples, batch, spec.spaces)
    staleness = sorted(update.staleness.tolist())
    if staleness != (known := sorted((before.values["policy_version"] - batch.policy_versions).tolist())):
        raise ValueError(f"its trajectories are {staleness!s:.80} versions old, not {known!s:.80}")
    for name, figure in vars(update.metrics).items():
        if figure is not None and not math.isfinite(figure):
            raise NotFiniteError(f"{name} is {figure}")
    for name, array in {**vars(update.samples), **state.arrays}.items():
        if len(wrong := array[~np.isfinite(array)]):
            raise NotFiniteError(f"{name} is {wrong[0]}")
    _check_moments(state.arrays, before.arrays, clip=spec.algorithm.chosen.max_gradient_norm)
    _check_reach(state.arrays, before.arrays, batch, spec.algorithm.chosen)


def _check_names(found: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    """Checks that a part of a state has the names that it had."""
    if missing := sorted(known.keys() - found.keys()):
        raise ValueError(f"its state lacks {missing[0]}")
    if odd := sorted(found.keys() - known.keys()):
        raise ValueError(f"its state has {odd[0]!r:.80}, which is unknown")


def _check_kinds(found: Mapping[str, np.ndarray], known: Mapping[str, np.ndarray]) -> None:
    """Checks that arrays are those of the same networks and optimiser."""
    _check_names(found, known)
    for name, array in found.items():
        if (array.dtype, array.shape) != (known[name].dtype, known[name].shape):
            raise ValueError(f"{name} is {array.dtype}{list(array.shape)}, not {known[name].dtype}"
                             f"{list(known[name].shape)}")


def _check_values(found: Mapping[str, Any], known: Mapping[str, Any], *, env_steps: int) -> None:
    """Checks the values of a state: their types, and that counters are such as this update can have made."""
    _check_names(found, known)
    count_max = env_steps + max((value for value in known.values() if type(value) is int), default=0)
    for name, value in found.items():
        if type(value) is not type(known[name]):
            raise ValueError(f"{name} is {value!r:.80}, which is not of the type of {known[name]!r:.80}")
        if isinstance(value, float) and not math.isfinite(value):
            raise NotFiniteError(f"{name} is {value}")
        is_far = name == "kl_coefficient" and not 0.5 * known[name] <= value <= 1.5 * known[name]
        if is_far or (name.endswith(_COUNTERS) and not 0 <= value <= count_max):
            raise ValueError(f"{name} is {value}, and was {known[name]}")
    expected = {"policy_version": known["policy_version"] + 1, "algorithm": known["algorithm"]}
    for name, value in expected.items():
        if found[name] != value:
            raise ValueError(f"{name} is {found[name]!r:.80}, not {value!r}")


def _check_samples(samples: DetectorSamples, batch: Batch, spaces: Spaces) -> None:
    """Checks that samples are the batch's, in any order, and have a distribution each."""
    for name in ("observations", "actions", "log_probs"):
        found, known = getattr(samples, name), flat(batch, getattr(batch, name))
        if (found.dtype, found.shape) != (known.dtype, known.shape) or _rows(found) != _rows(known):
            raise ValueError(f"{name} of its {len(found)} samples are not those of the {len(known)} that it was sent")
    size = spaces.output_size * (1 if spaces.is_discrete else 2)
    if samples.old_outputs.shape[1] != size:
        raise ValueError(f"its distributions have {samples.old_outputs.shape[1]} parameters, not {size}")


def _check_moments(found: Mapping[str, np.ndarray], known: Mapping[str, np.ndarray], *, clip: float | None) -> None:
    """Checks moments: if one is far too large, no later gradient moves the policy."""
    for name, array in found.items():
        kind = name.rpartition(".")[2]
        if kind in _FROM_ZERO and (array < 0).any():
            raise ValueError(f"{name} is {array.min()}; allowed: from 0")
        if kind in _POWERS and clip is not None:
            longest = max(np.abs(known[name]).max(initial=0.0), (CLIP_ROUNDING * clip) ** _POWERS[kind])
            if np.abs(array).max(initial=0.0) > longest:
                raise ValueError(f"{name} is {np.abs(array).max():g}, but gradients are clipped to {clip:g}")


def _check_reach(
    found: Mapping[str, np.ndarray], known: Mapping[str, np.ndarray], batch: Batch, chosen: Any
) -> None:
    """Checks that no weight is further than Adam's steps reach, and that moments are of what was seen."""
    steps = chosen.passes * (batch.env_steps / chosen.minibatch_steps + len(batch.lengths))
    seen = {"moments": float(np.abs(batch.observations).max(initial=0.0)),
            "return_moments": float(np.abs(batch.rewards).sum())}

    def squares_max(moments: str) -> float:
        return float((known[f"{moments}.variance"] + known[f"{moments}.mean"] ** 2).max(initial=0.0))

    for name, array in found.items():
        part, _, rest = name.partition(".")
        reach = math.inf
        if part in ("policy", "critic"):
            reach = float(np.abs(known[name]).max(initial=0.0)) + _STEP_MAX * chosen.learning_rate * steps
        elif part == "target":
            reach = max(float(np.abs(known[one]).max(initial=0.0)) for one in (name, f"policy.{rest}"))
        elif part in (*seen, "target_moments"):
            square = max(1.0, seen.get(part, 0.0) ** 2, squares_max(part), squares_max(part.removeprefix("target_")))
            reach = _ROUNDING * (square if rest == "variance" else math.sqrt(square))
        if np.abs(array).max(initial=0.0) > reach:
            raise ValueError(f"{name} is {np.abs(array).max():g}; allowed: up to {reach:g}")


def _rows(array: np.ndarray) -> list[int]:
    """Checksums of the samples, sorted."""
    return sorted(zlib.crc32(row.tobytes()) for row in array.reshape(len(array), -1))
