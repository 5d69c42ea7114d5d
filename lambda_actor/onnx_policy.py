"""A policy as an ONNX graph, run by onnxruntime: does what `lambda_actor.policy.Policy` does, for arbitrary networks.

The graph runs for one observation at a time on one thread, so other observations cannot change its bits. Inputs and
outputs are recognized by name (docs/guides/policies-for-actors.md). onnxruntime is loaded when the first policy is
made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lambda_actor import wire
from lambda_actor.errors import SchemaError
from lambda_actor.frames import apart
from lambda_actor.policy import FORBIDDEN, LOG_2PI, Policy, make_distribution
from lambda_actor.spaces import Spaces

OUTPUTS = {
    "gaussian": ("mean", "log_std"),
    "squashed_gaussian": ("mean", "log_std"),
    "categorical": ("logits",),
    "epsilon_greedy": ("q_values",),
    "uniform": ("mean",),
}
"""Outputs of a graph that are read, by way to act."""
MASK = "action_mask"


class GraphPolicy(Policy):
    """A graph and a way to act on its outputs, for one policy version. `check` must be called before it acts."""

    kind = wire.Kind.GRAPH

    def __init__(self, fields: Mapping[str, np.ndarray]) -> None:
        """Loads a graph.

        Args:
            fields: Fields of a GRAPH message (see `lambda_actor.wire.SCHEMAS`).

        Raises:
            SchemaError: There is no such way to act, or onnxruntime cannot run the graph, or is not installed.
        """
        self.policy_version = int(fields["policy_version"])
        self.act = wire.field_text(fields["act"])
        self.epsilon = float(fields["epsilon"])
        if self.act not in OUTPUTS:
            raise SchemaError(f"act = {self.act!r}; allowed: {' | '.join(OUTPUTS)}")
        if not 0.0 <= self.epsilon <= 1.0:
            raise SchemaError(f"epsilon = {self.epsilon}; allowed: 0 to 1")
        self._session = _open(fields["graph"].tobytes())
        self._inputs = {field.name: _dtype_and_shape(field) for field in self._session.get_inputs()}
        self._spaces: Spaces | None = None

    def check(self, spaces: Spaces) -> None:
        """Checks that it can act in an environment with these spaces, by running it for an observation of zeros.

        Raises:
            SchemaError: It cannot.
        """
        if spaces == self._spaces:
            return
        self._distribution: Any = _distribution(self.act, self.epsilon, spaces)
        self._spaces = spaces
        self.output_size = len(OUTPUTS[self.act]) * spaces.output_size
        zeros = np.zeros(spaces.observation_shape, np.uint8 if spaces.is_pixels else np.float32)
        seen = self._seen(zeros, None)
        if not self._inputs.keys() <= seen.keys():
            raise SchemaError(
                f"the graph takes {sorted(self._inputs)}; this environment gives {sorted(seen)}"
            )
        if not np.array_equal(self.outputs(zeros), self.outputs(zeros)):
            raise SchemaError(
                "the graph gives NaN, or other outputs each time, so that no fragment could be sampled again; allowed: "
                "give the distribution's parameters, and actors draw the action"
            )

    def outputs(self, observation: np.ndarray, action_mask: np.ndarray | None = None) -> np.ndarray:
        """Returns the graph's outputs, concatenated, float32 ``[D]``. Forbidden choices are `FORBIDDEN`.

        Raises:
            SchemaError: The graph fails, or returns another number of outputs than the environment needs.
        """
        seen = self._seen(observation, action_mask)
        try:
            feeds = {
                name: _batch_of_one(seen[name], *wanted) for name, wanted in self._inputs.items()
            }
            arrays = self._session.run(OUTPUTS[self.act], feeds)
            outputs = np.concatenate([np.ravel(array) for array in arrays]).astype(np.float32)
        except Exception as error:
            raise SchemaError(f"the graph fails: {error}") from error
        if len(outputs) != self.output_size:
            raise SchemaError(
                f"{' and '.join(OUTPUTS[self.act])} of the graph have {len(outputs)} numbers; the environment needs "
                f"{self.output_size}"
            )
        if MASK in seen:
            # A graph may itself have set −∞.
            outputs = np.where(seen[MASK], np.maximum(outputs, FORBIDDEN), FORBIDDEN)
        return outputs

    def outputs_together(
        self,
        observations: Sequence[np.ndarray],
        action_masks: Sequence[np.ndarray | None] = (),
    ) -> np.ndarray:
        """Returns the same bits as `outputs` for each of several observations, float32 ``[N, D]``."""
        masks = action_masks or [None] * len(observations)
        return np.stack([self.outputs(*pair) for pair in zip(observations, masks, strict=True)])

    def sample_together(self, outputs: np.ndarray, noise: np.ndarray) -> Sequence[np.ndarray | int]:
        """Returns the action of `sample` for each of several observations."""
        return [self.sample(*pair) for pair in zip(outputs, noise, strict=True)]

    def _seen(self, observation: np.ndarray, mask: np.ndarray | None) -> dict[str, np.ndarray]:
        """Returns what the graph may take; a mask if actions are choices."""
        assert self._spaces is not None, "a graph is checked before it acts"
        seen = {"observation": observation}
        if self._spaces.is_combined:
            seen = dict(zip(("picture", "vector"), apart(observation, self._spaces), strict=True))
        if self._spaces.is_discrete:
            seen[MASK] = np.ones(self._spaces.output_size, np.bool_) if mask is None else mask
        return seen


class _StateGaussian:
    """A diagonal Gaussian with its own log σ in each state. Outputs are its means and log σ."""

    def noise(self, stream: np.random.Generator, steps: int, output_size: int) -> np.ndarray:
        return stream.standard_normal((steps, output_size // 2), dtype=np.float32)

    def sample(self, outputs: np.ndarray, noise: np.ndarray) -> np.ndarray:
        mean, log_std = np.split(outputs, 2)
        drawn: np.ndarray = mean + np.exp(log_std) * noise
        return drawn

    def log_probs(self, outputs: np.ndarray, actions: np.ndarray, noise: np.ndarray) -> np.ndarray:
        log_std = np.split(outputs.astype(np.float64), 2, 1)[1]
        log_probs: np.ndarray = -(
            0.5 * noise.astype(np.float64) ** 2 + log_std + 0.5 * LOG_2PI
        ).sum(1)
        return log_probs.astype(np.float32)


class _SquashedGaussian(_StateGaussian):
    """A Gaussian followed by tanh and the action space's bounds.

    log π belongs to the action between −1 and 1, before scaling, as in stable-baselines3.
    """

    def __init__(self, low: np.ndarray, high: np.ndarray) -> None:
        self._low = low
        self._high = high

    def sample(self, outputs: np.ndarray, noise: np.ndarray) -> np.ndarray:
        drawn = super().sample(outputs, noise)
        width = self._high - self._low
        action: np.ndarray = self._low + np.float32(0.5) * (np.tanh(drawn) + 1) * width
        return action

    def log_probs(self, outputs: np.ndarray, actions: np.ndarray, noise: np.ndarray) -> np.ndarray:
        mean, log_std = np.split(outputs.astype(np.float64), 2, 1)
        drawn = mean + np.exp(log_std) * noise
        # log (1 − tanh² u), without a difference of nearly equal numbers.
        slope = 2.0 * (math.log(2.0) - drawn - np.logaddexp(0.0, -2.0 * drawn))
        log_probs: np.ndarray = super().log_probs(outputs, actions, noise) - slope.sum(1)
        return log_probs.astype(np.float32)


class _EpsilonGreedy:
    """The choice with the largest output, or with probability ε any allowed one."""

    def __init__(self, epsilon: float) -> None:
        self._epsilon = epsilon

    def noise(self, stream: np.random.Generator, steps: int, output_size: int) -> np.ndarray:
        return stream.random((steps, 2))

    def sample(self, outputs: np.ndarray, noise: np.ndarray) -> int:
        explored, drawn = noise
        allowed = np.flatnonzero(outputs > FORBIDDEN)
        is_random = explored < self._epsilon
        return int(allowed[int(drawn * len(allowed))] if is_random else outputs.argmax())

    def log_probs(self, outputs: np.ndarray, actions: np.ndarray, noise: np.ndarray) -> np.ndarray:
        allowed = (outputs > FORBIDDEN).sum(1)
        is_best = actions == outputs.argmax(1)
        log_probs: np.ndarray = np.log(self._epsilon / allowed + (1.0 - self._epsilon) * is_best)
        return log_probs.astype(np.float32)


class _Uniform:
    """Any action between the bounds, whatever the outputs are."""

    def __init__(self, low: np.ndarray, high: np.ndarray) -> None:
        self._low = low
        self._high = high

    def noise(self, stream: np.random.Generator, steps: int, output_size: int) -> np.ndarray:
        return stream.random((steps, output_size))

    def sample(self, outputs: np.ndarray, noise: np.ndarray) -> np.ndarray:
        action: np.ndarray = np.float32(noise) * (self._high - self._low) + self._low
        return action

    def log_probs(self, outputs: np.ndarray, actions: np.ndarray, noise: np.ndarray) -> np.ndarray:
        return np.full(len(outputs), -np.log(self._high - self._low).sum(), np.float32)


def _distribution(act: str, epsilon: float, spaces: Spaces) -> Any:
    is_choice = act in ("categorical", "epsilon_greedy")
    if is_choice != spaces.is_discrete or (act == "epsilon_greedy" and spaces.action_counts):
        raise SchemaError(
            f"act = {act!r} does not fit the environment's actions, which are {spaces.distribution}"
        )
    if act == "gaussian":
        return _StateGaussian()
    if act == "categorical":
        return make_distribution(spaces.distribution, np.empty(0, np.float32))
    if act == "epsilon_greedy":
        return _EpsilonGreedy(epsilon)
    if not spaces.action_bounds:
        raise SchemaError(
            f"act = {act!r} scales actions to their bounds, and the environment's action space has none on some side"
        )
    bounds = np.array(spaces.action_bounds, np.float32).T
    return (_SquashedGaussian if act == "squashed_gaussian" else _Uniform)(*bounds)


def _open(data: bytes) -> Any:
    """Returns a session of onnxruntime."""
    try:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.use_deterministic_compute = True
        options.log_severity_level = 4
        return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except ImportError as error:
        raise SchemaError(
            f"the policy is an ONNX graph, and onnxruntime is not installed here: {error}"
        ) from None
    except Exception as error:
        raise SchemaError(f"onnxruntime cannot run the graph: {error}") from error


def _dtype_and_shape(argument: Any) -> tuple[str, tuple[int, ...]]:
    """Converts an input of onnxruntime, such as ``tensor(float)`` and ``['batch', 3]``; an open length becomes 1."""
    kind = argument.type.removeprefix("tensor(").removesuffix(")")
    dtype = {"float": "float32", "double": "float64"}.get(kind, kind)
    return dtype, tuple(size if isinstance(size, int) else 1 for size in argument.shape)


def _batch_of_one(array: np.ndarray, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    # A picture is not reshaped, because the same numbers in another order are another picture.
    array = array.astype(dtype, copy=False)
    return array[None] if array.ndim == 3 else array.reshape(shape)
