"""Frames of pixels: each travels once, deflated; where they are used they are stacked, the oldest first."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping

import numpy as np

from lambda_actor import wire
from lambda_actor.errors import CorruptedMessageError, OversizedMessageError
from lambda_actor.spaces import Spaces

_LEVEL = 1


class FrameStack:
    """What a policy sees of the frames that an environment gives: the last ``F`` of them; a vector as it is.

    Its observations are one buffer: each is valid until the next.
    """

    def __init__(self, spaces: Spaces) -> None:
        self._is_pixels = spaces.is_pixels
        self._buffer = np.zeros(spaces.observation_shape if spaces.is_pixels else 0, np.uint8)
        self._channels = spaces.frame_shape[0] if spaces.is_pixels else 0
        self._repeats = spaces.frame_stack

    def begin(self, frame: np.ndarray) -> np.ndarray:
        """The observation at an episode's first frame, which stands for those before it, too."""
        if not self._is_pixels:
            return frame
        self._buffer[...] = np.tile(frame, (self._repeats, 1, 1))
        return self._buffer

    def push(self, frame: np.ndarray) -> np.ndarray:
        """The observation at the next frame."""
        if not self._is_pixels:
            return frame
        self._buffer[:-self._channels] = self._buffer[self._channels:]
        self._buffer[-self._channels:] = frame
        return self._buffer


def combined(picture: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """One observation of a picture uint8 ``[C, H, W]`` beside a vector float32 ``[V]``: their bytes, ``[1, 1, Y]``.

    One array of bytes goes wherever pixels go, and no pixel becomes a float on its way.
    """
    return np.concatenate([picture.reshape(-1), vector.astype("<f4").view(np.uint8)])[None, None]


def apart(observations: np.ndarray, spaces: Spaces) -> tuple[np.ndarray, np.ndarray]:
    """Pictures uint8 ``[…, C, H, W]`` and vectors float32 ``[…, V]`` of what `combined` made, ``[…, 1, 1, Y]``."""
    leading, size = observations.shape[:-3], math.prod(spaces.beside_shape)
    vectors = np.ascontiguousarray(observations[..., size:]).view("<f4")
    return (observations[..., :size].reshape(*leading, *spaces.beside_shape),
            vectors.reshape(*leading, spaces.vector_size))


def floats(observations: np.ndarray, spaces: Spaces) -> np.ndarray:
    """The floats in observations, one or more: vectors, float32 ``[…, V]``, also beside a picture; none of pixels."""
    if spaces.is_combined:
        return apart(observations, spaces)[1]
    return observations[..., :0] if spaces.is_pixels else observations


def pack_frames(frames: np.ndarray) -> dict[str, np.ndarray]:
    """Fields of a FRAME_TRAJECTORY from frames uint8 ``[U, C, H, W]``.

    Raises:
        OversizedMessageError: Nobody would unpack so many.
    """
    if frames.nbytes > wire.MESSAGE_BYTES_MAX:
        raise OversizedMessageError(f"{len(frames)} frames of {frames.nbytes} bytes exceed the limit of "
                                    f"{wire.MESSAGE_BYTES_MAX}")
    return {"frames": deflated(frames), "frames_shape": np.array(frames.shape, np.int64)}


def unpack_frames(trajectory: Mapping[str, np.ndarray]) -> np.ndarray:
    """What `pack_frames` packed, uint8 ``[U, C, H, W]``.

    Raises:
        CorruptedMessageError: It is not as large as it says, or larger than any message may be.
    """
    shape = tuple(int(length) for length in trajectory["frames_shape"])
    if len(shape) != 4 or min(shape) < 1:
        raise CorruptedMessageError(f"frames of shape {shape}")
    return inflated(trajectory["frames"], shape)


def stack_frames(frames: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Observations uint8 ``[T, F·C, H, W]`` of frames ``[U, C, H, W]`` by index ``[T, F]``.

    Raises:
        CorruptedMessageError: An index names no frame.
    """
    if indices.size and not (indices.min() >= 0 and indices.max() < len(frames)):
        raise CorruptedMessageError(f"stacks name frames {indices.min()} to {indices.max()} of {len(frames)}")
    steps, stack = indices.shape
    stacked: np.ndarray = frames[indices].reshape(steps, stack * frames.shape[1], *frames.shape[2:])
    return stacked


def deflated(array: np.ndarray) -> np.ndarray:
    """The bytes of a uint8 array, deflated, uint8 ``[Z]``."""
    return np.frombuffer(zlib.compress(np.ascontiguousarray(array).data, _LEVEL), np.uint8)


def inflated(data: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """What was `deflated`, uint8 of that shape, read-only.

    Raises:
        CorruptedMessageError: It is not as large as ``shape`` says, or that is larger than any message may be.
    """
    size = math.prod(shape)
    if not 0 < size <= wire.MESSAGE_BYTES_MAX:
        raise CorruptedMessageError(f"bytes of shape {shape}")
    inflater = zlib.decompressobj()
    try:
        # One byte more than it may be, which would tell that there are more.
        found = inflater.decompress(data.tobytes(), size + 1)
    except zlib.error as error:
        raise CorruptedMessageError(f"frames cannot be inflated: {error}") from None
    if len(found) != size or not inflater.eof or inflater.unused_data:
        raise CorruptedMessageError(f"bytes of shape {shape} are not {size}")
    return np.frombuffer(found, np.uint8).reshape(shape)
