"""A policy as an ONNX graph, run by onnxruntime: does what `lambda_actor.policy.Policy` does, for arbitrary networks.

The graph runs for one observation at a time on one thread, so other observations cannot change its bits. Inputs and
outputs are recognized by name (docs/guides/policies-for-actors.md). onnxruntime is loaded when the first policy is
made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from lambda_actor import wire
from lambda_actor.errors import SchemaError
from lambda_actor.frames import apart
from lambda_actor.onnx_file import Port, Ports, read_ports
from lambda_actor.policy import FORBIDDEN, LOG_2PI, Context, make_distribution
from lambda_actor.rollout import EPISODE_BYTES_MAX
from lambda_actor.spaces import Spaces

OUTPUTS = {
    "gaussian": ("mean", "log_std"),
    "squashed_gaussian": ("mean", "log_std"),
    "categorical": ("logits",),
    "epsilon_greedy": ("q_values",),
    "actions": ("action",),
    "uniform": ("mean",),
}
"""Outputs of a graph that are read, by way to act."""
MASK = "action_mask"
_STATE_IN, _STATE_OUT = "state_in_", "state_out_"
STATE_BYTES_MAX = EPISODE_BYTES_MAX // 2
"""Maximum bytes of a recurrent graph's state, which travels with an episode that another actor continues."""
_STATE_NAME_BYTES_MAX = 200
MEMORY_BYTES_MAX = 2**30
"""Of a graph, as it is loaded and runs: a few bytes can ask for any array."""
_CERTAIN = FORBIDDEN / 2
_EVERYTHING = Context()


@dataclass(frozen=True)
class Signature:
    """How to run a graph in an environment.

    Attributes:
        inputs: Dtype and shape of each input.
        states: Shape of each part of a recurrent graph's state, by name; float32.
        sizes: Number of values of each output that is read, in order.
    """

    inputs: Mapping[str, tuple[np.dtype[Any], tuple[int, ...]]]
    states: Mapping[str, tuple[int, ...]]
    sizes: Mapping[str, int]


def signature_of(ports: Ports, act: str, epsilon: float, spaces: Spaces) -> Signature:
    """Returns how to run a graph in an environment with these spaces.

    Args:
        ports: The graph's inputs and outputs. A variable length counts as 1, as it is the batch's.
        act: One of `OUTPUTS`.
        epsilon: Probability of a uniformly random allowed action.
        spaces: The environment's spaces.

    Raises:
        SchemaError: The graph cannot act in this environment.
    """
    _check_act(act, epsilon, spaces)
    states = {
        name.removeprefix(_STATE_IN): _shape(name, port)
        for name, port in ports.inputs.items()
        if name.startswith(_STATE_IN)
    }
    for name, shape in states.items():
        given = ports.outputs.get(_STATE_OUT + name)
        if given is None or (given.shape is not None and len(given.shape) != len(shape)):
            raise SchemaError(
                f"the graph takes {_STATE_IN}{name} {list(shape)}, and does not give {_STATE_OUT}{name} "
                "of that shape"
            )
        if {given.dtype, ports.inputs[_STATE_IN + name].dtype} != {"float32"}:
            raise SchemaError(
                f"{_STATE_IN}{name} and {_STATE_OUT}{name} of the graph are not both float32"
            )
        if len(name.encode()) > _STATE_NAME_BYTES_MAX:
            raise SchemaError(
                f"{_STATE_IN}{name:.40}… of the graph has a name of over {_STATE_NAME_BYTES_MAX} bytes"
            )
    if (state_bytes := sum(4 * math.prod(shape) for shape in states.values())) > STATE_BYTES_MAX:
        raise SchemaError(
            f"the graph's state has {state_bytes:,} bytes, and travels with each open episode; allowed: "
            f"up to {STATE_BYTES_MAX:,}"
        )
    for name in ports.outputs:
        if name.startswith(_STATE_OUT) and name.removeprefix(_STATE_OUT) not in states:
            raise SchemaError(
                f"the graph gives {name}, and does not take {name.replace('out', 'in', 1)}"
            )
    wanted = _observed(spaces)
    if MASK in ports.inputs and spaces.is_discrete:
        wanted[MASK] = (("bool", "float32"), (sum(spaces.choice_counts),), False)
    found = {name: port for name, port in ports.inputs.items() if not name.startswith(_STATE_IN)}
    if found.keys() != wanted.keys():
        raise SchemaError(
            f"the graph takes {sorted(ports.inputs)}; this environment gives {sorted(wanted)}"
            + (f", and {MASK} to a graph that takes it" if spaces.is_discrete else "")
        )
    if act == "actions" and spaces.has_action_mask and MASK not in found:
        raise SchemaError(
            f"the graph chooses actions, and the environment says which are allowed: it needs an input "
            f"{MASK} [1, {sum(spaces.choice_counts)}]"
        )
    inputs = {name: _fitting(name, port, *wanted[name]) for name, port in found.items()}
    sizes = dict.fromkeys(
        OUTPUTS[act], math.prod(spaces.action_shape) if act == "actions" else spaces.output_size
    )
    for name, size in sizes.items():
        _check_output(name, ports.outputs, size)
    return Signature(inputs, states, sizes)


