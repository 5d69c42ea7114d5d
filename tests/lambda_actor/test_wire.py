"""The wire format: data come out as they went in, and anything else is refused."""

from __future__ import annotations

import ast
import struct
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import hypothesis.extra.numpy as numpy_strategies
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lambda_actor import wire
from lambda_actor.errors import (
    CorruptedMessageError,
    ForeignMessageError,
    OversizedMessageError,
    SchemaError,
    TruncatedMessageError,
    UnsupportedVersionError,
    WireError,
)
from lambda_actor.wire import (
    MESSAGE_BYTES_MAX,
    SCHEMAS,
    STATE_PREFIX,
    VERSION,
    Kind,
    decode,
    encode,
    field_text,
    text_field,
)
from tests.environments import policy_arrays

ROOT = Path(__file__).resolve().parents[2]
FUZZ = settings(derandomize=True, max_examples=200)
HEADER_BYTES = 20
DTYPE_CODES = {
    "<f4": 0,
    "<f8": 1,
    "|u1": 2,
    "<i4": 3,
    "<i8": 4,
    "|b1": 5,
    "<u4": 6,
    "<u8": 7,
    "<f2": 8,
    "<i2": 9,
    "<u2": 10,
    "|i1": 11,
}
"""As documented. Another commit may read the message, so these never change within a version."""


def seal(body: bytes, *, kind: int, version: int = VERSION, magic: bytes = b"NTRO") -> bytes:
    """Returns a message with a correct length and checksum around any body."""
    header = struct.pack("<4sHHQ", magic, version, kind, len(body))
    return header + struct.pack("<I", zlib.crc32(header + body)) + body


def field_bytes(name: bytes, code: int, shape: Iterable[int], raw: bytes) -> bytes:
    shape = tuple(shape)
    return (
        bytes([len(name)])
        + name
        + bytes([code, len(shape)])
        + struct.pack(f"<{len(shape)}I", *shape)
        + raw
    )


def forge(kind: Kind, fields: Mapping[str, np.ndarray]) -> bytes:
    """Returns a valid message of any fields, written from the format's description without the schema."""
    parts = [
        field_bytes(
            name.encode(),
            DTYPE_CODES[np.asarray(value).dtype.str],
            np.shape(value),
            np.asarray(value).tobytes(),
        )
        for name, value in fields.items()
    ]
    return seal(struct.pack("<H", len(parts)) + b"".join(parts), kind=kind)


def episode(**changes: object) -> dict[str, np.ndarray]:
    return {
        "observation": np.array([1.5, -2.0], np.float32),
        "return_so_far": np.float64(3.25),
        "length": np.int64(7),
        "first_version": np.int64(2),
        **changes,
    }


def trajectory(**changes: object) -> dict[str, np.ndarray]:
    return {
        "invocation_id": text_field("r1-s0"),
        "round_index": np.int64(1),
        "slot": np.int64(0),
        "policy_version": np.int64(4),
        "observations": np.arange(6, dtype=np.float32).reshape(3, 2),
        "actions": np.arange(3, dtype=np.float32).reshape(3, 1),
        "log_probs": np.zeros(3, np.float32),
        "rewards": np.array([1.0, -1.0, 0.5]),
        "terminated": np.array([False, True, False]),
        "truncated": np.zeros(3, np.bool_),
        "bootstrap_steps": np.array([2]),
        "bootstrap_observations": np.ones((1, 2), np.float32),
        "episode_returns": np.array([0.0]),
        "episode_lengths": np.array([2]),
        "episode_first_versions": np.array([4]),
        "continued_episode": text_field(""),
        "open_episode": np.frombuffer(encode(Kind.EPISODE, episode()), np.uint8),
        **changes,
    }


def frame_trajectory(**changes: object) -> dict[str, np.ndarray]:
    fields = trajectory(actions=np.array([0, 2, 1]))
    del fields["observations"], fields["bootstrap_observations"]
    return {
        **fields,
        "frames": np.arange(9, dtype=np.uint8),
        "frames_shape": np.array([4, 1, 2, 2]),
        "observation_frames": np.array([[0, 0], [0, 1], [2, 2]], np.int32),
        "bootstrap_frames": np.array([[2, 3]], np.int32),
        **changes,
    }


