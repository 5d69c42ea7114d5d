"""Multi-process reduction: members write into shared host memory and sum there.

Paper: GMI-DRL §4.1. There a gradient leaves its GPU for the host's memory and is reduced between processes on the
CPU. On a CPU it is already there. It takes one copy into the memory, one sum, and one copy out of it.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from runtime.gmi.mesh import Mesh
from runtime.gmi.sharing.migrator import anonymous_file

_NUMPY_TYPES = {torch.float32: np.float32, torch.float64: np.float64}


class SharedMemory:
    """A part for each of some members, and one for the sum of all parts.

    The memory has no name, so nothing remains of it when the last member has ended, however it ends.
    """

    def __init__(self, mesh: Mesh, ranks: Sequence[int], elements: int) -> None:
        """Maps the memory. Returns when this member has mapped it.

        Args:
            mesh: Connects the members.
            ranks: The members, including this one. The first makes the memory.
            elements: float32 numbers of a part. Longer vectors are summed piece by piece.

        Raises:
            OSError: The memory cannot be made.
            RunError: A member is gone.
        """
        self._mesh, self._ranks, self._place = mesh, tuple(ranks), ranks.index(mesh.rank)
        self._part_bytes = -(-max(elements, 1) * 4 // mmap.PAGESIZE) * mmap.PAGESIZE
        size = self._part_bytes * (len(ranks) + 1)
        descriptor = anonymous_file(size) if self._place == 0 else mesh.receive_file(ranks[0])
        try:
            if self._place == 0:
                mesh.send_file(descriptor, ranks[1:])
            self._memory = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)

    def pieces(self, flat: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yields consecutive views of a vector that fit into a part."""
        return iter(torch.split(flat, self._part_bytes // flat.element_size()) if len(flat) else ())

    def reduce(self, piece: torch.Tensor, readers: Sequence[int]) -> torch.Tensor:
        """Adds up one piece of each member, in the order of their ranks; every member sums its share of the elements.

        Reading another member's memory counts as a message of that member.

        Args:
            piece: ``[n]``, float32 or float64, on any device; not changed.
            readers: The members that now read the sum.

        Returns:
            The sum, ``[n]``, in shared memory. It is valid until the next call, which waits for all members.

        Raises:
            RunError: A member is gone, or does not take part in time.
        """
        size, length = len(self._ranks), len(piece)
        parts = np.frombuffer(self._memory, _NUMPY_TYPES[piece.dtype]).reshape(size + 1, -1)[
            :, :length
        ]
        torch.from_numpy(parts[self._place]).copy_(piece)
        self.barrier()
        bounds = [length * place // size for place in range(size + 1)]
        share = slice(*bounds[self._place : self._place + 2])
        np.add.reduce(parts[:-1, share], axis=0, out=parts[-1, share])
        self.barrier()
        own, others = share.stop - share.start, len(set(readers) - {self._mesh.rank})
        self._mesh.count(
            len(set(bounds)) - 1 + (others - 1) * (own > 0),
            sent=piece.element_size() * (length - own + others * own),
            received=piece.element_size()
            * ((size - 1) * own + (others < len(readers)) * (length - own)),
        )
        return torch.from_numpy(parts[-1])

    def barrier(self) -> None:
        """Returns when all members have called it.

        Raises:
            RunError: A member is gone, or does not call it in time.
        """
        self._mesh.barrier(self._ranks)
