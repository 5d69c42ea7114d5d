"""Converts a trainer's policies to messages for actors."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lambda_actor import wire
from lambda_actor.errors import SchemaError, WireError
from lambda_actor.policy import Policy
from lambda_actor.spaces import Spaces
from runtime.errors import RunError
from runtime.export.onnx_policy import OnnxPolicy, check_request

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
        if len(arrays) < 2 or any((weight.ndim, bias.ndim) != (2, 1) for weight, bias in arrays):
            raise ValueError(
                f"their shapes are {[(weight.shape, bias.shape) for weight, bias in arrays]}"
            )
        entering = arrays[0][0].shape[1]
        hidden = " ".join(str(len(bias)) for _, bias in arrays[:-1])
        fields = {
            "policy_version": np.array(0, np.int64),
            "network": wire.text_field(f"mlp {activation} {hidden}".strip()),
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


class Published:
    """The actors' policies, each with its number.

    Attributes:
        version: Number of the newest one; -1 before the first.
        weights: Its message.
        states: Shapes of what it remembers, by name; None if nobody has looked.
    """

    def __init__(
        self, spaces: Spaces, memory_mib: int | None = None, *, has_cache: bool = True
    ) -> None:
        """Sets the limits that each policy must fit.

        Args:
            spaces: The environment's spaces.
            memory_mib: An actor function's memory; None if actors run elsewhere.
            has_cache: Whether policies need not fit a request of AWS Lambda.
        """
        self._spaces, self._memory_mib, self._has_cache, self._digest = (
            spaces,
            memory_mib,
            has_cache,
            b"",
        )
        self.version, self.weights = -1, b""
        self.states: dict[str, tuple[int, ...]] | None = None

    def get_state(self) -> list[Any]:
        return [self.version, self._digest.hex()]

    def set_state(self, state: Any) -> None:
        """Restores a state of `get_state`, but never reuses the number of another policy.

        Warm actors know a policy by its number.

        Raises:
            ValueError, TypeError: It is not one.
        """
        version, digest = state
        version, digest = int(version), bytes.fromhex(digest)
        if version > self.version:
            self.version, self._digest, self.states = version, digest, None
        elif digest != self._digest:
            self._digest = b""

    def take(self, policy: Any) -> None:
        """Takes a policy; one that differs from the newest gets the next number.

        Args:
            policy: A policy from `nitro_rl.load_policy` or `numpy_policy`, an `OnnxPolicy`, or a decoded message.

        Raises:
            RunError: It is something else, or does not fit the environment or an actor.
        """
        given = getattr(policy, "weights", policy)
        if not isinstance(given, bytes | Mapping):
            raise RunError(
                f"policy = {type(policy).__name__} is none that actors can run; allowed: what load_policy "
                "returns of a run, what numpy_policy makes, or an OnnxPolicy"
            )
        try:
            if isinstance(given, Mapping):
                given = wire.encode(
                    wire.Kind.GRAPH if "graph" in given else wire.Kind.WEIGHTS, given
                )
            kind = wire.Kind.GRAPH if wire.kind_of(given) == wire.Kind.GRAPH else wire.Kind.WEIGHTS
            fields = dict(wire.decode(given, kind)) | {"policy_version": np.array(0, np.int64)}
            digest = hashlib.sha256(message := wire.encode(kind, fields)).digest()
            if digest == self._digest and self.states is not None:
                return
            states = self._check(kind, fields, message)
            version = self.version + (digest != self._digest)
            weights = wire.encode(kind, fields | {"policy_version": np.array(version, np.int64)})
        except WireError as error:
            raise RunError(f"the policy cannot act in this environment: {error}") from None
        self._digest, self.version, self.weights, self.states = digest, version, weights, states

    def _check(
        self, kind: wire.Kind, fields: Mapping[str, Any], message: bytes
    ) -> dict[str, tuple[int, ...]]:
        if kind == wire.Kind.GRAPH:
            graph = OnnxPolicy(
                fields["graph"].tobytes(), wire.field_text(fields["act"]), float(fields["epsilon"])
            )
            graph.check(self._spaces, memory_mib=self._memory_mib, has_cache=self._has_cache)
            return dict(graph.states)
        Policy.from_bytes(message).check(self._spaces)
        for name, array in fields.items():
            if (
                array.dtype.kind == "f"
                and name != "observation_clip"
                and not np.isfinite(array).all()
            ):
                raise SchemaError(f"{name} is not finite")
        if not self._has_cache:
            check_request(f"a policy of {len(message):,} bytes", message)
        return {}
