"""The wire format: named arrays of a fixed schema, raw little-endian, with a checksum.

    header      magic "NTRO" | version u16 | kind u16 | bytes of the table u32
    table       JSON: name, dtype and shape of each array
    data        the arrays' bytes, one after the other
    checksum    CRC-32 of all that comes before

Decoding never executes anything: there is no pickle.

Shape letters: ``T`` steps, ``B`` trajectories, ``N`` samples, ``O`` observation size, ``A`` action size, ``D``
parameters of a distribution, ``M`` values of all choices of a discrete action, ``K`` bootstrap points, ``E`` finished
episodes, ``F`` frames of a stack; other letters are lengths of byte strings. One letter has one value in a message.
"""

from __future__ import annotations

import enum
import json
import math
import struct
import zlib
from collections.abc import Mapping

import numpy as np

from lambda_actor.errors import (
    CorruptedMessageError,
    ForeignMessageError,
    OversizedMessageError,
    SchemaError,
)

MAGIC = b"NTRO"
VERSION = 3
MESSAGE_BYTES_MAX = 256 * 2**20
"""Redis's own limit is 512 MiB per value."""
_HEADER = struct.Struct("<4sHHI")
_CHECKSUM_BYTES = 4


class Kind(enum.IntEnum):
    """Kinds of messages."""

    TRAJECTORY = 1
    WEIGHTS = 2
    EPISODE = 3
    FRAME_TRAJECTORY = 4
    LEARNER_STATE = 6
    KEPT_TRAJECTORY = 10
    GRAPH = 11


STATE_PREFIX = "state."
"""Prefix of the environment's own fields in an EPISODE: any numbers."""
LAYER_PREFIX = "layer."
"""Prefix of a network's parameters in WEIGHTS, such as ``layer.0.weight`` of any shape."""
ARRAY_PREFIX = "array."
"""Prefix of the learner's arrays in a LEARNER_STATE: any numbers."""
_FREE_PREFIXES = {
    Kind.EPISODE: STATE_PREFIX,
    Kind.WEIGHTS: LAYER_PREFIX,
    Kind.LEARNER_STATE: ARRAY_PREFIX,
}

_OPTIONAL = {"action_masks"}
"""Optional fields, for environments with action masks."""

_STEPS: dict[str, str] = {
    "invocation_id": "|u1 I",
    "round_index": "<i8",
    "slot": "<i8",
    "policy_version": "<i8",
    "actions": "<f4 TA | <i8 T | <i8 TA",
    "action_masks": "|b1 TM",
    "log_probs": "<f4 T",
    "rewards": "<f8 T",
    "terminated": "|b1 T",
    "truncated": "|b1 T",
    "bootstrap_steps": "<i8 K",
    "episode_returns": "<f8 E",
    "episode_lengths": "<i8 E",
    "episode_first_versions": "<i8 E",
    "continued_episode": "|u1 C",
    "open_episode": "|u1 S",
}
"""Fields of every trajectory. Actions are continuous, one choice, or several at once."""

SCHEMAS: dict[Kind, dict[str, str]] = {
    Kind.TRAJECTORY: {
        **_STEPS,
        "observations": "<f4 TO",
        "bootstrap_observations": "<f4 KO",
    },
    # Report of a trajectory that remains in the process that played it, which also trains on it.
    Kind.KEPT_TRAJECTORY: {
        "steps": "<i8",
        **{
            name: _STEPS[name]
            for name in (
                "invocation_id",
                "round_index",
                "slot",
                "policy_version",
                "episode_returns",
                "episode_lengths",
                "episode_first_versions",
                "continued_episode",
                "open_episode",
            )
        },
    },
    # Pixels: each frame once, uint8 [U, C, H, W] deflated. Observations and bootstraps are indices of stacked frames.
    # A frame of a picture with a vector is the bytes of both, uint8 [U, 1, 1, Y]: see `lambda_actor.frames.combined`.
    Kind.FRAME_TRAJECTORY: {
        **_STEPS,
        "frames": "|u1 Z",
        "frames_shape": "<i8 D",
        "observation_frames": "<i4 TF",
        "bootstrap_frames": "<i4 KF",
    },
    # Contains the network ("mlp", "conv" or "combined") and the distribution: "gaussian", or "categorical", which has
    # no log_std and is followed by the numbers of values for several choices, as in "categorical 3 2". The
    # observations' mean and standard deviation are empty if observations are not normalized.
    Kind.WEIGHTS: {
        "policy_version": "<i8",
        "network": "|u1 N",
        "distribution": "|u1 P",
        "log_std": "<f4 A",
        "observation_mean": "<f4 O",
        "observation_std": "<f4 O",
        "observation_clip": "<f4",
    },
    # A policy as an ONNX file, the way to act on its outputs, and the probability of a random action for
    # epsilon-greedy. See `lambda_actor.onnx_policy`.
    Kind.GRAPH: {
        "policy_version": "<i8",
        "graph": "|u1 G",
        "act": "|u1 P",
        "epsilon": "<f8",
    },
    # The observation is a vector environment's last one, or the frames of a stack.
    Kind.EPISODE: {
        "observation": "<f4 O | |u1 FCHW",
        "return_so_far": "<f8",
        "length": "<i8",
        "first_version": "<i8",
    },
    # A remote learner's state, or its snapshot, which has no optimizer. Values are JSON.
    Kind.LEARNER_STATE: {"values": "|u1 V"},
}

