"""Frames on the wire: each frame once, deflated. Other input is refused by name."""

from __future__ import annotations

import numpy as np
import pytest

from lambda_actor.errors import CorruptedMessageError
from lambda_actor.frames import (
    FrameStack,
    pack_frames,
    stack_frames,
    unpack_frames,
)
from lambda_actor.spaces import Spaces

PICTURES = np.random.default_rng(0).integers(4, size=(5, 2, 6, 7)).astype(np.uint8)


# Round trips


@pytest.mark.parametrize("frames", [PICTURES, PICTURES.transpose(0, 1, 3, 2)], ids=["C", "F"])
def test_frames_come_out_as_they_went_in(frames: np.ndarray) -> None:
    np.testing.assert_array_equal(unpack_frames(pack_frames(frames)), frames, strict=True)


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


# Arbitrary input


def test_frames_that_are_damaged_or_not_as_many_as_said_are_refused() -> None:
    fields = pack_frames(PICTURES)
    for name in fields:
        with pytest.raises(CorruptedMessageError, match="frames of shape"):
            unpack_frames(fields | {name: fields[name][:-1]})
