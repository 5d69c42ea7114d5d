"""What the first process tells the others: JSON, then the bytes of arrays. Nothing is unpickled."""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np

from lambda_actor.spaces import Spaces
from runtime.config.schema import AlgorithmSection, add_kind
from runtime.learner import LearnerSpec
from runtime.settings.algorithm import ALGORITHMS
from runtime.settings.kinds import is_import_path

_HEADER = struct.Struct(">Q")


@dataclass(frozen=True)
class Task:
    """Something that all processes do.

    Attributes:
        name: make, update, replay, set_state, fingerprint or end.
        values: What JSON can hold of it.
        arrays: The rest, by name.
    """

    name: str
    values: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)


END = Task("end")


def write_task(task: Task, stream: IO[bytes]) -> None:
    """Writes a task, arrays straight from their own memory: a batch may be large."""
    for part in _parts(task):
        stream.write(part)
    stream.flush()


def read_task(stream: IO[bytes]) -> Task:
    """Reads the next task; `END` if nothing more comes."""
    length = stream.read(_HEADER.size)
    if len(length) < _HEADER.size:
        return END
    header = json.loads(stream.read(*_HEADER.unpack(length)))
    arrays = {}
    for name, dtype, shape in header["arrays"]:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        data = stream.read(size)
        if len(data) < size:
            return END
        arrays[name] = np.frombuffer(bytearray(data), dtype).reshape(shape)
    return Task(header["name"], header["values"], arrays)


def spec_values(spec: LearnerSpec) -> dict[str, Any]:
    """Returns what a learner is made of as values that JSON can hold."""
    # Another process need not know all kinds that were added to this one.
    others = {ALGORITHMS.key(kind) for kind in ALGORITHMS.settings} - {spec.algorithm.chosen_key}
    return {**vars(spec), "algorithm": spec.algorithm.model_dump(mode="json", exclude=others),
            "spaces": dataclasses.asdict(spec.spaces)}


def spec_of(values: Mapping[str, Any]) -> LearnerSpec:
    """Returns what a learner is made of, from what `spec_values` returned."""
    if is_import_path(kind := values["algorithm"]["kind"]):
        add_kind(kind)
    spaces: dict[str, Any] = {name: _tuples(value) for name, value in values["spaces"].items()}
    return LearnerSpec(**{**values, "algorithm": AlgorithmSection.model_validate(values["algorithm"]),
                          "spaces": Spaces(**spaces)})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _parts(task: Task) -> Iterator[bytes | memoryview]:
    contiguous = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in task.arrays.items()}
    header = json.dumps({"name": task.name, "values": task.values, "arrays": [
        [name, array.dtype.str, list(array.shape)] for name, array in contiguous.items()]}).encode()
    yield _HEADER.pack(len(header))
    yield header
    yield from (array.reshape(-1).view(np.uint8).data for array in contiguous.values() if array.size)
