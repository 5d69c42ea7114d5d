"""Converts a trainer's policies to messages for actors."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from lambda_actor import wire
from lambda_actor.errors import SchemaError, WireError
from lambda_actor.inline import FRAME_BYTES_MAX, PAYLOAD_BYTES_MAX, text_bytes
from lambda_actor.policy import Policy, read_policy
from lambda_actor.rollout import EPISODE_BYTES_MAX
from lambda_actor.spaces import Spaces
from runtime.errors import RunError

Layer = tuple[np.ndarray, np.ndarray]


def numpy_policy(
    layers: Sequence[Layer],
    *,
    activation: str = "tanh",
    log_std: Any = None,
    choices: Sequence[int] = (),
    observation_mean: Any = None,
    observation_std: Any = None,
    observation_clip: float = 10.0,
) -> bytes:
    """Makes a policy of fully connected layers, which actors run without torch.

    Args:
        layers: Weight, float ``[out, in]``, and bias, ``[out]``, of each of at least two layers, as in torch's Linear.
        activation: Between the layers, ``tanh`` or ``relu``.
        log_std: For continuous actions, ``[A]``; the last layer is their mean. None for logits of choices.
        choices: Values of each part of an action with several discrete parts; empty if there is one.
        observation_mean, observation_std: Normalize observations, ``[O]``; None = unchanged.
        observation_clip: Bound of normalized observations.

    Raises:
        RunError: The arguments do not make a policy.
    """
    try:
        arrays = [
            (np.asarray(weight, np.float32), np.asarray(bias, np.float32))
            for weight, bias in layers
        ]
        shapes = [(weight.shape, bias.shape) for weight, bias in arrays]
        entering = arrays[0][0].shape[-1]
        sizes = [entering, *(len(bias) for _, bias in arrays)]
        if len(arrays) < 2 or shapes != [((out, into), (out,)) for into, out in pairwise(sizes)]:
            raise ValueError(f"their shapes are {shapes}")
        fields = {
            "policy_version": np.array(0, np.int64),
            "network": wire.text_field(" ".join(["mlp", activation, *map(str, sizes[1:-1])])),
            "distribution": wire.text_field(
                "gaussian" if log_std is not None else " ".join(["categorical", *map(str, choices)])
            ),
            "log_std": np.zeros(0, np.float32)
            if log_std is None
            else np.asarray(log_std, np.float32),
            "observation_mean": np.zeros(entering, np.float32)
            if observation_mean is None
            else np.asarray(observation_mean, np.float32),
            "observation_std": np.ones(entering, np.float32)
            if observation_std is None
            else np.asarray(observation_std, np.float32),
            "observation_clip": np.array(
                np.inf if observation_mean is None else observation_clip, np.float32
            ),
            **{
                f"{wire.LAYER_PREFIX}{index}.{name}": array
                for index, layer in enumerate(arrays)
                for name, array in zip(("weight", "bias"), layer, strict=True)
            },
        }
        message = wire.encode(wire.Kind.WEIGHTS, fields)
        Policy.from_bytes(message)
    except (WireError, ValueError, TypeError, IndexError) as error:
        raise RunError(
            f"these layers are no policy: {error}; allowed: two layers or more, each a weight [out, in] and "
            "a bias [out]"
        ) from None
    return message


class OnnxPolicy:
    """A network as an ONNX graph, and how actors act by its outputs. `ActorPool.sample` checks it.

    Attributes:
        weights: The message for actors.
    """

    def __init__(
        self, graph: str | os.PathLike[str] | bytes, act: str = "gaussian", epsilon: float = 0.0
    ) -> None:
        """Reads a graph.

        Args:
            graph: An ONNX file that holds all its constants, or the bytes of one.
            act: Kind of its outputs: ``gaussian`` (``mean`` and ``log_std``), ``squashed_gaussian`` (the same, followed
                by tanh and the action space's bounds), ``categorical`` (``logits``), ``epsilon_greedy`` (``q_values``),
                or ``uniform`` between the bounds (``mean``, which is not read).
            epsilon: Probability of a random action, for ``epsilon_greedy``.

        Raises:
            RunError: The file cannot be read, or is larger than a message may be.
        """
        try:
            data = graph if isinstance(graph, bytes) else Path(graph).read_bytes()
            self.weights = wire.encode(
                wire.Kind.GRAPH,
                {
                    "policy_version": np.array(0, np.int64),
                    "graph": np.frombuffer(data, np.uint8),
                    "act": wire.text_field(act),
                    "epsilon": np.array(epsilon, np.float64),
                },
            )
        except OSError as error:
            raise RunError(f"{graph!s}: cannot be read: {error.strerror}") from None
        except WireError as error:
            raise RunError(f"OnnxPolicy: {error}") from None


class Published:
    """The actors' policies, each with its number.

    Attributes:
        version: Number of the newest one; -1 before the first.
        weights: Its message.
    """

    def __init__(self, spaces: Spaces, *, has_cache: bool = True) -> None:
        """Sets the limits that each policy must fit.

        Args:
            spaces: The environment's spaces.
            has_cache: Whether policies need not fit a request of AWS Lambda.
        """
        self._spaces = spaces
        self._has_cache = has_cache
        self.version = -1
        self.weights = b""
        self._policy = b""

    def never_reuse(self, version: int) -> None:
        """Gives the next policy a number above this one, because warm actors know a policy by its number."""
        self.version = max(self.version, version)
        self._policy = b""

    def take(self, policy: Any) -> None:
        """Takes a policy; one that differs from the newest gets the next number.

        Args:
            policy: A policy from `nitro_rl.load_policy` or `numpy_policy`, or an `OnnxPolicy`.

        Raises:
            RunError: It is something else, or does not fit the environment or an actor.
        """
        given = getattr(policy, "weights", policy)
        if not isinstance(given, bytes):
            raise RunError(
                f"policy = {type(policy).__name__} is none that actors can run; allowed: what load_policy "
                "returns of a run, what numpy_policy makes, or an OnnxPolicy"
            )
        try:
            kind = wire.Kind.GRAPH if wire.kind_of(given) == wire.Kind.GRAPH else wire.Kind.WEIGHTS
            fields = dict(wire.decode(given, kind)) | {"policy_version": np.array(0, np.int64)}
            message = wire.encode(kind, fields)
            if message == self._policy:
                return
            self._check(fields, message)
            version = np.array(self.version + 1, np.int64)
            self.weights = wire.encode(kind, fields | {"policy_version": version})
        except WireError as error:
            raise RunError(f"the policy cannot act in this environment: {error}") from None
        self.version += 1
        self._policy = message

    def _check(self, fields: Mapping[str, np.ndarray], message: bytes) -> None:
        read_policy(message).check(self._spaces)
        for name, array in fields.items():
            if (
                array.dtype.kind == "f"
                and name != "observation_clip"
                and not np.isfinite(array).all()
            ):
                raise SchemaError(f"{name} is not finite")
        request = text_bytes(len(message)) + text_bytes(EPISODE_BYTES_MAX) + FRAME_BYTES_MAX
        if not self._has_cache and request > PAYLOAD_BYTES_MAX:
            raise SchemaError(
                f"a policy of {len(message):,} bytes and an open episode take a request of {request:,}, and AWS Lambda "
                f"takes {PAYLOAD_BYTES_MAX:,}; allowed: a smaller one"
            )
