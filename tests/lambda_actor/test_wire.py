"""The wire format: data come out as they went in, and anything else is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
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
    SchemaError,
    WireError,
)
from lambda_actor.wire import Kind, decode, encode
from tests.environments import policy_arrays

ROOT = Path(__file__).resolve().parents[2]
FUZZ = settings(derandomize=True, max_examples=100)
DTYPES = ("<f4", "<f8", "|u1", "<i4", "<i8", "|b1", "<u4", "<u8", "<f2", "<i2", "<u2", "|i1")


def episode(**changes: object) -> dict[str, np.ndarray]:
    return {
        "observation": np.array([1.5, -2.0], np.float32),
        "return_so_far": np.float64(3.25),
        "length": np.int64(7),
        "first_version": np.int64(2),
        **changes,
    }


def message(kind: Kind) -> dict[str, np.ndarray]:
    """Returns fields as the schema says; each letter has a length of its own."""
    fields = {}
    for name, field in wire.SCHEMAS[kind].items():
        dtype, _, letters = field.split(" | ")[0].partition(" ")
        shape = [1 + ord(letter) % 4 for letter in letters]
        fields[name] = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    return fields


MESSAGES = {kind: message(kind) for kind in Kind}
MESSAGES[Kind.EPISODE]["state.time"] = np.array([[1, 2], [3, 4]], np.int32)
MESSAGES[Kind.WEIGHTS] = policy_arrays(3, 2, hidden=4)
MESSAGES[Kind.LEARNER_STATE]["array.optimizer.0.step"] = np.float64(7.0)
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
    decoded = decode(encode(kind, MESSAGES[kind]), kind)
    assert_same(decoded, MESSAGES[kind])
    assert not any(array.flags.writeable for array in decoded.values())


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
        st.sampled_from(DTYPES).flatmap(
            lambda dtype: numpy_strategies.arrays(
                np.dtype(dtype),
                numpy_strategies.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
            )
        ),
        max_size=4,
    )
)
@FUZZ
def test_any_episode_state_survives(states: dict[str, np.ndarray]) -> None:
    fields = episode(**{wire.STATE_PREFIX + name: array for name, array in states.items()})
    assert_same(decode(encode(Kind.EPISODE, fields), Kind.EPISODE), fields)


# What is wrong is named


@ALL_KINDS
def test_a_message_that_is_cut_or_of_which_a_bit_flips_is_refused(kind: Kind) -> None:
    message = encode(kind, MESSAGES[kind])
    for position in range(len(message)):
        with pytest.raises(WireError):
            decode(message[:position], kind)
        flipped = bytearray(message)
        flipped[position] ^= 1 << position % 8
        with pytest.raises(CorruptedMessageError if position > 3 else ForeignMessageError):
            decode(bytes(flipped), kind)


def test_another_kind_version_or_program_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    message = encode(Kind.EPISODE, episode())
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
    ("kind", "fields", "words"),
    [
        (Kind.TRAJECTORY, {"rewards": np.zeros(4)}, "rewards: T is 4, elsewhere 1"),
        (Kind.EPISODE, {"array.x": np.zeros(1)}, "EPISODE has no field 'array.x'"),
        (Kind.EPISODE, {"state.x": np.array([None])}, "'state.x' of object"),
    ],
)
def test_what_is_not_in_the_schema_is_named(
    kind: Kind, fields: dict[str, np.ndarray], words: str
) -> None:
    with pytest.raises(SchemaError, match=re.escape(words)):
        encode(kind, MESSAGES[kind] | fields)


PICKLING = re.compile(
    r"\b(c?pickle|marshal|shelve|dill|cloudpickle|joblib)\b|torch\.(load|save)\b|allow_pickle"
    r"|multiprocessing\.(Process|Pool|Queue|Manager)\b|ProcessPoolExecutor|\.recv\(\)"
)
"""What pickles or unpickles."""


def test_nothing_is_pickled() -> None:
    code = {
        path: "\n".join(re.sub(r"#.*", "", line) for line in path.read_text().splitlines())
        for folder in ("lambda_actor", "runtime", "nitro_rl")
        for path in (ROOT / folder).rglob("*.py")
    }
    found = {
        str(path): PICKLING.findall(re.sub(r'(?s)""".*?"""', "", text))
        for path, text in code.items()
    }
    assert {path: words for path, words in found.items() if words} == {}