STATE = {
    "values": text_field('{"β": 0.2}'),
    "array.policy.weight": np.ones((2, 2), np.float32),
    "array.optimizer.0.step": np.float64(7.0),
}
SAMPLES = {
    "observations": np.ones((3, 2), np.float32),
    "actions": np.ones((3, 1), np.float32),
    **{name: np.zeros(3, np.float32) for name in ("log_probs", "advantages", "value_targets")},
    "old_outputs": np.ones((3, 2), np.float32),
}
MESSAGES = {
    Kind.TRAJECTORY: trajectory(),
    Kind.WEIGHTS: policy_arrays(3, 2, hidden=4),
    Kind.EPISODE: episode(**{"state.time": np.array([[1, 2], [3, 4]], np.int32)}),
    Kind.FRAME_TRAJECTORY: frame_trajectory(),
    Kind.BATCH: {
        "policy_versions": np.array([4]),
        "lengths": np.array([3]),
        "observations": np.ones((3, 1, 2), np.float32),
        "actions": np.zeros((3, 1), np.int64),
        "log_probs": np.zeros((3, 1), np.float32),
        "action_masks": np.ones((3, 1, 4), np.bool_),
        "rewards": np.zeros((3, 1)),
        "terminated": np.zeros((3, 1), np.bool_),
        "bootstrap_mask": np.zeros((3, 1), np.bool_),
        "bootstrap_observations": np.ones((1, 2), np.float32),
    },
    Kind.LEARNER_STATE: STATE,
    Kind.UPDATE_RESULT: {
        "state": np.frombuffer(encode(Kind.LEARNER_STATE, STATE), np.uint8),
        "staleness": np.array([0]),
        **SAMPLES,
        "explained_variance": np.array([0.5]),
        **{
            name: np.float64(1.5)
            for name in ("policy_loss", "value_loss", "entropy", "kl", "learning_rate")
        },
    },
    Kind.SAMPLES: SAMPLES,
    Kind.GRADIENT: {
        "pulled_version": np.int64(7),
        "losses": np.ones(3, np.float32),
        "sample_count": np.int64(3),
        "truncated_count": np.int64(1),
        "array.policy.log_std": np.ones(1, np.float32),
    },
    Kind.GRAPH: {
        "policy_version": np.int64(2),
        "graph": np.arange(5, dtype=np.uint8),
        "act": np.frombuffer(b"actions", np.uint8),
        "epsilon": np.float64(0.1),
    },
}
MESSAGES[Kind.KEPT_TRAJECTORY] = {
    name: MESSAGES[Kind.TRAJECTORY].get(name, np.int64(2))
    for name in wire.SCHEMAS[Kind.KEPT_TRAJECTORY]
}
ALL_KINDS = pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.name)


def assert_same(decoded: Mapping[str, np.ndarray], fields: Mapping[str, np.ndarray]) -> None:
    """Compares names, dtypes, shapes and bits, so NaN equals itself and −0.0 differs from 0.0."""
    assert decoded.keys() == fields.keys()
    for name, value in fields.items():
        value = np.asarray(value)
        assert (decoded[name].dtype, decoded[name].shape) == (value.dtype, value.shape), name
        assert decoded[name].tobytes() == value.tobytes(), name


# Round trips


@ALL_KINDS
def test_round_trip(kind: Kind) -> None:
    assert_same(decode(encode(kind, MESSAGES[kind]), kind), MESSAGES[kind])


@ALL_KINDS
def test_bytes_are_those_of_the_documented_format(kind: Kind) -> None:
    assert encode(kind, MESSAGES[kind]) == forge(kind, MESSAGES[kind])


def test_bytes_of_a_message_written_out_by_hand() -> None:
    body = (
        b"\x04\x00"
        b"\x0bobservation\x00\x01"
        b"\x02\x00\x00\x00"
        b"\x00\x00\xc0\x3f"
        b"\x00\x00\x00\xc0"
        b"\x0dreturn_so_far\x01\x00"
        b"\x00\x00\x00\x00\x00\x00\x0a\x40"
        b"\x06length\x04\x00"
        b"\x07\x00\x00\x00\x00\x00\x00\x00"
        b"\x0dfirst_version\x04\x00"
        b"\x02\x00\x00\x00\x00\x00\x00\x00"
    )
    header = b"NTRO\x02\x00\x03\x00" + bytes([len(body)]) + b"\x00" * 7
    assert (
        encode(Kind.EPISODE, episode())
        == header + zlib.crc32(header + body).to_bytes(4, "little") + body
    )


