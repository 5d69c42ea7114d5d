"""Frames of pixels. Each travels once, deflated. They are stacked on use, oldest first."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping

import numpy as np

from lambda_actor.errors import CorruptedMessageError
from lambda_actor.spaces import Spaces

_LEVEL = 1


class FrameStack:
    """Turns an environment's frames into observations: the last ``F`` frames, or a vector unchanged.

    Observations share one buffer: each is valid until the next.
    """

    def __init__(self, spaces: Spaces) -> None:
        self._is_pixels = spaces.is_pixels
        self._buffer = np.zeros(spaces.observation_shape if spaces.is_pixels else 0, np.uint8)
        self._channels = spaces.frame_shape[0] if spaces.is_pixels else 0
        self._repeats = spaces.frame_stack

    def begin(self, frame: np.ndarray) -> np.ndarray:
        """Returns the observation at an episode's first frame, which also fills in for earlier ones."""
        if not self._is_pixels:
            return frame
        self._buffer[...] = np.tile(frame, (self._repeats, 1, 1))
        return self._buffer

    def push(self, frame: np.ndarray) -> np.ndarray:
        """Returns the observation at the next frame."""
        if not self._is_pixels:
            return frame
        self._buffer[: -self._channels] = self._buffer[self._channels :]
        self._buffer[-self._channels :] = frame
        return self._buffer


def combined(picture: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Returns an observation of a picture uint8 ``[C, H, W]`` and a vector float32 ``[V]``: their bytes, ``[1, 1, Y]``.

    One array of bytes can travel like pixels, and pixels are never converted to floats on the way.
    """
    return np.concatenate([picture.reshape(-1), vector.astype("<f4").view(np.uint8)])[None, None]


def apart(observations: np.ndarray, spaces: Spaces) -> tuple[np.ndarray, np.ndarray]:
    """Returns pictures uint8 ``[…, C, H, W]`` and vectors float32 ``[…, V]`` from combined ones, ``[…, 1, 1, Y]``."""
    leading = observations.shape[:-3]
    size = math.prod(spaces.beside_shape)
    vectors = np.ascontiguousarray(observations[..., size:]).view("<f4")
    return (
        observations[..., :size].reshape(*leading, *spaces.beside_shape),
        vectors.reshape(*leading, spaces.vector_size),
    )


def floats(observations: np.ndarray, spaces: Spaces) -> np.ndarray:
    """Returns the floats in one or more observations: vectors float32 ``[…, V]``, with or without pictures."""
    if spaces.is_combined:
        return apart(observations, spaces)[1]
    return observations[..., :0] if spaces.is_pixels else observations


def pack_frames(frames: np.ndarray) -> dict[str, np.ndarray]:
    """Returns fields of a FRAME_TRAJECTORY for frames uint8 ``[U, C, H, W]``."""
    return {"frames": deflated(frames), "frames_shape": np.array(frames.shape, np.int64)}


def unpack_frames(trajectory: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns the frames from `pack_frames`, uint8 ``[U, C, H, W]``.

    Raises:
        CorruptedMessageError: They do not have the message's shape.
    """
    return inflated(trajectory["frames"], tuple(trajectory["frames_shape"].tolist()))


def stack_frames(frames: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Returns observations uint8 ``[T, F·C, H, W]`` from frames ``[U, C, H, W]`` and indices ``[T, F]``."""
    steps, stack = indices.shape
    stacked: np.ndarray = frames[indices].reshape(steps, stack * frames.shape[1], *frames.shape[2:])
    return stacked


def deflated(array: np.ndarray) -> np.ndarray:
    """Returns the deflated bytes of a uint8 array, uint8 ``[Z]``."""
    return np.frombuffer(zlib.compress(np.ascontiguousarray(array).data, _LEVEL), np.uint8)


def inflated(data: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Returns an array from `deflated`, uint8 of that shape, read-only.

    Raises:
        CorruptedMessageError: They do not have that shape.
    """
    try:
        return np.frombuffer(zlib.decompress(data.data), np.uint8).reshape(shape)
    except (zlib.error, ValueError) as error:
        raise CorruptedMessageError(
            f"frames of shape {shape} cannot be inflated: {error}"
        ) from None
