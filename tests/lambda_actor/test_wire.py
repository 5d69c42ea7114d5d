"""The wire format: data come out as they went in, and anything else is refused."""

from __future__ import annotations

import re
from pathlib import Path

import hypothesis.extra.numpy as numpy_strategies
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lambda_actor import wire
from lambda_actor.errors import CorruptedMessageError, ForeignMessageError, SchemaError, WireError
from lambda_actor.frames import pack_frames, unpack_frames
from lambda_actor.wire import Kind, decode, encode
from tests.environments import policy_arrays

ROOT = Path(__file__).resolve().parents[2]
DTYPES = ("<f4", "<f8", "|u1", "<i4", "<i8", "|b1", "<u4", "<u8", "<f2", "<i2", "<u2", "|i1")


def message(kind: Kind) -> dict[str, np.ndarray]:
    """Returns fields as the schema says; each letter has a length of its own."""
    fields = {}
    for name, field in wire.SCHEMAS[kind].items():
        dtype, _, letters = field.split(" | ")[0].partition(" ")
        shape = [1 + ord(letter) % 4 for letter in letters]
        fields[name] = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    return fields


MESSAGES = {kind: message(kind) for kind in Kind}
MESSAGES[Kind.WEIGHTS] = policy_arrays(3, 2, hidden=4)
MESSAGES[Kind.LEARNER_STATE]["array.optimizer.0.step"] = np.array(7.0)
ALL_KINDS = pytest.mark.parametrize("kind", MESSAGES, ids=lambda kind: kind.name)


def assert_survives(kind: Kind, fields: dict[str, np.ndarray]) -> None:
    """Compares names, dtypes, shapes and bits, so NaN equals itself and −0.0 differs from 0.0."""
    decoded = decode(encode(kind, fields), kind)
    assert list(decoded) == list(fields)
    for name, value in fields.items():
        found = decoded[name]
        assert (found.dtype, found.shape, found.tobytes(), found.flags.writeable) == (
            value.dtype,
            value.shape,
            value.tobytes(),
            False,
        ), name


@ALL_KINDS
def test_what_comes_out_is_what_went_in(kind: Kind) -> None:
    assert_survives(kind, MESSAGES[kind])


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
        st.sampled_from(DTYPES).flatmap(
            lambda dtype: numpy_strategies.arrays(
                np.dtype(dtype), numpy_strategies.array_shapes(min_dims=0, min_side=0, max_side=4)
            )
        ),
        max_size=4,
    )
)
@settings(derandomize=True, max_examples=50)
def test_any_episode_state_survives(states: dict[str, np.ndarray]) -> None:
    named = {wire.STATE_PREFIX + name: array for name, array in states.items()}
    assert_survives(Kind.EPISODE, MESSAGES[Kind.EPISODE] | named)


# What is wrong is named


@ALL_KINDS
def test_a_message_that_is_cut_or_of_which_a_bit_flips_is_refused(kind: Kind) -> None:
    message = encode(kind, MESSAGES[kind])
    for position in range(0, len(message), 3):
        with pytest.raises(WireError):
            decode(message[:position], kind)
        flipped = bytearray(message)
        flipped[position] ^= 1 << position % 8
        with pytest.raises(CorruptedMessageError if position > 3 else ForeignMessageError):
            decode(bytes(flipped), kind)


def test_frames_that_are_not_as_many_as_said_are_refused() -> None:
    pictures = np.arange(420, dtype=np.uint16).astype(np.uint8).reshape(5, 2, 6, 7)
    fields = pack_frames(pictures.transpose(0, 1, 3, 2))
    np.testing.assert_array_equal(unpack_frames(fields), pictures.transpose(0, 1, 3, 2))
    for name in fields:
        with pytest.raises(CorruptedMessageError, match="frames of shape"):
            unpack_frames(fields | {name: fields[name][:-1]})


def test_another_kind_version_or_program_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    message = encode(Kind.EPISODE, MESSAGES[Kind.EPISODE])
    with pytest.raises(ForeignMessageError, match=r"is of kind 3, not WEIGHTS \(2\)"):
        decode(message, Kind.WEIGHTS)
    with pytest.raises(ForeignMessageError, match="starts with"):
        decode(b"\x80\x04pickle", Kind.EPISODE)
    monkeypatch.setattr(wire, "VERSION", wire.VERSION + 1)
    with pytest.raises(ForeignMessageError, match="is of wire version"):
        decode(message, Kind.EPISODE)


@ALL_KINDS
def test_each_field_is_required_with_its_type_and_rank(kind: Kind) -> None:
    for name in wire.SCHEMAS[kind]:
        fields = {one: array for one, array in MESSAGES[kind].items() if one != name}
        for wrong in ({}, {name: np.zeros(1, np.int16)}, {name: np.zeros((1,) * 6)}):
            if wrong or name != "action_masks":
                with pytest.raises(SchemaError, match=name):
                    encode(kind, fields | wrong)


@pytest.mark.parametrize(
    ("kind", "name", "value", "words"),
    [
        (Kind.TRAJECTORY, "rewards", np.zeros(4), "rewards: T is 4, elsewhere 1"),
        (Kind.EPISODE, "array.x", np.zeros(1), "EPISODE has no field 'array.x'"),
        (Kind.EPISODE, "state.x", np.array([None]), "'state.x' of object"),
    ],
)
def test_what_is_not_in_the_schema_is_named(
    kind: Kind, name: str, value: np.ndarray, words: str
) -> None:
    with pytest.raises(SchemaError, match=words):
        encode(kind, MESSAGES[kind] | {name: value})


PICKLING = re.compile(
    r"\b(c?pickle|marshal|shelve|dill|cloudpickle|joblib)\b|torch\.(load|save)\b|allow_pickle"
    r"|multiprocessing\.(Process|Pool|Queue|Manager)\b|ProcessPoolExecutor|\.recv\(\)"
)
"""What pickles or unpickles."""


def test_nothing_is_pickled() -> None:
    for folder in ("lambda_actor", "runtime", "nitro_rl"):
        for path in (ROOT / folder).rglob("*.py"):
            code = re.sub(r'(?s)""".*?"""|#[^\n]*', "", path.read_text())
            assert not PICKLING.findall(code), path