def test_decoded_arrays_are_read_only() -> None:
    decoded = decode(encode(Kind.EPISODE, episode()), Kind.EPISODE)
    assert not any(array.flags.writeable for array in decoded.values())


def test_layout_in_memory_does_not_matter() -> None:
    observations = np.arange(12, dtype=np.float32).reshape(2, 6)[:, ::2].T
    fields = trajectory(observations=observations)
    assert_same(decode(encode(Kind.TRAJECTORY, fields), Kind.TRAJECTORY), fields)


def test_byte_order_in_memory_does_not_matter() -> None:
    fields = episode(**{"state.time": np.arange(3, dtype="<i4")})
    swapped = {
        name: np.asarray(value).astype(np.asarray(value).dtype.newbyteorder(">"))
        for name, value in fields.items()
    }
    assert_same(decode(encode(Kind.EPISODE, swapped), Kind.EPISODE), fields)


@given(st.text())
@FUZZ
def test_text_fields_hold_any_text(text: str) -> None:
    assert field_text(text_field(text)) == text


def test_text_field_that_is_no_text() -> None:
    with pytest.raises(CorruptedMessageError, match="UTF-8"):
        field_text(np.array([0xFF], np.uint8))


STATE_ARRAYS = st.sampled_from(sorted(DTYPE_CODES)).flatmap(
    lambda dtype: numpy_strategies.arrays(
        np.dtype(dtype),
        numpy_strategies.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
    )
)
STATE_NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
EPISODES = st.builds(
    lambda states, observation, total, length: {
        "observation": observation,
        "return_so_far": np.float64(total),
        "length": np.int64(length),
        "first_version": np.int64(0),
        **{STATE_PREFIX + name: array for name, array in states.items()},
    },
    st.dictionaries(STATE_NAMES, STATE_ARRAYS, max_size=4),
    numpy_strategies.arrays(np.float32, st.integers(0, 5)),
    st.floats(),
    st.integers(-(2**63), 2**63 - 1),
)


@given(EPISODES)
@FUZZ
def test_any_episode_state_survives(fields: dict[str, np.ndarray]) -> None:
    assert_same(decode(encode(Kind.EPISODE, fields), Kind.EPISODE), fields)


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 2), (1,) * 8], ids=str)
def test_every_supported_dtype_and_rank(shape: tuple[int, ...]) -> None:
    numbers = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    fields = episode(**{f"state.{dtype}": numbers.astype(dtype) for dtype in DTYPE_CODES})
    assert_same(decode(encode(Kind.EPISODE, fields), Kind.EPISODE), fields)


def test_not_a_number_keeps_its_bits() -> None:
    bits = np.array([0x7FC00001, 0xFFC00000, 0x7F800000, 0x80000000], np.uint32)
    fields = episode(**{"state.odd": bits.view(np.float32)})
    decoded = decode(encode(Kind.EPISODE, fields), Kind.EPISODE)
    assert decoded["state.odd"].view(np.uint32).tolist() == bits.tolist()


# Every named error


@ALL_KINDS
def test_every_prefix_is_truncated(kind: Kind) -> None:
    message = encode(kind, MESSAGES[kind])
    for length in range(len(message)):
        with pytest.raises(TruncatedMessageError):
            decode(message[:length], kind)


@ALL_KINDS
def test_every_flipped_bit_is_named(kind: Kind) -> None:
    message = encode(kind, MESSAGES[kind])
    for position in range(len(message)):
        for bit in range(8):
            flipped = bytearray(message)
            flipped[position] ^= 1 << bit
            with pytest.raises(WireError) as caught:
                decode(bytes(flipped), kind)
            assert isinstance(caught.value, _errors_of_a_change_at(position)), (position, bit)


def _errors_of_a_change_at(position: int) -> tuple[type[WireError], ...]:
    if position < 4:
        return (ForeignMessageError,)
    if position < 6:
        return (UnsupportedVersionError,)
    if 8 <= position < 16:
        return (TruncatedMessageError, CorruptedMessageError, OversizedMessageError)
    return (CorruptedMessageError,)


