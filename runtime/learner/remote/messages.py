"""Batches, states, results and gradients of a remote learner as messages of `lambda_actor.wire`.

Decoding returns what was encoded, to the bit. Decoded arrays have memory of their own that a learner may write to.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from lambda_actor import wire
from lambda_actor.errors import CorruptedMessageError
from lambda_actor.wire import ARRAY_PREFIX, Kind
from runtime.errors import RunError
from runtime.learner.remote.store import Store, result_name, state_name
from runtime.ports.learning import Batch, DetectorSamples, State, Update, UpdateMetrics

_SAMPLES = tuple(one.name for one in dataclasses.fields(DetectorSamples))
_METRICS = tuple(
    one.name for one in dataclasses.fields(UpdateMetrics) if one.name != "explained_variance"
)


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of an update.

    Attributes:
        state: The learner's state after it.
        update: The update's report.
    """

    state: State
    update: Update


@dataclasses.dataclass(frozen=True, eq=False)
class SentGradient:
    """A gradient of a remote learner.

    Attributes:
        pulled_version: The parameter function's version at which it was computed.
        arrays: Gradients by parameter, ``policy.…`` and ``critic.…``.
        losses: Mean policy loss, value loss and entropy before any step, float32 ``[3]``.
        sample_count: Number of samples in these means.
        truncated_count: Number of samples whose ratio was cut at the cap.
    """

    pulled_version: int
    arrays: Mapping[str, np.ndarray]
    losses: np.ndarray
    sample_count: int
    truncated_count: int


def encode_batch(batch: Batch) -> bytes:
    """Returns the batch as a BATCH message.

    Raises:
        OversizedMessageError: It is too large.
    """
    return wire.encode(
        Kind.BATCH, {name: array for name, array in vars(batch).items() if array is not None}
    )


def decode_batch(data: bytes) -> Batch:
    """Returns the batch of a BATCH message.

    Raises:
        WireError: It is not such a message.
    """
    return Batch(**_own(wire.decode(data, Kind.BATCH)))


def encode_state(state: State) -> bytes:
    """Returns a learner's state, or its snapshot, as a LEARNER_STATE message.

    Raises:
        WireError: It has arrays that no message can hold.
    """
    return wire.encode(
        Kind.LEARNER_STATE,
        {"values": wire.text_field(json.dumps(state.values)), **_prefixed(state.arrays)},
    )


def decode_state(data: bytes) -> State:
    """Returns the state or snapshot of a LEARNER_STATE message.

    Raises:
        WireError: It is not such a message.
    """
    fields = _own(wire.decode(data, Kind.LEARNER_STATE))
    return State(_free(fields), _values(wire.field_text(fields["values"])))


def encode_result(state: State, update: Update) -> bytes:
    """Returns an update's result as an UPDATE_RESULT message.

    Args:
        state: The learner's state after the update.

    Raises:
        WireError: It is too large, or has arrays that no message can hold.
    """
    metrics, variance = update.metrics, update.metrics.explained_variance
    return wire.encode(
        Kind.UPDATE_RESULT,
        {
            "state": np.frombuffer(encode_state(state), np.uint8),
            "staleness": update.staleness,
            **vars(update.samples),
            **{name: np.asarray(getattr(metrics, name), np.float64) for name in _METRICS},
            "explained_variance": np.array([] if variance is None else [variance], np.float64),
        },
    )


def decode_result(data: bytes) -> Result:
    """Returns the result of an UPDATE_RESULT message.

    Raises:
        WireError: It is not such a message.
    """
    fields = _own(wire.decode(data, Kind.UPDATE_RESULT))
    variances = fields["explained_variance"].tolist()
    if len(variances) > 1:
        raise CorruptedMessageError(f"{len(variances)} explained variances of one update")
    metrics = UpdateMetrics(
        **{name: float(fields[name]) for name in _METRICS},
        explained_variance=variances[0] if variances else None,
    )
    samples = DetectorSamples(**{name: fields[name] for name in _SAMPLES})
    return Result(
        decode_state(fields["state"].tobytes()), Update(metrics, samples, fields["staleness"])
    )


def stored_state(store: Store, token: str, version: int) -> State:
    """Returns the state of a version: from the result of the update that made it, or from the loop's first state.

    Raises:
        StoreError: The store cannot be read.
        RunError: The state is missing, or has another version.
        WireError: It is damaged.
    """
    data = store.get(result_name(token, version))
    if data is not None:
        found = decode_result(data).state
    else:
        data = store.get(state_name(token, version))
        if data is None:
            raise RunError(f"the learner's state of version {version} is not in the store")
        found = decode_state(data)
    if (known := found.values.get("policy_version")) != version:
        raise RunError(f"the state is of version {known}, not {version}")
    return found


def encode_samples(samples: DetectorSamples) -> bytes:
    """Returns the samples for gradients as a SAMPLES message.

    Raises:
        OversizedMessageError: It is too large.
    """
    return wire.encode(Kind.SAMPLES, vars(samples))


def decode_samples(data: bytes) -> DetectorSamples:
    """Returns the samples of a SAMPLES message.

    Raises:
        WireError: It is not such a message.
    """
    return DetectorSamples(**_own(wire.decode(data, Kind.SAMPLES)))


def encode_gradient(gradient: SentGradient) -> bytes:
    """Returns a gradient as a GRADIENT message.

    Raises:
        WireError: It is too large, or has arrays that no message can hold.
    """
    counts = ("pulled_version", "sample_count", "truncated_count")
    return wire.encode(
        Kind.GRADIENT,
        {
            **{name: np.asarray(getattr(gradient, name), np.int64) for name in counts},
            "losses": gradient.losses,
            **_prefixed(gradient.arrays),
        },
    )


def decode_gradient(data: bytes) -> SentGradient:
    """Returns the gradient of a GRADIENT message.

    Raises:
        WireError: It is not such a message.
    """
    fields = _own(wire.decode(data, Kind.GRADIENT))
    return SentGradient(
        int(fields["pulled_version"]),
        _free(fields),
        fields["losses"],
        int(fields["sample_count"]),
        int(fields["truncated_count"]),
    )


def _own(fields: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns copies, which are aligned and writable."""
    return {name: array.copy() for name, array in fields.items()}


def _prefixed(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns a learner's arrays by their names in a message."""
    return {f"{ARRAY_PREFIX}{name}": array for name, array in arrays.items()}


def _free(fields: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Returns a message's learner arrays by their own names."""
    return {
        name.removeprefix(ARRAY_PREFIX): array
        for name, array in fields.items()
        if name.startswith(ARRAY_PREFIX)
    }


def _values(text: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except ValueError as error:
        raise CorruptedMessageError(f"a learner's values are no JSON: {error}") from None
    if not isinstance(values, dict):
        raise CorruptedMessageError(
            f"a learner's values are {type(values).__name__}, not an object"
        )
    return values
