"""Strategies for summing the gradients of all instances, by the instances' devices.

Paper: GMI-DRL §4.1, Figure 4. A strategy sums; the caller divides to get the mean. The result has the same bits in all
members, and the same bits again for the same layout: each element is summed in one place, in one order.
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
    """Interface of a strategy."""

    def sum(self, flat: torch.Tensor) -> None:
        """Replaces a vector by its sum over all members."""


class MultiProcess:
    """MPR: all instances, through the host's memory.

    Each member reads the others' input for its share, and then the others' sums: it receives 2 (n − 1) / n of the
    vector from n − 1 others, and sends the same amount. This is Table 2's count for every member.
    """

    def __init__(self, mesh: Mesh, elements: int) -> None:
        self._everyone, self._memory = (
            range(mesh.size),
            SharedMemory(mesh, range(mesh.size), elements),
        )

    def sum(self, flat: torch.Tensor) -> None:
        for piece in self._memory.pieces(flat):
            piece.copy_(self._memory.reduce(piece, self._everyone))


class MultiRing:
    """MRR: t rings of one instance per device, then for each j a ring over instance j of device j, then broadcasts.

    In Table 2 a device's link carries all t rings of g members, and one more. The paper counts g members for the last
    ring, though it has t: 2 (g − 1) (t + 1) / g of the vector. The first t terms are sent by the instances of a device
    together. The last term is exact for t = g. The table omits the broadcast, in which the root sends the vector g − 1
    times here.
    """

    def __init__(self, links: Links, rank: int, devices: Sequence[int]) -> None:
        # Each ring begins with its last member, which returns the sum.
        rings = [
            ring[place:] + ring[:place]
            for place, ring in enumerate(zip(*ranks_by_device(devices), strict=True))
        ]
        ends = [ring[0] for ring in rings]
        self._ring = next(
            team for ring, team in [(ring, links.team(ring)) for ring in rings] if rank in ring
        )
        self._ends, self._is_end = links.team(ends), rank in ends

    def sum(self, flat: torch.Tensor) -> None:
        self._ring.all_reduce(flat)
        if self._is_end:
            self._ends.all_reduce(flat)
        self._ring.broadcast(flat)


class Hierarchical:
    """HAR: the host's memory inside each device, then a ring of the leaders, then the memory again.

    The leader is the lowest rank of a device. Table 2 counts what a leader receives: 2 (t − 1) / t of the vector
    inside its device, and 2 (g − 1) / g in the ring. The table omits the broadcast: here each other member of a device
    reads the whole vector. Devices may hold different numbers of instances.

    Departure: the paper's leaders have id mod M = t, where M is the number of instances of a device. M differs between
    devices in the first case in which Algorithm 1 chooses HAR.
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
                # The same tensor, unless the ring is over GPUs.
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