def test_every_other_byte_anywhere_is_refused() -> None:
    message = encode(Kind.EPISODE, episode())
    for position, original in enumerate(message):
        for value in range(256):
            if value != original:
                changed = message[:position] + bytes([value]) + message[position + 1 :]
                with pytest.raises(WireError):
                    decode(changed, Kind.EPISODE)


@pytest.mark.parametrize(
    "foreign", [b"PK\x03\x04", b"\x80\x04\x95pickle", b"{}", b"x", b"NTRX" + b"\0" * 40]
)
def test_foreign_bytes(foreign: bytes) -> None:
    with pytest.raises(ForeignMessageError):
        decode(foreign, Kind.EPISODE)


def test_foreign_magic_with_a_right_checksum() -> None:
    body = encode(Kind.EPISODE, episode())[HEADER_BYTES:]
    with pytest.raises(ForeignMessageError, match="NTRO"):
        decode(seal(body, kind=Kind.EPISODE, magic=b"NTRA"), Kind.EPISODE)


@ALL_KINDS
def test_another_kind_than_asked_for(kind: Kind) -> None:
    for other in set(Kind) - {kind}:
        with pytest.raises(ForeignMessageError, match=other.name):
            decode(encode(kind, MESSAGES[kind]), other)


@pytest.mark.parametrize("version", [0, 1, 3, 256, 65535])
def test_other_versions_are_refused_although_their_checksum_is_right(version: int) -> None:
    body = encode(Kind.EPISODE, episode())[HEADER_BYTES:]
    with pytest.raises(UnsupportedVersionError, match=f"version {version};"):
        decode(seal(body, kind=Kind.EPISODE, version=version), Kind.EPISODE)


@ALL_KINDS
def test_limit_of_size_holds_on_both_sides(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    message = encode(kind, MESSAGES[kind])
    assert encode(kind, MESSAGES[kind], bytes_max=len(message)) == message
    monkeypatch.setattr(wire, "MESSAGE_BYTES_MAX", len(message))
    assert_same(decode(message, kind), MESSAGES[kind])
    with pytest.raises(OversizedMessageError, match=f"{len(message)} bytes"):
        encode(kind, MESSAGES[kind], bytes_max=len(message) - 1)
    monkeypatch.setattr(wire, "MESSAGE_BYTES_MAX", len(message) - 1)
    with pytest.raises(OversizedMessageError, match=f"{len(message)} bytes"):
        decode(message, kind)


@pytest.mark.parametrize("claim", [MESSAGE_BYTES_MAX + 1, 2**63, 2**64 - 1])
def test_a_claimed_length_over_the_limit_is_refused_before_anything_is_read(claim: int) -> None:
    header = struct.pack("<4sHHQI", b"NTRO", VERSION, Kind.EPISODE, claim, 0)
    with pytest.raises(OversizedMessageError, match=str(claim)):
        decode(header, Kind.EPISODE)


@pytest.mark.parametrize("tail", [b"\0", b"x" * 100])
def test_trailing_bytes(tail: bytes) -> None:
    with pytest.raises(CorruptedMessageError, match=f"{len(tail)} bytes follow"):
        decode(encode(Kind.EPISODE, episode()) + tail, Kind.EPISODE)


def test_bytes_after_the_last_field() -> None:
    body = encode(Kind.EPISODE, episode())[HEADER_BYTES:]
    with pytest.raises(CorruptedMessageError, match="3 bytes belong to no field"):
        decode(seal(body + b"abc", kind=Kind.EPISODE), Kind.EPISODE)


def one_field(
    *, name: bytes = b"state.x", code: int = 0, shape: tuple[int, ...] = (), raw: bytes = b""
) -> bytes:
    return b"\x01\x00" + field_bytes(name, code, shape, raw)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\x01", id="half a count"),
        pytest.param(b"\x01\x00", id="no field"),
        pytest.param(one_field(raw=b"\0" * 3), id="three of four bytes"),
        pytest.param(one_field(code=len(DTYPE_CODES), raw=b"\0" * 4), id="unknown dtype"),
        pytest.param(one_field(code=255, raw=b"\0" * 4), id="dtype 255"),
        pytest.param(one_field(shape=(1,) * 9, raw=b"\0" * 4), id="rank 9"),
        pytest.param(one_field(shape=(2,), raw=b"\0" * 4), id="one of two items"),
        pytest.param(
            one_field(shape=(2**32 - 1,) * 8, raw=b"\0" * 4), id="more items than there are"
        ),
        pytest.param(
            one_field(shape=(0, 2**32 - 1, 2**32 - 1, 2**32 - 1)),
            id="empty, of a shape beyond numpy",
        ),
        pytest.param(
            one_field(shape=(2**32 - 1,) * 7 + (0,)), id="empty, of another shape beyond numpy"
        ),
        pytest.param(one_field(name=b"\xff\xfe", raw=b"\0" * 4), id="name not UTF-8"),
        pytest.param(b"\x02\x00" + 2 * field_bytes(b"state.x", 2, (1,), b"a"), id="a field twice"),
    ],
)
def test_field_tables_that_contradict_themselves(body: bytes) -> None:
    with pytest.raises(CorruptedMessageError):
        decode(seal(body, kind=Kind.EPISODE), Kind.EPISODE)


