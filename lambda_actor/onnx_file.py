"""Checks an ONNX file for what actors may not run, without the package ``onnx``.

A user's process checks the file before anything is paid for. Each actor checks it again before onnxruntime reads it,
because files are not trusted. Field numbers are from
https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from lambda_actor.errors import SchemaError

_DTYPES = {1: "float32", 2: "uint8", 6: "int32", 7: "int64", 9: "bool", 11: "float64"}
_BRANCHING = "Loop, Scan, If and other operators that hold graphs of their own are refused: they may never end"
_RANDOM = {
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Multinomial",
    "Bernoulli",
}
_VARINT_BYTES_MAX = 10
_KEY_MAX = 2**32 - 1
"""onnxruntime ignores higher bits of a field's key, and would see another field than this file does."""
FIELDS_MAX = 500_000
"""Of all messages of a file: an array is one field, and large networks have thousands."""


@dataclass(frozen=True)
class Port:
    """An input or an output.

    Attributes:
        dtype: NumPy's name, or a number of ONNX's.
        shape: Lengths; None = any length. None instead of a tuple = any rank.
    """

    dtype: str
    shape: tuple[int | None, ...] | None


@dataclass
class Ports:
    """Inputs and outputs of a graph, by name."""

    inputs: dict[str, Port] = field(default_factory=dict)
    outputs: dict[str, Port] = field(default_factory=dict)


def read_ports(data: bytes) -> Ports:
    """Returns a graph's inputs and outputs, if it contains nothing that actors may not run.

    Args:
        data: An ONNX file.

    Raises:
        SchemaError: It is not an ONNX file, or it has external data, operators of other domains, functions, control
            flow, or random numbers of its own.
    """
    try:
        found, constants, nodes, left = Ports(), set[str](), 0, iter(range(FIELDS_MAX))
        for number, value in _fields(memoryview(data), left):
            if number == 25:
                raise SchemaError(
                    "the graph has functions of its own, which are refused; export it with them inlined"
                )
            if number != 7:
                continue
            for part, inner in _fields(_message(value), left):
                if part == 1:
                    _check_node(_message(inner), left)
                    nodes += 1
                elif part == 5:
                    constants.add(_check_tensor(_message(inner), left))
                elif part == 11:
                    found.inputs.update([_port(_message(inner), left)])
                elif part == 12:
                    found.outputs.update([_port(_message(inner), left)])
                elif part == 15:
                    raise SchemaError("the graph has sparse constants, which are refused")
    except _MalformedError as error:
        raise SchemaError(f"is no ONNX file: {error}") from None
    if not nodes:
        raise SchemaError(f"is no ONNX file: there is no operator in its {len(data):,} bytes")
    for name in constants & found.inputs.keys():
        # Older files list them as optional inputs.
        del found.inputs[name]
    return found


class _MalformedError(Exception):
    """The bytes are not a Protocol Buffers message."""


def _fields(data: memoryview, left: Iterator[int]) -> Iterator[tuple[int, int | memoryview]]:
    """Yields the fields of a message: number, and a number or bytes. ``left`` limits the fields of the whole file."""
    offset = 0
    while offset < len(data):
        key, offset = _varint(data, offset)
        if key > _KEY_MAX:
            raise _MalformedError(f"a field's key is {key}")
        if next(left, None) is None:
            raise SchemaError(f"the graph has more than {FIELDS_MAX:,} parts; allowed: up to that")
        number, kind = key >> 3, key & 7
        value: int | memoryview
        if kind == 0:
            value, offset = _varint(data, offset)
        elif kind in (1, 2, 5):
            length, offset = _varint(data, offset) if kind == 2 else ({1: 8, 5: 4}[kind], offset)
            value = data[offset : offset + length]
            offset += length
            if len(value) != length:
                raise _MalformedError(f"field {number} of {length} bytes runs past the end")
        else:
            raise _MalformedError(f"field {number} is of kind {kind}")
        yield number, value


def _varint(data: memoryview, offset: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(data[offset : offset + _VARINT_BYTES_MAX]):
        value |= (byte & 127) << (7 * place)
        if byte < 128:
            return value, offset + place + 1
    raise _MalformedError("a number does not end")


def _message(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise _MalformedError(f"{value} is in the place of a message")
    return value


def _text(value: int | memoryview) -> str:
    return bytes(_message(value)).decode(errors="replace")


def _check_node(data: memoryview, left: Iterator[int]) -> None:
    operator, domain = "", ""
    for number, value in _fields(data, left):
        if number == 4:
            operator = _text(value)
        elif number == 7:
            domain = _text(value)
        elif number == 5:
            for part, inner in _fields(_message(value), left):
                if part in (5, 10):
                    _check_tensor(_message(inner), left)
                elif part in (6, 11):
                    raise SchemaError(
                        f"the graph has an operator with a graph inside. {_BRANCHING}"
                    )
                elif part in (22, 23):
                    raise SchemaError("the graph has sparse constants, which are refused")
    if domain not in ("", "ai.onnx"):
        raise SchemaError(
            f"the graph has an operator {domain}.{operator}; allowed: only ONNX's own operators"
        )
    if operator in ("Loop", "Scan", "If"):
        raise SchemaError(f"the graph has an operator {operator}. {_BRANCHING}")
    if operator in _RANDOM:
        raise SchemaError(
            f"the graph draws random numbers ({operator}), so that no fragment could be sampled again; "
            "allowed: give the distribution's parameters, and actors draw the action"
        )


def _check_tensor(data: memoryview, left: Iterator[int]) -> str:
    """Checks that a constant is in the file. Returns its name."""
    name = ""
    for number, value in _fields(data, left):
        if number == 8:
            name = _text(value)
        elif number == 13 or (number == 14 and value):
            raise SchemaError(
                f"the graph's constant {name!r} is in another file; allowed: one file that holds all"
            )
    return name


def _port(data: memoryview, left: Iterator[int]) -> tuple[str, Port]:
    name, dtype, shape = "", "", None
    for number, value in _fields(data, left):
        if number == 1:
            name = _text(value)
        elif number == 2:
            for part, inner in _fields(_message(value), left):
                if part != 1:
                    raise SchemaError(f"{name!r} of the graph is no tensor")
                for place, what in _fields(_message(inner), left):
                    if place == 1:
                        dtype = _DTYPES.get(what, f"type {what}") if isinstance(what, int) else ""
                    elif place == 2:
                        shape = tuple(
                            _length(_message(one), left)
                            for kind, one in _fields(_message(what), left)
                            if kind == 1
                        )
    return name, Port(dtype, shape)


def _length(data: memoryview, left: Iterator[int]) -> int | None:
    for number, value in _fields(data, left):
        if number == 1 and isinstance(value, int) and value < 2**63:
            return value
    return None
