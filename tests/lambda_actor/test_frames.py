"""Frames on the wire: each frame once, deflated. Other input is refused by name."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lambda_actor import frames, wire
from lambda_actor.errors import CorruptedMessageError, OversizedMessageError
from lambda_actor.frames import (
    FrameStack,
    deflated,
    inflated,
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


def test_they_are_deflated() -> None:
    assert pack_frames(np.zeros((10, 1, 84, 84), np.uint8))["frames"].size < 1000


def test_layout_in_memory_does_not_matter() -> None:
    turned = PICTURES.transpose(0, 1, 3, 2)
    np.testing.assert_array_equal(unpack_frames(pack_frames(turned)), turned)


def test_stacks_are_of_the_frames_that_they_name_the_oldest_first() -> None:
    stacks = stack_frames(PICTURES, np.array([[0, 0, 0], [0, 0, 1], [2, 3, 4]], np.int32))
    assert stacks.shape == (3, 6, 6, 7)
    for row, named in zip(stacks, [(0, 0, 0), (0, 0, 1), (2, 3, 4)], strict=True):
        np.testing.assert_array_equal(row, np.concatenate([PICTURES[index] for index in named]))


def test_no_stack_of_no_frame() -> None:
    assert stack_frames(PICTURES, np.zeros((0, 3), np.int32)).shape == (0, 6, 6, 7)


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


def test_a_stack_of_one_frame_is_that_frame() -> None:
    stack = FrameStack(Spaces((2, 6, 7), (2, 6, 7), 1, action_count=2))
    np.testing.assert_array_equal(stack.begin(PICTURES[0]), PICTURES[0])
    np.testing.assert_array_equal(stack.push(PICTURES[1]), PICTURES[1])


def test_vectors_are_not_stacked() -> None:
    stack = FrameStack(Spaces((3,), action_size=1))
    vectors = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert stack.begin(vectors[0]).tolist() == [0, 1, 2]
    assert stack.push(vectors[1]).tolist() == [3, 4, 5]


# Arbitrary input


@pytest.mark.parametrize(
    "shape",
    [
        (5, 2, 6, 6),
        (5, 2, 6, 8),
        (4, 2, 6, 7),
        (0, 2, 6, 7),
        (-5, 2, 6, 7),
        (-5, -2, 6, 7),
        (5, 84),
        (5, 2, 6, 7, 1),
        (),
        (2**62, 2**62, 2**62, 2**62),
        (2**20, 2**10, 1, 1),
    ],
    ids=str,
)
def test_another_shape_than_the_frames_have_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(CorruptedMessageError):
        unpack_frames(packed(zlib.compress(PICTURES.tobytes()), shape))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        zlib.compress(b""),
        zlib.compress(PICTURES.tobytes())[:-1],
        zlib.compress(PICTURES.tobytes()) + b"x",
        zlib.compress(PICTURES.tobytes()) * 2,
        PICTURES.tobytes(),
    ],
    ids=["nothing", "a letter", "empty", "cut", "more", "twice", "raw"],
)
def test_what_cannot_be_inflated_to_that_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptedMessageError):
        unpack_frames(packed(data, PICTURES.shape))


def test_a_bomb_is_not_inflated(monkeypatch: pytest.MonkeyPatch) -> None:
    """64 MiB of zeros in 64 KiB that claim to be 84 bytes."""
    inflated_bytes = []

    class Watched:
        def __init__(self) -> None:
            self._real = zlib.decompressobj()

        def decompress(self, data: bytes, limit: int) -> bytes:
            found = self._real.decompress(data, limit)
            inflated_bytes.append(len(found))
            return found

        def __getattr__(self, name: str) -> object:
            return getattr(self._real, name)

    class WatchedZlib:
        error = zlib.error
        decompressobj = Watched

    bomb = zlib.compress(bytes(2**26))
    monkeypatch.setattr(frames, "zlib", WatchedZlib)
    with pytest.raises(CorruptedMessageError, match="are not 84"):
        unpack_frames(packed(bomb, (1, 2, 6, 7)))
    assert inflated_bytes == [85]


def test_more_than_a_message_may_hold_is_refused_before_it_is_inflated_and_when_it_is_packed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire, "MESSAGE_BYTES_MAX", PICTURES.nbytes)
    assert unpack_frames(pack_frames(PICTURES)).shape == PICTURES.shape
    one_more = np.concatenate([PICTURES, PICTURES[:1]])
    with pytest.raises(OversizedMessageError, match="6 frames"):
        pack_frames(one_more)
    with pytest.raises(CorruptedMessageError):
        unpack_frames(packed(zlib.compress(one_more.tobytes()), one_more.shape))


@pytest.mark.parametrize(
    "indices", [[[0, 5]], [[-1, 0]], [[2**31 - 1, 0]], [[0, 0], [4, -(2**31)]]], ids=str
)
def test_a_stack_of_frames_that_are_not_there_is_refused(indices: list[list[int]]) -> None:
    with pytest.raises(CorruptedMessageError, match="of 5"):
        stack_frames(PICTURES, np.array(indices, np.int32))


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


def test_bytes_of_a_state_are_inflated_under_the_same_rules() -> None:
    data = deflated(PICTURES)
    np.testing.assert_array_equal(inflated(data, PICTURES.shape), PICTURES)
    with pytest.raises(CorruptedMessageError):
        inflated(data, (PICTURES.size + 1,))
