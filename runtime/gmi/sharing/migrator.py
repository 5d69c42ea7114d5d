"""The migrator: says into which chunk a fragment is written, and which trainer takes it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from runtime.errors import RunError
from runtime.gmi.sharing.plan import Plan


class Migrator:
    """Owns the shared memory, and the books of what lies where.

    The memory has no name: nothing of it is left when the last process that has it ends, however it ends.

    Attributes:
        descriptor: Of the memory; processes that share it inherit it.
        memory: What events say of it; see `runtime.gmi.worker.MEMORY_FIELDS`.
    """

    def __init__(self, plan: Plan) -> None:
        """Makes the memory.

        Args:
            plan: The same in all instances.

        Raises:
            OSError: There is no such memory.
        """
        self.descriptor = anonymous_file(plan.size)
        self.memory: Mapping[str, Any] = {"memory": self.descriptor, "plan": plan.values()}
        self._free = list(range(plan.chunks))
        self._chunks: dict[str, int] = {}
        self._given: set[str] = set()

    def place(self, invocation_id: str) -> int:
        """Returns the chunk for an actor's fragment.

        Raises:
            RunError: None is free.
        """
        if not self._free:
            raise RunError(f"all {len(self._chunks)} chunks for experience hold fragments that nobody has trained on")
        self._chunks[invocation_id] = chunk = self._free.pop()
        return chunk

    def chunk_of(self, invocation_id: str) -> int:
        """Returns the chunk of a fragment that has been played."""
        return self._chunks[invocation_id]

    def give(self, invocation_id: str) -> None:
        """Notes that the loop has a fragment: whether or not the next update trains on it, it goes with that."""
        self._given.add(invocation_id)

    def release_given(self) -> None:
        """Frees the chunks of what the loop has had."""
        for invocation_id in self._given:
            self.release(invocation_id)
        self._given.clear()

    def release(self, invocation_id: str) -> None:
        """Frees a chunk; nobody writes into it or reads it any more."""
        if (chunk := self._chunks.pop(invocation_id, None)) is not None:
            self._free.append(chunk)

    def close(self) -> None:
        """Gives up this process' hold of the memory."""
        os.close(self.descriptor)


def routes(steps: Sequence[int], devices: Sequence[int], trainers: Sequence[int]) -> dict[int, list[int]]:
    """Returns which fragments each trainer takes: of those on a fragment's device, or else of all, the least busy one.

    Args:
        steps: Of each fragment.
        devices: On which each was played.
        trainers: The device of each trainer.

    Returns:
        By trainer, ascending, the places of its fragments; trainers without any are left out.
    """
    load, found = [0] * len(trainers), dict[int, list[int]]()
    for place, (count, device) in enumerate(zip(steps, devices, strict=True)):
        near = [one for one, its_device in enumerate(trainers) if its_device == device]
        chosen = min(near or range(len(trainers)), key=load.__getitem__)
        load[chosen] += count
        found.setdefault(chosen, []).append(place)
    return dict(sorted(found.items()))


def anonymous_file(size: int) -> int:
    """Returns the descriptor of a file in memory, or of one without a name where there are none."""
    if hasattr(os, "memfd_create"):
        # /dev/shm is limited to 64 MiB in most containers; this is not.
        descriptor = os.memfd_create("gmi")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.truncate(descriptor, size)
    return descriptor
