"""Frames on the wire: each frame once, deflated. Other input is refused by name."""

from __future__ import annotations

import numpy as np
import pytest

from lambda_actor.errors import CorruptedMessageError
from lambda_actor.frames import (
    pack_frames,
    unpack_frames,
)

PICTURES = np.random.default_rng(0).integers(4, size=(5, 2, 6, 7)).astype(np.uint8)


# Round trips


@pytest.mark.parametrize("frames", [PICTURES, PICTURES.transpose(0, 1, 3, 2)], ids=["C", "F"])
def test_frames_come_out_as_they_went_in(frames: np.ndarray) -> None:
    np.testing.assert_array_equal(unpack_frames(pack_frames(frames)), frames, strict=True)


# Arbitrary input


def test_frames_that_are_damaged_or_not_as_many_as_said_are_refused() -> None:
    fields = pack_frames(PICTURES)
    for name in fields:
        with pytest.raises(CorruptedMessageError, match="frames of shape"):
            unpack_frames(fields | {name: fields[name][:-1]})
