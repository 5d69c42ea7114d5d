"""Messages of a learner function: its specification as JSON, and all else in the format of `lambda_actor.wire`.

Decoding returns what was encoded, to the bit. Decoded arrays have memory of their own that a learner may write to.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from lambda_actor import wire
from lambda_actor.spaces import Spaces
from lambda_actor.wire import ARRAY_PREFIX, Kind
from runtime.errors import RunError
from runtime.experiment.algorithm import ALGORITHMS
from runtime.experiment.kinds import is_import_path
from runtime.experiment.schema import add_kind
from runtime.learner import LearnerSpec
from runtime.learner.functions.store import Store, object_name
from runtime.learner.interfaces import (
    Batch,
    DetectorSamples,
    Update,
    UpdateMetrics,
)
from runtime.records.state import State


def spec_values(spec: LearnerSpec) -> dict[str, Any]:
    """Returns a learner's specification as JSON values, for other processes."""
    return {
        **vars(spec),
        "algorithm": spec.algorithm.model_dump(mode="json"),
        "spaces": asdict(spec.spaces),
    }


def spec_of(values: Mapping[str, Any]) -> LearnerSpec:
    """Returns a learner's specification, given the result of `spec_values`."""
    if is_import_path(kind := values["algorithm"]["kind"]):
        add_kind(kind)
    spaces = Spaces.from_json(values["spaces"])
    algorithm = ALGORITHMS.choose(values["algorithm"])
    return LearnerSpec(**{**values, "algorithm": algorithm, "spaces": spaces})


def encode_state(state: State) -> bytes:
    """Returns arrays by name and JSON values as a LEARNER_STATE message.

    Raises:
        WireError: It is too large, or has arrays that no message can hold.
    """
    return wire.encode(
        Kind.LEARNER_STATE,
        {
            "values": wire.text_field(json.dumps(state.values)),
            **{f"{ARRAY_PREFIX}{name}": array for name, array in state.arrays.items()},
        },
    )


def decode_state(data: bytes) -> State:
    """Returns the arrays and values of a LEARNER_STATE message.

    Raises:
        WireError: It is not such a message.
    """
    fields = wire.decode(data, Kind.LEARNER_STATE)
    values = json.loads(wire.field_text(fields["values"]))
    return State(_part(fields, ARRAY_PREFIX), values)


def encode_arrays(samples: Batch | DetectorSamples) -> bytes:
    """Returns a batch or samples as a message, whose arrays `decode_state` returns by the names of their fields."""
    arrays = {name: array for name, array in vars(samples).items() if array is not None}
    return encode_state(State(arrays, {}))


def encode_result(state: State, update: Update) -> bytes:
    """Returns the learner's state after an update, and the update's report, as a message; see `encode_state`."""
    arrays = {
        **{f"state.{name}": array for name, array in state.arrays.items()},
        **{f"samples.{name}": array for name, array in vars(update.samples).items()},
        "staleness": update.staleness,
    }
    return encode_state(State(arrays, {"state": state.values, "metrics": vars(update.metrics)}))


def decode_result(data: bytes) -> tuple[State, Update]:
    """Returns the state and the report of a result; see `decode_state`."""
    decoded = decode_state(data)
    update = Update(
        UpdateMetrics(**decoded.values["metrics"]),
        DetectorSamples(**_part(decoded.arrays, "samples.")),
        decoded.arrays["staleness"],
    )
    return State(_part(decoded.arrays, "state."), decoded.values["state"]), update


def stored_state(store: Store, token: str, version: int) -> State:
    """Returns the state of a version: from the result of the update that made it, or from the loop's first state.

    Raises:
        StoreError: The store cannot be read.
        RunError: The state is missing.
        WireError: It is damaged.
    """
    if (data := store.get(object_name(token, "result", version))) is not None:
        return decode_result(data)[0]
    return decode_state(stored(store, object_name(token, "state", version)))


def stored(store: Store, name: str) -> bytes:
    """Returns an object.

    Raises:
        StoreError: The store cannot be read.
        RunError: The object is missing.
    """
    data = store.get(name)
    if data is None:
        raise RunError(f"{name} is not in the store")
    return data


def _part(arrays: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    """Returns aligned, writable copies of the arrays whose names begin so, by the rest of their names."""
    return {
        name.removeprefix(prefix): array.copy()
        for name, array in arrays.items()
        if name.startswith(prefix)
    }
