"""A channel of experience: chunks of shared memory, which players write and trainers read.

Paper: GMI-DRL §4.2.
Departure: All fields of a fragment travel in one chunk.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping

import numpy as np
from safetensors.numpy import load, save

from lambda_actor.rollout import EPISODE_BYTES_MAX
from lambda_actor.spaces import Spaces
from runtime.errors import RunError
from runtime.fleet.sizes import trajectory_bytes_max

_LENGTH_BYTES = 8


class Channel:
    """Access to memory that several instances share."""

    def __init__(self, descriptor: int, chunk_bytes: int, chunks: int) -> None:
        """Maps the memory.

        Args:
            descriptor: Descriptor of the memory, which is not closed.
            chunk_bytes: Bytes of a chunk.
            chunks: Number of chunks.
        """
        self._chunk_bytes = chunk_bytes
        self._memory = mmap.mmap(descriptor, chunk_bytes * chunks)

    def write(self, chunk: int, fields: Mapping[str, np.ndarray]) -> None:
        """Writes a fragment.

        Raises:
            RunError: It does not fit into a chunk.
        """
        data = save({name: np.asarray(value, order="C") for name, value in fields.items()})
        if len(data) + _LENGTH_BYTES > self._chunk_bytes:
            raise RunError(f"a fragment has {len(data)} bytes, and a chunk {self._chunk_bytes}")
        self._memory.seek(chunk * self._chunk_bytes)
        self._memory.write(len(data).to_bytes(_LENGTH_BYTES, "little") + data)

    def read(self, chunk: int) -> dict[str, np.ndarray]:
        """Returns a copy of a fragment.

        Raises:
            RunError: The chunk holds none.
        """
        self._memory.seek(chunk * self._chunk_bytes)
        length = int.from_bytes(self._memory.read(_LENGTH_BYTES), "little")
        if not 0 < length <= self._chunk_bytes - _LENGTH_BYTES:
            raise RunError(f"chunk {chunk} holds no fragment")
        found: dict[str, np.ndarray] = load(self._memory.read(length))
        return found


def chunk_bytes(spaces: Spaces, fragment_steps: int) -> int:
    """Returns the size of a chunk that holds any fragment; its open episode travels elsewhere."""
    return trajectory_bytes_max(spaces, fragment_steps=fragment_steps) - EPISODE_BYTES_MAX
