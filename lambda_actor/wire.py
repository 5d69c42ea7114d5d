"""The wire format: named arrays of a fixed schema, raw little-endian, with a checksum.

    header   magic "NTRO" | version u16 | kind u16 | body length u64 | CRC-32 u32
    body     field count u16, then per field:
             name length u8 | name | dtype code u8 | rank u8 | dims u32 each | raw bytes

The checksum covers the header before it and the whole body. Decoding never executes anything: there is no pickle, no
type lookup by name, and no allocation before the length was checked.

Shape letters: ``T`` steps, ``B`` trajectories, ``N`` samples, ``O`` observation size, ``A`` action size, ``D``
parameters of a distribution, ``M`` values of all choices of a discrete action, ``K`` bootstrap points, ``E`` finished
episodes, ``F`` frames of a stack; other letters are lengths of byte strings. One letter has one value in a message.
"""

from __future__ import annotations

import enum
import math
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lambda_actor.errors import (
    CorruptedMessageError,
    ForeignMessageError,
    OversizedMessageError,
    SchemaError,
    TruncatedMessageError,
    UnsupportedVersionError,
)

MAGIC = b"NTRO"
VERSION = 2
MESSAGE_BYTES_MAX = 256 * 2**20
"""Both sides refuse larger messages. Redis's own limit is 512 MiB per value."""

_HEADER = struct.Struct("<4sHHQ")
_CHECKSUM = struct.Struct("<I")
_PREFIX_BYTES = _HEADER.size + _CHECKSUM.size
_DTYPES = ("<f4", "<f8", "|u1", "<i4", "<i8", "|b1", "<u4", "<u8", "<f2", "<i2", "<u2", "|i1")
_CODES = {np.dtype(name): code for code, name in enumerate(_DTYPES)}
_RANK_MAX = 8
_NAME_BYTES_MAX = 255


class Kind(enum.IntEnum):
    """Kinds of messages."""

    TRAJECTORY = 1
    WEIGHTS = 2
    EPISODE = 3
    FRAME_TRAJECTORY = 4
    BATCH = 5
    LEARNER_STATE = 6
    UPDATE_RESULT = 7
    SAMPLES = 8
    GRADIENT = 9
    KEPT_TRAJECTORY = 10
    GRAPH = 11


@dataclass(frozen=True)
class Field:
    """One array of a schema: its dtype and one letter per dimension."""

    dtype: str
    shape: str = ""


STATE_PREFIX = "state."
"""Prefix of the environment's own fields in an EPISODE: any supported dtype and shape."""
LAYER_PREFIX = "layer."
"""Prefix of a network's parameters in WEIGHTS, such as ``layer.0.weight``: float32 of any shape."""
ARRAY_PREFIX = "array."
"""Prefix of the learner's arrays in a LEARNER_STATE or a GRADIENT: any supported dtype and shape."""
_FREE_PREFIXES = {
    Kind.EPISODE: STATE_PREFIX,
    Kind.WEIGHTS: LAYER_PREFIX,
    Kind.LEARNER_STATE: ARRAY_PREFIX,
    Kind.GRADIENT: ARRAY_PREFIX,
}

_OPTIONAL = {"action_masks"}
"""Optional fields, for environments with action masks."""

_STEPS: dict[str, Field | tuple[Field, ...]] = {
    "invocation_id": Field("|u1", "I"),
    "round_index": Field("<i8"),
    "slot": Field("<i8"),
    "policy_version": Field("<i8"),
    "actions": (Field("<f4", "TA"), Field("<i8", "T"), Field("<i8", "TA")),
    "action_masks": Field("|b1", "TM"),
    "log_probs": Field("<f4", "T"),
    "rewards": Field("<f8", "T"),
    "terminated": Field("|b1", "T"),
    "truncated": Field("|b1", "T"),
    "bootstrap_steps": Field("<i8", "K"),
    "episode_returns": Field("<f8", "E"),
    "episode_lengths": Field("<i8", "E"),
    "episode_first_versions": Field("<i8", "E"),
    "continued_episode": Field("|u1", "C"),
    "open_episode": Field("|u1", "S"),
}
"""Fields of every trajectory. Actions are continuous, one choice, or several at once."""