def assert_schema_error(kind: Kind, fields: Mapping[str, np.ndarray], *named: str) -> None:
    """Asserts that writing and reading the fields both fail, and that the error names these words."""
    for refused in (lambda: encode(kind, fields), lambda: decode(forge(kind, fields), kind)):
        with pytest.raises(SchemaError) as caught:
            refused()
        assert all(name in str(caught.value) for name in named), caught.value


@ALL_KINDS
def test_each_field_is_required(kind: Kind) -> None:
    for name in SCHEMAS[kind].keys() - {"action_masks"}:
        fields = {key: value for key, value in MESSAGES[kind].items() if key != name}
        assert_schema_error(kind, fields, kind.name, name)


@ALL_KINDS
def test_unknown_fields(kind: Kind) -> None:
    for name in ("surprise", "", "State.x"):
        assert_schema_error(kind, {**MESSAGES[kind], name: np.int64(1)}, kind.name, repr(name))
    # Only episodes have state, and only weights have layers.
    if kind != Kind.EPISODE:
        assert_schema_error(kind, {**MESSAGES[kind], "state.x": np.int64(1)}, "state.x")
    if kind != Kind.WEIGHTS:
        assert_schema_error(
            kind, {**MESSAGES[kind], "layer.9.weight": np.zeros(2, np.float32)}, "layer.9.weight"
        )


@pytest.mark.parametrize("dtype", ["<f8", "<f2", "<i4", "|u1"])
def test_layers_are_float32(dtype: str) -> None:
    assert_schema_error(
        Kind.WEIGHTS,
        {**MESSAGES[Kind.WEIGHTS], "layer.9.weight": np.zeros(2, dtype)},
        "layer.9.weight",
    )


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (Kind.TRAJECTORY, "actions", np.zeros((3, 2), np.float32)),
        (Kind.TRAJECTORY, "actions", np.array([0, 5, 1])),
        (Kind.TRAJECTORY, "actions", np.zeros((3, 2), np.int64)),
        (Kind.FRAME_TRAJECTORY, "actions", np.zeros((3, 2), np.float32)),
        (Kind.EPISODE, "observation", np.zeros((3, 1, 4, 5), np.uint8)),
        (Kind.WEIGHTS, "observation_mean", np.zeros(0, np.float32)),
    ],
    ids=lambda value: str(getattr(value, "shape", value)),
)
def test_either_form_is_carried(kind: Kind, name: str, value: np.ndarray) -> None:
    fields = {**MESSAGES[kind], name: value}
    if kind is Kind.WEIGHTS:
        fields["observation_std"] = value
    assert_same(decode(encode(kind, fields), kind), fields)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (Kind.TRAJECTORY, "actions", np.zeros((3, 1, 1), np.int64)),
        (Kind.TRAJECTORY, "actions", np.zeros(3, np.float32)),
        (Kind.EPISODE, "observation", np.zeros((3, 1, 4, 5), np.float32)),
        (Kind.EPISODE, "observation", np.zeros(3, np.uint8)),
    ],
)
def test_no_third_form_is(kind: Kind, name: str, value: np.ndarray) -> None:
    assert_schema_error(kind, {**MESSAGES[kind], name: value}, f"{kind.name}.{name}", " or ")


