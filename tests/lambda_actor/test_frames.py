"""Frames on the wire: each frame once, deflated. Other input is refused by name."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lambda_actor.errors import CorruptedMessageError
from lambda_actor.frames import (
    FrameStack,
    pack_frames,
    stack_frames,
    unpack_frames,
)
from lambda_actor.spaces import Spaces

FUZZ = settings(derandomize=True, max_examples=200)
PICTURES = np.random.default_rng(0).integers(4, size=(5, 2, 6, 7)).astype(np.uint8)


def packed(data: bytes, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    return {"frames": np.frombuffer(data, np.uint8), "frames_shape": np.array(shape, np.int64)}


# Round trips


def test_frames_come_out_as_they_went_in() -> None:
    np.testing.assert_array_equal(unpack_frames(pack_frames(PICTURES)), PICTURES, strict=True)


def test_layout_in_memory_does_not_matter() -> None:
    turned = PICTURES.transpose(0, 1, 3, 2)
    np.testing.assert_array_equal(unpack_frames(pack_frames(turned)), turned)


def test_stacks_are_of_the_frames_that_they_name_the_oldest_first() -> None:
    stacks = stack_frames(PICTURES, np.array([[0, 0, 0], [0, 0, 1], [2, 3, 4]], np.int32))
    assert stacks.shape == (3, 6, 6, 7)
    for row, named in zip(stacks, [(0, 0, 0), (0, 0, 1), (2, 3, 4)], strict=True):
        np.testing.assert_array_equal(row, np.concatenate([PICTURES[index] for index in named]))


# Observations of a policy


def test_a_stack_holds_the_last_frames_and_begins_with_the_first_repeated() -> None:
    stack = FrameStack(Spaces((6, 6, 7), (2, 6, 7), 3, action_count=2))
    for _episode in range(2):
        seen = [
            stack.begin(PICTURES[0]).copy(),
            *(stack.push(frame).copy() for frame in PICTURES[1:]),
        ]
        indices = np.array([[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4]])
        np.testing.assert_array_equal(np.array(seen), stack_frames(PICTURES, indices), strict=True)


def test_vectors_are_not_stacked() -> None:
    stack = FrameStack(Spaces((3,), action_size=1))
    vectors = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert stack.begin(vectors[0]).tolist() == [0, 1, 2]
    assert stack.push(vectors[1]).tolist() == [3, 4, 5]


# Arbitrary input


@given(st.integers(0, 10**6), st.binary(min_size=1, max_size=4))
@FUZZ
def test_damaged_frames_are_refused_or_undamaged(place: int, value: bytes) -> None:
    sound = zlib.compress(PICTURES.tobytes())
    at = place % len(sound)
    damaged = sound[:at] + value + sound[at + len(value) :]
    try:
        found = unpack_frames(packed(damaged, PICTURES.shape))
    except CorruptedMessageError:
        return
    np.testing.assert_array_equal(found, PICTURES)


def test_frames_that_are_damaged_or_not_as_many_as_said_are_refused() -> None:
    fields = pack_frames(PICTURES)
    for name in fields:
        with pytest.raises(CorruptedMessageError, match="frames of shape"):
            unpack_frames(fields | {name: fields[name][:-1]})