_SAMPLES: dict[str, Field | tuple[Field, ...]] = {
    "observations": (Field("<f4", "NO"), Field("|u1", "NCHW")),
    "actions": (Field("<f4", "NA"), Field("<i8", "N"), Field("<i8", "NA")),
    "log_probs": Field("<f4", "N"),
    "advantages": Field("<f4", "N"),
    "value_targets": Field("<f4", "N"),
    "old_outputs": Field("<f4", "ND"),
}
"""Fields of `runtime.ports.learning.DetectorSamples`."""

SCHEMAS: dict[Kind, dict[str, Field | tuple[Field, ...]]] = {
    Kind.TRAJECTORY: {
        **_STEPS,
        "observations": Field("<f4", "TO"),
        "bootstrap_observations": Field("<f4", "KO"),
    },
    # Report of a trajectory that remains in the process that played it, which also trains on it.
    Kind.KEPT_TRAJECTORY: {
        "steps": Field("<i8"),
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
        "frames": Field("|u1", "Z"),
        "frames_shape": Field("<i8", "D"),
        "observation_frames": Field("<i4", "TF"),
        "bootstrap_frames": Field("<i4", "KF"),
    },
    # Contains the network ("mlp", "conv" or "combined") and the distribution: "gaussian", or "categorical", which has
    # no log_std and is followed by the numbers of values for several choices, as in "categorical 3 2". The
    # observations' mean and standard deviation are empty if observations are not normalized.
    Kind.WEIGHTS: {
        "policy_version": Field("<i8"),
        "network": Field("|u1", "N"),
        "distribution": Field("|u1", "P"),
        "log_std": Field("<f4", "A"),
        "observation_mean": Field("<f4", "O"),
        "observation_std": Field("<f4", "O"),
        "observation_clip": Field("<f4"),
    },
    # A policy as an ONNX file, the way to act on its outputs, and the probability of a random action for
    # epsilon-greedy. See `lambda_actor.onnx_policy`.
    Kind.GRAPH: {
        "policy_version": Field("<i8"),
        "graph": Field("|u1", "G"),
        "act": Field("|u1", "P"),
        "epsilon": Field("<f8"),
    },
    # The observation is a vector environment's last one, or the frames of a stack.
    Kind.EPISODE: {
        "observation": (Field("<f4", "O"), Field("|u1", "FCHW")),
        "return_so_far": Field("<f8"),
        "length": Field("<i8"),
        "first_version": Field("<i8"),
    },
    # The fields of `runtime.ports.learning.Batch`.
    Kind.BATCH: {
        "policy_versions": Field("<i8", "B"),
        "lengths": Field("<i8", "B"),
        "observations": (Field("<f4", "TBO"), Field("|u1", "TBCHW")),
        "actions": (Field("<f4", "TBA"), Field("<i8", "TB"), Field("<i8", "TBA")),
        "action_masks": Field("|b1", "TBM"),
        "log_probs": Field("<f4", "TB"),
        "rewards": Field("<f8", "TB"),
        "terminated": Field("|b1", "TB"),
        "bootstrap_mask": Field("|b1", "TB"),
        "bootstrap_observations": (Field("<f4", "KO"), Field("|u1", "KCHW")),
    },
    # A remote learner's state, or its snapshot, which has no optimizer. Values are JSON.
    Kind.LEARNER_STATE: {"values": Field("|u1", "V")},
    # The result of an update: the learner's next state, as a LEARNER_STATE message, and the fields of an `Update`.
    # The explained variance has one element, or none if it is undefined.
    Kind.UPDATE_RESULT: {
        "state": Field("|u1", "S"),
        "staleness": Field("<i8", "B"),
        **_SAMPLES,
        **{
            name: Field("<f8")
            for name in ("policy_loss", "value_loss", "entropy", "kl", "learning_rate")
        },
        "explained_variance": Field("<f8", "X"),
    },
    # The samples for an update's gradients.
    Kind.SAMPLES: _SAMPLES,
    # A gradient with its numbers of samples and of samples cut at the cap; mean policy loss, value loss and entropy.
    Kind.GRADIENT: {
        "pulled_version": Field("<i8"),
        "losses": Field("<f4", "L"),
        "sample_count": Field("<i8"),
        "truncated_count": Field("<i8"),
    },
}