@ALL_KINDS
def test_each_dtype_and_rank_is_checked(kind: Kind) -> None:
    for name in SCHEMAS[kind].keys() & MESSAGES[kind].keys():
        value = np.asarray(MESSAGES[kind][name])
        other_dtype = np.float64 if value.dtype != np.float64 else np.float32
        assert_schema_error(
            kind, {**MESSAGES[kind], name: value.astype(other_dtype)}, name, str(value.dtype)
        )
        assert_schema_error(kind, {**MESSAGES[kind], name: value[None, None]}, name)


@pytest.mark.parametrize(
    ("kind", "name", "value", "letter"),
    [
        (Kind.TRAJECTORY, "rewards", np.zeros(4), "T"),
        (Kind.TRAJECTORY, "terminated", np.zeros(2, np.bool_), "T"),
        (Kind.TRAJECTORY, "bootstrap_steps", np.zeros(0, np.int64), "K"),
        (Kind.TRAJECTORY, "bootstrap_observations", np.zeros((1, 3), np.float32), "O"),
        (Kind.TRAJECTORY, "episode_lengths", np.zeros(2, np.int64), "E"),
        (Kind.TRAJECTORY, "actions", np.zeros(4, np.int64), "T"),
        (Kind.FRAME_TRAJECTORY, "observation_frames", np.zeros((4, 2), np.int32), "T"),
        (Kind.FRAME_TRAJECTORY, "bootstrap_frames", np.zeros((1, 3), np.int32), "F"),
        (Kind.FRAME_TRAJECTORY, "bootstrap_frames", np.zeros((2, 2), np.int32), "K"),
        (Kind.WEIGHTS, "observation_std", np.ones(1, np.float32), "O"),
    ],
)
def test_one_letter_has_one_length(kind: Kind, name: str, value: np.ndarray, letter: str) -> None:
    assert_schema_error(kind, {**MESSAGES[kind], name: value}, f": {letter} is ")


@pytest.mark.parametrize(
    "value",
    [
        np.array(["text"]),
        np.array([object()], dtype=object),
        np.array([1j]),
        np.zeros(2, np.longdouble),
        np.zeros((1,) * 9),
        np.array(["2026-01-01"], "datetime64[D]"),
        np.zeros(2, [("a", "<f4")]),
    ],
    ids=lambda value: f"{value.dtype}, rank {value.ndim}",
)
def test_state_that_cannot_be_sent(value: np.ndarray) -> None:
    with pytest.raises(SchemaError, match=r"state\.odd"):
        encode(Kind.EPISODE, episode(**{"state.odd": value}))


@pytest.mark.parametrize(
    "name", ["state." + "x" * 300, "state.\ud800"], ids=["too long", "not UTF-8"]
)
def test_state_names_that_cannot_be_sent(name: str) -> None:
    with pytest.raises(SchemaError, match="state"):
        encode(Kind.EPISODE, episode(**{name: np.int64(1)}))


# Arbitrary input


@given(st.binary(max_size=200), st.sampled_from(list(Kind)))
@FUZZ
def test_arbitrary_bytes_are_refused_by_name(data: bytes, kind: Kind) -> None:
    for attempt in (data, b"NTRO" + data, seal(data, kind=kind)):
        with pytest.raises(WireError):
            decode(attempt, kind)


MUTATIONS = st.lists(
    st.tuples(
        st.sampled_from(["set", "insert", "delete", "copy"]),
        st.floats(0, 1, exclude_max=True),
        st.binary(min_size=1, max_size=6),
    ),
    min_size=1,
    max_size=4,
)


def mutated(data: bytes, mutations: Iterable[tuple[str, float, bytes]]) -> bytes:
    for operation, place, value in mutations:
        at = int(place * len(data))
        rest = {
            "set": value + data[at + len(value) :],
            "insert": value + data[at:],
            "delete": data[at + len(value) :],
            "copy": data[at : at + 40] + data[at:],
        }
        data = data[:at] + rest[operation]
    return data


@given(st.sampled_from(list(Kind)), MUTATIONS)
@FUZZ
def test_damaged_messages_are_refused_by_name_or_undamaged(kind: Kind, mutations: list) -> None:
    message = encode(kind, MESSAGES[kind])
    damaged = mutated(message, mutations)
    try:
        decoded = decode(damaged, kind)
    except WireError:
        return
    assert damaged == message
    assert_same(decoded, MESSAGES[kind])


