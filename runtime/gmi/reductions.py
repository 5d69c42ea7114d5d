"""How the gradients of all instances are summed, by where the instances are.

Paper: GMI-DRL §4.1, Figure 4. A strategy sums; whoever wants the mean divides. Every strategy ends with the same bits
in all members, and with the same bits again for the same layout: each element is summed in one place, in one order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from runtime.gmi.costs import ranks_by_device
from runtime.gmi.links import Links
from runtime.gmi.mesh import Mesh
from runtime.gmi.shared_memory import SharedMemory


class Reduction(Protocol):
    """A strategy."""

    def sum(self, flat: torch.Tensor) -> None:
        """Replaces a vector by its sum over all members."""


class MultiProcess:
    """MPR: all instances, through the host's memory.

    Each reads what the others wrote of its share, and what they summed of theirs: it receives 2 (n − 1) / n of the
    vector from n − 1 others, and sends as much. That is Table 2's count, of every member.
    """

    def __init__(self, mesh: Mesh, elements: int) -> None:
        self._everyone, self._memory = range(mesh.size), SharedMemory(mesh, range(mesh.size), elements)

    def sum(self, flat: torch.Tensor) -> None:
        for piece in self._memory.pieces(flat):
            piece.copy_(self._memory.reduce(piece, self._everyone))


class MultiRing:
    """MRR: t rings of one instance a device each; then a ring over instance j of device j for each j; then broadcasts.

    In Table 2 a device's link carries all t rings of g members, and one more, for which the paper counts g members
    though it has t: 2 (g − 1) (t + 1) / g of the vector. The first t terms are what the instances of a device send
    together; the last one is exact for t = g. The broadcast is left out there: here its root sends the vector g − 1
    times.
    """

    def __init__(self, links: Links, rank: int, devices: Sequence[int]) -> None:
        # Each begins with its end, from which the sum comes back.
        rings = [ring[place:] + ring[:place] for place, ring in enumerate(zip(*ranks_by_device(devices), strict=True))]
        ends = [ring[0] for ring in rings]
        self._ring = next(team for ring, team in [(ring, links.team(ring)) for ring in rings] if rank in ring)
        self._ends, self._is_end = links.team(ends), rank in ends

    def sum(self, flat: torch.Tensor) -> None:
        self._ring.all_reduce(flat)
        if self._is_end:
            self._ends.all_reduce(flat)
        self._ring.broadcast(flat)


class Hierarchical:
    """HAR: the host's memory inside each device, then a ring of the leaders, then the memory again.

    The leader is the lowest rank of a device. Table 2 counts what a leader receives: 2 (t − 1) / t of the vector
    inside its device, and 2 (g − 1) / g in the ring. The broadcast is left out there: here each other member of a
    device reads the whole vector. Devices may hold different numbers of instances.

    Departure: the paper's leaders are those with id mod M = t, M the number of instances of a device, which differs
    between devices just where Algorithm 1 chooses HAR first.
    """

    def __init__(self, mesh: Mesh, links: Links, devices: Sequence[int], elements: int) -> None:
        groups = ranks_by_device(devices)
        self._mesh, self._here = mesh, groups[sorted(set(devices)).index(devices[mesh.rank])]
        self._memory = SharedMemory(mesh, self._here, elements)
        self._leaders, self._leader = links.team([group[0] for group in groups]), self._here[0]

    def sum(self, flat: torch.Tensor) -> None:
        for piece in self._memory.pieces(flat):
            total = self._memory.reduce(piece, self._here[:1])
            size = piece.element_size() * len(piece)
            if self._mesh.rank == self._leader:
                # The same tensor, unless the ring is one of GPUs.
                moved = total.to(flat.device)
                self._leaders.all_reduce(moved)
                total.copy_(moved)
                others = len(self._here) - 1
                self._mesh.count(others, sent=others * size, received=0)
            else:
                self._mesh.count(0, sent=0, received=size)
            self._memory.barrier()
            piece.copy_(total)


class Flat:
    """One operation of the library over all instances."""

    def __init__(self, links: Links, size: int) -> None:
        self._everyone = links.team(range(size))

    def sum(self, flat: torch.Tensor) -> None:
        self._everyone.all_reduce(flat)