_ALTERNATIVES = {
    kind: {
        name: [(np.dtype(form[:3]), form[4:]) for form in field.split(" | ")]
        for name, field in schema.items()
    }
    for kind, schema in SCHEMAS.items()
}
"""The schemas' dtypes and shape letters."""


def encode(
    kind: Kind, fields: Mapping[str, np.ndarray], *, bytes_max: int = MESSAGE_BYTES_MAX
) -> bytes:
    """Returns the message's bytes.

    Args:
        kind: The kind, which determines the schema.
        fields: Exactly the schema's arrays, in any memory layout.
        bytes_max: Maximum size of the whole message.

    Raises:
        SchemaError: A field is missing, unknown, or of another dtype or shape.
        OversizedMessageError: The message would be larger than ``bytes_max``.
    """
    _check_schema(kind, fields)
    table = json.dumps(
        [(name, array.dtype.str, array.shape) for name, array in fields.items()]
    ).encode()
    size = _HEADER.size + len(table) + _CHECKSUM_BYTES
    size += sum(array.nbytes for array in fields.values())
    if size > bytes_max:
        raise OversizedMessageError(
            f"{kind.name.lower()} of {size} bytes exceeds the limit of {bytes_max}"
        )
    header = _HEADER.pack(MAGIC, VERSION, kind, len(table))
    message = b"".join((header, table, *(array.tobytes() for array in fields.values())))
    return message + zlib.crc32(message).to_bytes(_CHECKSUM_BYTES, "little")


def decode(data: bytes, kind: Kind) -> dict[str, np.ndarray]:
    """Returns the message's arrays as read-only views of ``data``.

    Raises:
        ForeignMessageError: It is no message, or of another version of this format or another kind.
        CorruptedMessageError: It is damaged or truncated.
        SchemaError: The bytes are valid, but not the schema's fields, dtypes and shapes.
    """
    if data[:4] != MAGIC:
        raise ForeignMessageError(f"starts with {bytes(data[:4])!r}, not with {MAGIC!r}")
    view = memoryview(data)
    if zlib.crc32(view[:-_CHECKSUM_BYTES]) != int.from_bytes(view[-_CHECKSUM_BYTES:], "little"):
        raise CorruptedMessageError(
            f"the checksum of its {len(data)} bytes does not match: it is damaged or truncated"
        )
    _, version, code, table_bytes = _HEADER.unpack_from(data)
    if version != VERSION:
        raise ForeignMessageError(f"is of wire version {version}; this side speaks {VERSION}")
    if code != kind:
        raise ForeignMessageError(f"is of kind {code}, not {kind.name} ({int(kind)})")
    arrays = {}
    offset = _HEADER.size + table_bytes
    for name, dtype, shape in json.loads(data[_HEADER.size : offset]):
        array = np.frombuffer(data, dtype, math.prod(shape), offset).reshape(shape)
        arrays[name] = array
        offset += array.nbytes
    _check_schema(kind, arrays)
    return arrays


def kind_of(data: bytes) -> int:
    """Returns a message's claimed kind; 0 if it is shorter than a header."""
    return int(_HEADER.unpack_from(data)[2]) if len(data) >= _HEADER.size else 0


def text_field(text: str) -> np.ndarray:
    """Returns ``text`` as the uint8 array of a byte-string field."""
    return np.frombuffer(text.encode(), dtype=np.uint8)


def field_text(array: np.ndarray) -> str:
    """Returns the text of a byte-string field."""
    return array.tobytes().decode()


def _check_schema(kind: Kind, arrays: Mapping[str, np.ndarray]) -> None:
    schema = _ALTERNATIVES[kind]
    prefix = _FREE_PREFIXES.get(kind)
    if missing := schema.keys() - arrays.keys() - _OPTIONAL:
        raise SchemaError(f"{kind.name} lacks {sorted(missing)}")
    lengths: dict[str, int] = {}
    for name, array in arrays.items():
        if name not in schema:
            if not prefix or not name.startswith(prefix) or array.dtype.kind not in "biuf":
                raise SchemaError(f"{kind.name} has no field {name!r} of {array.dtype}")
            continue
        for dtype, letters in schema[name]:
            if array.dtype == dtype and array.ndim == len(letters):
                break
        else:
            raise SchemaError(
                f"{kind.name}.{name} is {array.dtype}{list(array.shape)}; the schema says {SCHEMAS[kind][name]}"
            )
        for letter, length in zip(letters, array.shape, strict=True):
            if lengths.setdefault(letter, length) != length:
                raise SchemaError(
                    f"{kind.name}.{name}: {letter} is {length}, elsewhere {lengths[letter]}"
                )