@given(st.sampled_from(list(Kind)), MUTATIONS)
@settings(FUZZ, max_examples=400)
def test_forged_messages_are_refused_by_name_or_follow_the_schema(
    kind: Kind, mutations: list
) -> None:
    forged = seal(mutated(encode(kind, MESSAGES[kind])[HEADER_BYTES:], mutations), kind=kind)
    try:
        decoded = decode(forged, kind)
    except WireError:
        return
    assert encode(kind, decoded) == forged


# No pickle

PICKLING_MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "marshal",
    "shelve",
    "dill",
    "cloudpickle",
    "joblib",
}
PICKLING_NAMES = {
    ("torch", "load"),
    ("torch", "save"),
    ("multiprocessing", "Process"),
    ("multiprocessing", "Pool"),
    ("multiprocessing", "Queue"),
    ("multiprocessing", "Manager"),
    ("futures", "ProcessPoolExecutor"),
}
CONNECTION_MAKERS = {"Connection", "Pipe", "Client", "accept"}


def pickling(source: str) -> list[str]:
    """Yields the parts of ``source`` that pickle or unpickle data, with their lines."""
    tree = ast.parse(source)
    connections = _connection_names(tree)
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found += [
                    f"{node.lineno}: import {alias.name}"
                    for alias in names
                    if alias.name.split(".")[0] in PICKLING_MODULES
                ]
            case ast.ImportFrom(module=str(module), names=names):
                found += [
                    f"{node.lineno}: from {module} import {alias.name}"
                    for alias in names
                    if module.split(".")[0] in PICKLING_MODULES
                    or (module.split(".")[-1], alias.name) in PICKLING_NAMES
                ]
            case ast.Attribute(value=value, attr=attribute) if (
                _last_name(value),
                attribute,
            ) in PICKLING_NAMES:
                found.append(f"{node.lineno}: {_last_name(value)}.{attribute}")
            case ast.keyword(arg="allow_pickle"):
                found.append(f"{node.lineno}: allow_pickle")
            case ast.Attribute(value=value, attr="send" | "recv") if (
                _last_name(value) in connections
            ):
                found.append(f"{node.lineno}: {_last_name(value)}.{node.attr}")
            case ast.Constant(value=str(text)) if text in PICKLING_MODULES:
                found.append(f"{node.lineno}: {text!r}")
    return found


def _connection_names(tree: ast.AST) -> set[str]:
    """Returns the names of variables, attributes and parameters that hold a multiprocessing connection."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.value, ast.Call)
            and _last_name(node.value.func) in CONNECTION_MAKERS
        ):
            for target in node.targets:
                names |= {
                    _last_name(leaf)
                    for leaf in ast.walk(target)
                    if isinstance(leaf, ast.Name | ast.Attribute)
                }
        if (
            isinstance(node, ast.arg)
            and node.annotation
            and _last_name(node.annotation) in CONNECTION_MAKERS
        ):
            names.add(node.arg)
    return names - {"self", ""}


def _last_name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "def f():\n    from marshal import loads",
        "import shelve as s",
        "np.load(path, allow_pickle=True)",
        "torch.load(path)",
        "from torch import load",
        "__import__('pickle')",
        "a, b = multiprocessing.Pipe()\nb.recv()",
        "self.link = Connection(fd)\nself.link.send(event)",
        "def f(link: Connection):\n    link.recv()",
        "multiprocessing.Queue()",
        "from concurrent.futures import ProcessPoolExecutor",
    ],
)
def test_the_search_for_pickling_finds_it(source: str) -> None:
    assert pickling(source)


def test_the_search_for_pickling_lets_bytes_pass() -> None:
    assert not pickling(
        "link = Connection(fd)\nlink.send_bytes(link.recv_bytes())\nprocess.send(event)\n"
        "json.load(file)\nsafetensors.numpy.load(data)"
    )


SOURCES = sorted(
    path
    for folder in ("lambda_actor", "runtime", "nitro_rl")
    for path in (ROOT / folder).rglob("*.py")
)


def test_nothing_is_pickled() -> None:
    assert {
        str(path.relative_to(ROOT)): found
        for path in SOURCES
        if (found := pickling(path.read_text()))
    } == {}