def encode(
    kind: Kind, fields: Mapping[str, np.ndarray], *, bytes_max: int = MESSAGE_BYTES_MAX
) -> bytes:
    """Returns the message's bytes.

    Args:
        kind: The kind, which determines the schema.
        fields: Exactly the schema's arrays. Byte order and memory layout may differ, dtypes may not.
        bytes_max: Maximum size of the whole message.

    Raises:
        SchemaError: A field is missing, unknown, or of another dtype or shape.
        OversizedMessageError: The message would be larger than ``bytes_max``.
    """
    arrays = {name: _little_endian(np.asarray(value)) for name, value in fields.items()}
    _check_schema(kind, arrays)
    size = _PREFIX_BYTES + 2 + sum(_field_bytes(name, array) for name, array in arrays.items())
    if size > bytes_max:
        raise OversizedMessageError(
            f"{kind.name.lower()} of {size} bytes exceeds the limit of {bytes_max}"
        )
    body = [struct.pack("<H", len(arrays))]
    for name, array in arrays.items():
        encoded_name = name.encode()
        body.append(
            struct.pack(
                f"<B{len(encoded_name)}sBB",
                len(encoded_name),
                encoded_name,
                _CODES[array.dtype],
                array.ndim,
            )
        )
        body.append(struct.pack(f"<{array.ndim}I", *array.shape))
        body.append(array.tobytes())
    payload = b"".join(body)
    header = _HEADER.pack(MAGIC, VERSION, kind, len(payload))
    return b"".join((header, _CHECKSUM.pack(zlib.crc32(payload, zlib.crc32(header))), payload))


def decode(data: bytes, kind: Kind) -> dict[str, np.ndarray]:
    """Returns the message's arrays as read-only views of ``data``.

    Raises:
        OversizedMessageError: ``data``, or its claimed length, exceeds `MESSAGE_BYTES_MAX`.
        ForeignMessageError: The magic number or the kind is another.
        UnsupportedVersionError: Written by another version of this format.
        TruncatedMessageError: Shorter than its claimed length.
        CorruptedMessageError: The checksum fails or the structure is inconsistent.
        SchemaError: The bytes are valid, but not the schema's fields, dtypes and shapes.
    """
    arrays = _read_fields(_open_envelope(data, kind))
    _check_schema(kind, arrays)
    return arrays


def kind_of(data: bytes) -> int:
    """Returns a message's claimed kind; 0 if it is shorter than a header."""
    return int(_HEADER.unpack_from(data)[2]) if len(data) >= _HEADER.size else 0


def text_field(text: str) -> np.ndarray:
    """Returns ``text`` as the uint8 array of a byte-string field."""
    return np.frombuffer(text.encode(), dtype=np.uint8)


def field_text(array: np.ndarray) -> str:
    """Returns the text of a byte-string field.

    Raises:
        CorruptedMessageError: It is not UTF-8.
    """
    try:
        return array.tobytes().decode()
    except UnicodeDecodeError as error:
        raise CorruptedMessageError(f"a text field is not UTF-8: {error}") from None


def _open_envelope(data: bytes, kind: Kind) -> memoryview:
    if len(data) > MESSAGE_BYTES_MAX:
        raise OversizedMessageError(f"{len(data)} bytes exceed the limit of {MESSAGE_BYTES_MAX}")
    if data[:4] != MAGIC[: len(data[:4])]:
        raise ForeignMessageError(f"starts with {bytes(data[:4])!r}, not with {MAGIC!r}")
    if len(data) < _PREFIX_BYTES:
        raise TruncatedMessageError(
            f"{len(data)} bytes are less than the {_PREFIX_BYTES} of the header"
        )
    _, version, kind_code, body_bytes = _HEADER.unpack_from(data)
    if version != VERSION:
        raise UnsupportedVersionError(f"wire version {version}; this side speaks {VERSION}")
    if body_bytes > MESSAGE_BYTES_MAX:
        raise OversizedMessageError(
            f"claims {body_bytes} bytes, over the limit of {MESSAGE_BYTES_MAX}"
        )
    body = memoryview(data)[_PREFIX_BYTES:]
    if len(body) < body_bytes:
        raise TruncatedMessageError(f"{len(body)} of {body_bytes} body bytes are there")
    if len(body) > body_bytes:
        raise CorruptedMessageError(f"{len(body) - body_bytes} bytes follow the end of the message")
    (checksum,) = _CHECKSUM.unpack_from(data, _HEADER.size)
    if zlib.crc32(body, zlib.crc32(data[: _HEADER.size])) != checksum:
        raise CorruptedMessageError("the checksum does not match")
    if kind_code != kind:
        raise ForeignMessageError(f"is of kind {kind_code}, not {kind.name} ({int(kind)})")
    return body


