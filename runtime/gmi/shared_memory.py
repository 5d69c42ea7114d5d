"""Multi-process reduction: members write into shared host memory and sum there.

Paper: GMI-DRL §4.1. There a gradient leaves its GPU for the host's memory and is reduced between processes on the
CPU. On a CPU it is already there. It takes one copy into the memory, one sum, and one copy out of it.

Of torch.distributed's backends none does this. Gloo's barrier alone takes 330 µs on two cores, and this one 20 µs.
"""

from __future__ import annotations

import mmap
import os
import socket
import time
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch.distributed import Store  # type: ignore[attr-defined]  # torch exports it by its documentation alone

_NUMPY_TYPES = {torch.float32: np.float32, torch.float64: np.float64}


class HostMemory:
    """A part for each of some members, and one for the sum of all parts.

    A socket connects the first member with each other one. The kernel closes it when a process dies, however it dies.
    So a waiting member learns of a death at once: from the socket, or because the first member then closes its own.

    The memory has no name, so nothing remains of it when the last member has ended.

    Attributes:
        waited_s: Seconds that this member has waited for others.
    """

    def __init__(
        self,
        store: Store,
        path: str,
        ranks: Sequence[int],
        rank: int,
        *,
        elements: int,
        timeout_s: float,
    ) -> None:
        """Maps the memory. Returns when this member has mapped it.

        Args:
            store: Where the members find each other; its `get` waits.
            path: A new path for the first member's socket, the same in all members.
            ranks: The members. The first makes the memory.
            rank: This member.
            elements: float32 numbers of a part. Longer vectors are summed piece by piece.
            timeout_s: Most seconds of waiting for another member.

        Raises:
            OSError: The memory cannot be made, or a member is gone.
            RuntimeError: A member does not come.
        """
        self.waited_s = 0.0
        self._size = len(ranks)
        self._place = ranks.index(rank)
        self._part_bytes = -(-max(elements, 1) * 4 // mmap.PAGESIZE) * mmap.PAGESIZE
        self._peers: list[socket.socket] = []
        size = self._part_bytes * (self._size + 1)
        try:
            if self._place == 0:
                descriptor = anonymous_file(size)
                self._connect_others(store, path, ranks, descriptor)
            else:
                descriptor = self._connect_to_first(store, path, rank)
            self._memory = mmap.mmap(descriptor, size)
            os.close(descriptor)
        except BaseException:
            self.close()
            raise
        for peer in self._peers:
            peer.settimeout(timeout_s)

    def pieces(self, flat: torch.Tensor) -> Iterator[torch.Tensor]:
        """Yields consecutive views of a vector that fit into a part."""
        return iter(torch.split(flat, self._part_bytes // flat.element_size()) if len(flat) else ())

    def reduce(self, piece: torch.Tensor) -> torch.Tensor:
        """Adds up one piece of each member, in the order of their ranks; every member sums its share of the elements.

        Each member reads the others' input for its share, and then the others' sums: 2 (n − 1) / n of the vector, as
        in Table 2.

        Args:
            piece: ``[n]``, float32 or float64, on any device; not changed.

        Returns:
            The sum, ``[n]``, in shared memory. It is valid until the next call, which waits for all members.

        Raises:
            OSError: A member is gone, or does not take part in time.
        """
        length = len(piece)
        rows = np.frombuffer(self._memory, _NUMPY_TYPES[piece.dtype]).reshape(self._size + 1, -1)
        parts = rows[:, :length]
        torch.from_numpy(parts[self._place]).copy_(piece)
        self.barrier()
        start, end = (length * place // self._size for place in (self._place, self._place + 1))
        np.add.reduce(parts[:-1, start:end], axis=0, out=parts[-1, start:end])
        self.barrier()
        return torch.from_numpy(parts[-1])

    def barrier(self) -> None:
        """Returns when all members have called it. All then see what each wrote before: the kernel orders it.

        Raises:
            OSError: A member is gone, or does not call it in time.
        """
        began_s = time.monotonic()
        if self._place:
            self._peers[0].sendall(b".")
        for peer in self._peers:
            if not peer.recv(1):
                raise ConnectionResetError("a member is gone")
        if not self._place:
            for peer in self._peers:
                peer.sendall(b".")
        self.waited_s += time.monotonic() - began_s

    def close(self) -> None:
        """Leaves the others, which notice; idempotent."""
        for peer in self._peers:
            peer.close()

    def _connect_others(
        self, store: Store, path: str, ranks: Sequence[int], descriptor: int
    ) -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path)
            listener.listen(self._size)
            store.set(f"{path} listens", "")
            for rank in ranks[1:]:
                # It is connected already, so that accepting does not wait.
                store.get(f"{path} has {rank}")
                peer, _ = listener.accept()
                self._peers.append(peer)
                socket.send_fds(peer, [b"f"], [descriptor])

    def _connect_to_first(self, store: Store, path: str, rank: int) -> int:
        store.get(f"{path} listens")
        first = socket.socket(socket.AF_UNIX)
        self._peers.append(first)
        first.connect(path)
        store.set(f"{path} has {rank}", "")
        _, descriptors, _, _ = socket.recv_fds(first, 1, 1)
        if not descriptors:
            raise ConnectionResetError("the first member is gone")
        return descriptors[0]


def anonymous_file(size: int) -> int:
    """Returns the descriptor of a file in memory. Most containers limit /dev/shm to 64 MiB, but not this."""
    descriptor = os.memfd_create("gmi")
    os.truncate(descriptor, size)
    return descriptor