class GraphPolicy:
    """A graph and a way to act on its outputs, for one policy version. Has the attributes of `Policy`."""

    def __init__(self, fields: Mapping[str, np.ndarray]) -> None:
        """Checks and loads a graph.

        Args:
            fields: Fields of a GRAPH message (see `lambda_actor.wire.SCHEMAS`).

        Raises:
            SchemaError: Actors may not run it, onnxruntime cannot run it, or onnxruntime is not installed.
        """
        self.policy_version, self.act = (
            int(fields["policy_version"]),
            wire.field_text(fields["act"]),
        )
        self.epsilon = float(fields["epsilon"])
        data = fields["graph"].tobytes()
        read_ports(data)
        self._session, self._ports = _open(data)
        self._spaces: Spaces | None = None
        self._bounds: tuple[tuple[float, float], ...] = ()
        self._signature = Signature({}, {}, {})
        self.output_size, self.initial_state = 0, dict[str, np.ndarray]()

    @classmethod
    def from_bytes(cls, data: bytes) -> GraphPolicy:
        """Reads a GRAPH message.

        Raises:
            WireError: The bytes are not a valid message, or actors may not run the graph.
        """
        return cls(wire.decode(data, wire.Kind.GRAPH))

    def check(self, spaces: Spaces) -> None:
        """Checks that it can act in an environment with these spaces. Must be called before acting.

        Raises:
            SchemaError: The graph cannot act there.
        """
        if (spaces, spaces.action_bounds) == (self._spaces, self._bounds):
            return
        self._signature = found = signature_of(self._ports, self.act, self.epsilon, spaces)
        self.output_size = sum(found.sizes.values())
        self.initial_state = {
            name: np.zeros(shape, np.float32) for name, shape in found.states.items()
        }
        self._spaces, self._bounds = spaces, spaces.action_bounds
        self._low, self._high = np.array(spaces.action_bounds or [(0.0, 0.0)], np.float32).T
        self._drawn = make_distribution(
            spaces.distribution, np.zeros(spaces.action_size, np.float32)
        )
        self._names = [*found.sizes, *(_STATE_OUT + name for name in found.states)]

    def noise(self, stream: np.random.Generator, steps: int) -> np.ndarray:
        """Returns the noise for sampling ``steps`` actions, a row each, ``[T, …]``; the same numbers as `Policy`."""
        if self.act == "epsilon_greedy":
            return stream.random((steps, 2))
        if self.act == "uniform":
            return stream.random((steps, self._spaces_of.action_size))
        return self._drawn.noise(stream, steps, self._spaces_of.output_size)

    def outputs(self, observation: np.ndarray, context: Context = _EVERYTHING) -> np.ndarray:
        """Returns the graph's outputs, concatenated, float32 ``[D]``. Forbidden choices are `FORBIDDEN`.

        Args:
            observation: As for `Policy.outputs`.
            context: Its state is replaced by the next one.

        Raises:
            SchemaError: The graph fails, does not return what it declares, or chose an action that does not exist or
                is not allowed.
        """
        seen = self._seen(observation)
        mask = (
            np.ones(self._spaces_of.output_size, np.bool_)
            if context.action_mask is None
            else context.action_mask
        )
        if MASK in self._signature.inputs:
            seen[MASK] = mask
        elif self.act == "actions" and not mask.all():
            raise SchemaError(
                f"the graph chooses actions without {MASK}, and the environment forbids some"
            )
        feeds = {
            name: seen[name].astype(dtype, copy=False).reshape(shape)
            for name, (dtype, shape) in self._signature.inputs.items()
        }
        feeds |= {_STATE_IN + name: context.state[name] for name in self._signature.states}
        try:
            found = {
                name: np.asarray(array, np.float32)
                for name, array in zip(
                    self._names, self._session.run(self._names, feeds), strict=True
                )
            }
        except Exception as error:
            raise SchemaError(f"the graph fails{_allowed(error)}: {error}") from error
        if self._signature.states:
            context.state = {
                name: self._next_state(name, found[_STATE_OUT + name])
                for name in self._signature.states
            }
        for name, size in self._signature.sizes.items():
            if np.size(found[name]) != size:
                raise SchemaError(
                    f"{name} of the graph has {np.size(found[name])} numbers; the environment needs "
                    f"{size}"
                )
        outputs = np.concatenate([np.ravel(found[name]) for name in self._signature.sizes])
        if not (outputs < np.inf).all():
            # −∞ may stand for what the graph itself forbids.
            raise SchemaError(
                f"{' and '.join(self._signature.sizes)} of the graph: NaN or infinite"
            )
        if self.act in ("categorical", "epsilon_greedy"):
            # A graph may itself have set −∞.
            outputs = np.where(mask, np.maximum(outputs, FORBIDDEN), FORBIDDEN)
            if outputs.max() < _CERTAIN:
                raise SchemaError(
                    f"{' and '.join(self._signature.sizes)} of the graph: none above {_CERTAIN:g} is of "
                    "an allowed choice"
                )
            return outputs
        if self.act == "actions" and self._spaces_of.is_discrete:
            self._check_choices(outputs, mask)
        return outputs

    def outputs_together(
        self, observations: Sequence[np.ndarray], contexts: Sequence[Context] = ()
    ) -> np.ndarray:
        """Returns the same bits as `outputs` for each of several observations, float32 ``[N, D]``."""
        return np.stack(
            [
                self.outputs(*one)
                for one in zip(
                    observations, contexts or [Context() for _ in observations], strict=True
                )
            ]
        )

    def sample(self, outputs: np.ndarray, noise: np.ndarray) -> np.ndarray | int:
        """Returns an action: float32 ``[A]``, a whole number, or several, int64 ``[A]``; see `Policy.sample`."""
        spaces = self._spaces_of
        if self.act in ("gaussian", "squashed_gaussian"):
            mean, log_std = np.split(outputs, 2)
            drawn: np.ndarray = mean + np.exp(log_std) * noise
            return (
                drawn
                if self.act == "gaussian"
                else self._low + np.float32(0.5) * (np.tanh(drawn) + 1) * (self._high - self._low)
            )
        if self.act == "epsilon_greedy":
            explored, drawn = noise
            allowed = np.flatnonzero(outputs > _CERTAIN)
            return int(
                allowed[int(drawn * len(allowed))] if explored < self.epsilon else outputs.argmax()
            )
        if self.act == "uniform":
            between: np.ndarray = np.float32(noise) * (self._high - self._low) + self._low
            return between
        if self.act == "actions":
            chosen = outputs.astype(np.int64 if spaces.is_discrete else np.float32)
            return int(chosen[0]) if spaces.action_count else chosen
        return self._drawn.sample(outputs, noise)

    def sample_together(self, outputs: np.ndarray, noise: np.ndarray) -> Sequence[np.ndarray | int]:
        """Returns the action of `sample` for each of several observations."""
        return [self.sample(*one) for one in zip(outputs, noise, strict=True)]

    def log_probs(self, outputs: np.ndarray, actions: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Returns log π of sampled actions, float32 ``[T]``.

        For ``squashed_gaussian``, this is log π of the action between −1 and 1, before scaling, as in
        stable-baselines3. For ``actions`` it is 0.
        """
        if self.act == "categorical":
            return self._drawn.log_probs(outputs, actions, noise)
        outputs, found = outputs.astype(np.float64), np.zeros(len(outputs))
        if self.act in ("gaussian", "squashed_gaussian"):
            mean, log_std = np.split(outputs, 2, 1)
            found = -(0.5 * noise.astype(np.float64) ** 2 + log_std + 0.5 * LOG_2PI).sum(1)
            if self.act == "squashed_gaussian":
                drawn = mean + np.exp(log_std) * noise
                # log (1 − tanh² u), without a difference of nearly equal numbers.
                found = found - (
                    2.0 * (math.log(2.0) - drawn - np.logaddexp(0.0, -2.0 * drawn))
                ).sum(1)
        elif self.act == "uniform":
            found -= np.log(self._high - self._low).sum()
        elif self.act == "epsilon_greedy":
            allowed = (outputs > _CERTAIN).sum(1)
            found = np.log(
                self.epsilon / allowed + (1.0 - self.epsilon) * (actions == outputs.argmax(1))
            )
        return found.astype(np.float32)

    @property
    def _spaces_of(self) -> Spaces:
        assert self._spaces is not None, "a graph is checked before it acts"
        return self._spaces

    def _seen(self, observation: np.ndarray) -> dict[str, np.ndarray]:
        if self._spaces_of.is_combined:
            return dict(
                zip(("picture", "vector"), apart(observation, self._spaces_of), strict=True)
            )
        return {"observation": observation}

    def _next_state(self, name: str, state: np.ndarray) -> np.ndarray:
        if state.shape != self._signature.states[name]:
            raise SchemaError(
                f"the graph takes {_STATE_IN}{name} {list(self._signature.states[name])}, and gave "
                f"{_STATE_OUT}{name} {list(state.shape)}"
            )
        return state

    def _check_choices(self, outputs: np.ndarray, mask: np.ndarray) -> None:
        spaces, chosen = self._spaces_of, outputs.astype(np.int64)
        if (
            not np.isfinite(outputs).all()
            or not spaces.has_choices(chosen.reshape(1, *spaces.action_shape))
            or not spaces.are_allowed(chosen[None], mask[None])
        ):
            raise SchemaError(
                f"the graph chose action {outputs.tolist()}; allowed: 0 to "
                f"{' and '.join(str(one - 1) for one in spaces.choice_counts)}, as far as {MASK} allows"
            )


def _check_act(act: str, epsilon: float, spaces: Spaces) -> None:
    if act not in OUTPUTS:
        raise SchemaError(f"act = {act!r}; allowed: {' | '.join(OUTPUTS)}")
    is_fitting = {
        "gaussian": not spaces.is_discrete,
        "squashed_gaussian": not spaces.is_discrete,
        "uniform": not spaces.is_discrete,
        "categorical": spaces.is_discrete,
        "epsilon_greedy": bool(spaces.action_count),
        "actions": True,
    }[act]
    if not is_fitting:
        kind = (
            "one choice"
            if spaces.action_count
            else "several choices"
            if spaces.is_discrete
            else "continuous"
        )
        raise SchemaError(f"act = {act!r} does not fit the environment's actions, which are {kind}")
    if act in ("squashed_gaussian", "uniform") and not spaces.action_bounds:
        raise SchemaError(
            f"act = {act!r} scales actions to their bounds, and the environment's action "
            "space has none on some side"
        )
    if not 0.0 <= epsilon <= 1.0 or (epsilon and act != "epsilon_greedy"):
        raise SchemaError(
            f"epsilon = {epsilon} with act = {act!r}; allowed: 0 to 1 with 'epsilon_greedy', else 0"
        )


def _observed(spaces: Spaces) -> dict[str, tuple[tuple[str, ...], tuple[int, ...], bool]]:
    """Returns for each input its allowed dtypes, the shape of an observation, and whether that is required."""
    if spaces.is_combined:
        return {
            "picture": (("uint8", "float32"), spaces.picture_shape, True),
            "vector": (("float32",), (spaces.vector_size,), False),
        }
    if spaces.is_pixels:
        return {"observation": (("uint8", "float32"), spaces.observation_shape, True)}
    return {"observation": (("float32",), spaces.observation_shape, False)}


def _fitting(
    name: str, port: Port, dtypes: tuple[str, ...], shape: tuple[int, ...], is_kept: bool
) -> tuple[np.dtype[Any], tuple[int, ...]]:
    found = _shape(name, port)
    if port.dtype not in dtypes:
        raise SchemaError(f"{name} of the graph is {port.dtype}; allowed: {' | '.join(dtypes)}")
    if math.prod(found) != math.prod(shape) or (is_kept and found[-len(shape) :] != shape):
        raise SchemaError(
            f"{name} of the graph is {list(found)}; the environment gives {[1, *shape]}"
        )
    return np.dtype(port.dtype), found


def _shape(name: str, port: Port) -> tuple[int, ...]:
    """Returns an input's shape for a batch of one."""
    if port.shape is None:
        raise SchemaError(f"the graph does not say which shape {name} has")
    return tuple(1 if length is None else length for length in port.shape)


def _check_output(name: str, outputs: Mapping[str, Port], size: int) -> None:
    """Checks an output as far as the file describes it."""
    if name not in outputs:
        raise SchemaError(f"the graph gives {sorted(outputs)}, and not {name}")
    shape = outputs[name].shape
    if shape and None not in shape[1:] and (len(shape) > 1 or shape[0]):
        found = math.prod(length or 1 for length in shape)
        if found != size:
            raise SchemaError(
                f"{name} of the graph is {[length or 1 for length in shape]}; the environment needs "
                f"{size} numbers"
            )


def _open(data: bytes) -> tuple[Any, Ports]:
    """A session of onnxruntime, and what it says of the graph."""
    try:
        import onnxruntime
    except ImportError as error:
        raise SchemaError(
            f"the policy is an ONNX graph, and onnxruntime is not installed here: {error}"
        ) from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.use_deterministic_compute = True
    options.log_severity_level = 4
    with suppress(Exception):
        # Applies to later sessions. Older versions of onnxruntime keep the first one for all.
        onnxruntime.create_and_register_allocator(
            onnxruntime.OrtMemoryInfo(
                "Cpu",
                onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR,
                0,
                onnxruntime.OrtMemType.DEFAULT,
            ),
            onnxruntime.OrtArenaCfg({"max_mem": MEMORY_BYTES_MAX}),
        )
    options.add_session_config_entry("session.use_env_allocators", "1")
    options.add_session_config_entry(
        "optimization.constant_folding_max_output_size_in_bytes", str(wire.MESSAGE_BYTES_MAX)
    )
    # Otherwise onnxruntime would try other formats.
    options.add_session_config_entry("session.load_model_format", "ONNX")
    try:
        session = onnxruntime.InferenceSession(
            data, options, providers=["CPUExecutionProvider"], enable_fallback=0
        )
        return session, Ports(
            *(
                {one.name: _port(one) for one in found}
                for found in (session.get_inputs(), session.get_outputs())
            )
        )
    except Exception as error:
        raise SchemaError(f"onnxruntime cannot run the graph{_allowed(error)}: {error}") from error


def _allowed(error: Exception) -> str:
    return f", which may take {MEMORY_BYTES_MAX:,} bytes of memory" if "arena" in str(error) else ""


def _port(argument: Any) -> Port:
    """Converts an input or output of onnxruntime, such as ``tensor(float)`` and ``['batch', 3]``."""
    kind = argument.type.removeprefix("tensor(").removesuffix(")")
    dtype = {"float": "float32", "double": "float64"}.get(kind, kind)
    return Port(dtype, tuple(one if isinstance(one, int) else None for one in argument.shape))