def _read_fields(body: memoryview) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    try:
        (count,) = struct.unpack_from("<H", body)
        offset = 2
        for _ in range(count):
            (name_bytes,) = struct.unpack_from("<B", body, offset)
            name = struct.unpack_from(f"<{name_bytes}s", body, offset + 1)[0].decode()
            code, rank = struct.unpack_from("<BB", body, offset + 1 + name_bytes)
            offset += 3 + name_bytes
            if code >= len(_DTYPES) or rank > _RANK_MAX or name in arrays:
                raise CorruptedMessageError(
                    f"field {name!r}: unknown dtype, rank over {_RANK_MAX}, or duplicate"
                )
            shape = struct.unpack_from(f"<{rank}I", body, offset)
            offset += 4 * rank
            dtype = np.dtype(_DTYPES[code])
            items = math.prod(shape)
            if items * dtype.itemsize > len(body) - offset:
                raise CorruptedMessageError(f"field {name!r} of shape {shape} runs past the end")
            arrays[name] = np.frombuffer(body, dtype, items, offset).reshape(shape)
            offset += items * dtype.itemsize
    except (struct.error, ValueError) as error:
        raise CorruptedMessageError(f"the field table is broken: {error}") from None
    if offset != len(body):
        raise CorruptedMessageError(f"{len(body) - offset} bytes belong to no field")
    return arrays


def _check_schema(kind: Kind, arrays: Mapping[str, np.ndarray]) -> None:
    schema = SCHEMAS[kind]
    missing = schema.keys() - arrays.keys() - _OPTIONAL
    if missing:
        raise SchemaError(f"{kind.name} lacks {sorted(missing)}")
    lengths: dict[str, int] = {}
    for name, array in arrays.items():
        known = schema.get(name)
        if known is None:
            _check_free_field(kind, name, array)
            continue
        fields = known if isinstance(known, tuple) else (known,)
        field = next(
            (
                one
                for one in fields
                if array.dtype == np.dtype(one.dtype) and array.ndim == len(one.shape)
            ),
            None,
        )
        if field is None:
            raise SchemaError(
                f"{kind.name}.{name} is {array.dtype}{list(array.shape)}; the schema says "
                + " or ".join(f"{np.dtype(one.dtype)}[{', '.join(one.shape)}]" for one in fields)
            )
        for letter, length in zip(field.shape, array.shape, strict=True):
            if lengths.setdefault(letter, length) != length:
                raise SchemaError(
                    f"{kind.name}.{name}: {letter} is {length}, elsewhere {lengths[letter]}"
                )


def _check_free_field(kind: Kind, name: str, array: np.ndarray) -> None:
    """Checks a field of which the schema only defines the prefix.

    Raises:
        SchemaError: The kind has no such field, or its content cannot be sent.
    """
    prefix = _FREE_PREFIXES.get(kind)
    if prefix is None or not name.startswith(prefix):
        raise SchemaError(f"{kind.name} has no field {name!r}")
    if (
        array.dtype not in _CODES
        or array.ndim > _RANK_MAX
        or (kind is Kind.WEIGHTS and array.dtype != np.float32)
    ):
        raise SchemaError(f"{name}: dtype {array.dtype} or rank {array.ndim} cannot be sent")
    if len(name.encode(errors="replace")) > _NAME_BYTES_MAX or any(
        "\ud800" <= c <= "\udfff" for c in name
    ):
        raise SchemaError(f"{name!r:.80}: names are UTF-8 of {_NAME_BYTES_MAX} bytes at most")


def _little_endian(array: np.ndarray) -> np.ndarray:
    return array.astype(array.dtype.newbyteorder("<"), order="C", copy=False)


def _field_bytes(name: str, array: np.ndarray) -> int:
    return 3 + len(name.encode()) + 4 * array.ndim + array.nbytes
