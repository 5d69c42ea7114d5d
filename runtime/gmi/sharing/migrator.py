"""The migrator: assigns the chunk of each fragment, and the trainer that takes it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from runtime.errors import RunError
from runtime.gmi.shared_memory import anonymous_file


class Migrator:
    """Owns the shared memory, and records what each chunk holds.

    The memory has no name, so nothing of it remains when the last process that has it ends, however it ends.

    Attributes:
        descriptor: Descriptor of the memory. Processes that share it inherit it.
        memory: Fields about the memory for events: see `runtime.gmi.sharing.channel.Channel`.
    """

    def __init__(self, chunk_bytes: int, chunks: int) -> None:
        """Makes the memory.

        Args:
            chunk_bytes: Bytes of a chunk.
            chunks: Number of chunks.

        Raises:
            OSError: The memory cannot be made.
        """
        self.descriptor = anonymous_file(chunk_bytes * chunks)
        self.memory: Mapping[str, Any] = {
            "channel": {
                "descriptor": self.descriptor,
                "chunk_bytes": chunk_bytes,
                "chunks": chunks,
            }
        }
        self._free = list(range(chunks))
        self._chunks: dict[str, int] = {}
        self._given: set[str] = set()

    def place(self, invocation_id: str) -> int:
        """Returns the chunk for an actor's fragment.

        Raises:
            RunError: No chunk is free.
        """
        if not self._free:
            raise RunError(
                f"all {len(self._chunks)} chunks for experience hold fragments that were not trained on"
            )
        self._chunks[invocation_id] = chunk = self._free.pop()
        return chunk

    def chunk_of(self, invocation_id: str) -> int:
        """Returns the chunk of a fragment that has been played."""
        return self._chunks[invocation_id]

    def give(self, invocation_id: str) -> None:
        """Marks a fragment that the loop has taken. It is freed with the next update, even if that does not use it."""
        self._given.add(invocation_id)

    def release_given(self) -> None:
        """Frees the chunks of the fragments that the loop has taken."""
        for invocation_id in self._given:
            self.release(invocation_id)
        self._given.clear()

    def release(self, invocation_id: str) -> None:
        """Frees a chunk that no process writes or reads any more."""
        if (chunk := self._chunks.pop(invocation_id, None)) is not None:
            self._free.append(chunk)

    def close(self) -> None:
        """Gives up this process's hold of the memory."""
        os.close(self.descriptor)


def routes(
    steps: Sequence[int], devices: Sequence[int], trainers: Sequence[int]
) -> dict[int, list[int]]:
    """Returns the fragments of each trainer. The least busy trainer on a fragment's device takes it, or of all.

    Args:
        steps: Steps of each fragment.
        devices: Device where each was played.
        trainers: Device of each trainer.

    Returns:
        By trainer, ascending, the indices of its fragments. Trainers without fragments are left out.
    """
    load, found = [0] * len(trainers), dict[int, list[int]]()
    for place, (count, device) in enumerate(zip(steps, devices, strict=True)):
        near = [one for one, its_device in enumerate(trainers) if its_device == device]
        chosen = min(near or range(len(trainers)), key=load.__getitem__)
        load[chosen] += count
        found.setdefault(chosen, []).append(place)
    return dict(sorted(found.items()))
