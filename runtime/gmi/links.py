"""Teams of members that sum and copy tensors: by our own rings or the library's operations."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as distributed
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]  # torch exports it by its documentation alone

from runtime.errors import RunError
from runtime.gmi.mesh import PATIENCE_S, Mesh

_POLL_S = 20e-6
_WATCH_S = 0.05
_MEETING_S = 30.0
"""Seconds for all, who are alive, to meet again in torch's group. The library does not notice deaths meanwhile."""


class Team(Protocol):
    """Some members, in the order of a ring."""

    def all_reduce(self, flat: torch.Tensor) -> None:
        """Replaces a vector by its sum over the team, bit-identical in all members."""

    def broadcast(self, flat: torch.Tensor) -> None:
        """Replaces a vector by the vector of the team's first member."""


class Links(Protocol):
    """Makes teams."""

    def team(self, ranks: Sequence[int]) -> Team:
        """Makes a team. All members make the same teams in the same order, including teams without them."""

    def close(self) -> None:
        """Closes the links without waiting for others."""


class SocketLinks:
    """Teams of tensors on the CPU, over a mesh."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh

    def team(self, ranks: Sequence[int]) -> Team:
        return Ring(self._mesh, ranks)

    def close(self) -> None:
        """Does nothing, because the mesh owns the sockets."""


class Ring:
    """Sums by reduce-scatter and all-gather: each member sends 2 (n − 1) / n of a vector in 2 (n − 1) messages."""

    def __init__(self, mesh: Mesh, ranks: Sequence[int]) -> None:
        self._mesh, self._ranks = mesh, tuple(ranks)

    def all_reduce(self, flat: torch.Tensor) -> None:
        values, size, place = flat.numpy(), len(self._ranks), self._ranks.index(self._mesh.rank)
        after, before = self._ranks[(place + 1) % size], self._ranks[place - 1]
        chunks = [
            values[len(values) * i // size : len(values) * (i + 1) // size] for i in range(size)
        ]
        arrived = np.empty_like(chunks[-1])
        for step in range(2 * (size - 1)):
            sent, received = chunks[(place - step) % size], chunks[(place - step - 1) % size]
            if step < size - 1:
                into = arrived[: len(received)]
                self._mesh.exchange({after: _bytes(sent)}, {before: _bytes(into)})
                received += into
            else:
                self._mesh.exchange({after: _bytes(sent)}, {before: _bytes(received)})

    def broadcast(self, flat: torch.Tensor) -> None:
        first, *others = self._ranks
        part = _bytes(flat.numpy())
        if self._mesh.rank == first:
            self._mesh.exchange(dict.fromkeys(others, part), {})
        else:
            self._mesh.exchange({}, {first: part})


class TorchLinks:
    """Teams over torch.distributed: NCCL between GPUs, otherwise gloo. Its messages are not counted."""

    def __init__(
        self, mesh: Mesh, store: Store, name: str, *, is_cuda: bool, timeout_s: float
    ) -> None:
        """Joins torch's process group; a process has one at a time.

        Args:
            mesh: Reports deaths.
            store: Where the members find each other.
            name: Name of the group, new in this store.
            is_cuda: Whether the tensors are on GPUs.
            timeout_s: Maximum seconds of an operation.

        Raises:
            RuntimeError: A member is gone, or does not come in time.
        """
        self._mesh, self._timeout_s, self._is_cuda = mesh, timeout_s, is_cuda
        for variable, value in _ENVIRONMENT.items():
            os.environ.setdefault(variable, value)
        mesh.barrier(range(mesh.size))
        distributed.init_process_group(
            "nccl" if is_cuda else "gloo",
            store=PrefixStore(name, store),
            rank=mesh.rank,
            world_size=mesh.size,
            timeout=timedelta(seconds=min(timeout_s, _MEETING_S)),
        )
        distributed.distributed_c10d._set_pg_timeout(timedelta(seconds=timeout_s))

    def team(self, ranks: Sequence[int]) -> Team:
        made: Any = (
            distributed.new_group(list(ranks), timeout=timedelta(seconds=self._timeout_s))
            if len(ranks) < self._mesh.size
            else distributed.group.WORLD
        )
        return _TorchTeam(self, made, ranks[0])

    def finish(self, work: distributed.Work) -> None:
        """Polls for the end instead of waiting, because waiting for a dead process may take long.

        Raises:
            RunError: A member is gone, or the operation takes too long.
        """
        started_s = time.monotonic()
        try:
            while not self._is_done(work):
                self._mesh.watch(0)
                if time.monotonic() > started_s + self._timeout_s:
                    raise RunError(f"no answer for {self._timeout_s:g} s")
            work.wait()
        except RuntimeError:
            # A member may have left because of a death that the mesh is about to notice.
            self._mesh.watch(PATIENCE_S)
            raise
        self._mesh.waited_s += time.monotonic() - started_s

    def _is_done(self, work: distributed.Work) -> bool:
        if self._is_cuda:
            time.sleep(_POLL_S)
        else:
            # Ignore errors here: the next wait raises what the operation raised.
            with suppress(RuntimeError):
                work.wait(timedelta(seconds=_WATCH_S))
        return work.is_completed()

    def close(self) -> None:
        if self._is_cuda:
            # An orderly shutdown would wait for the others.
            distributed.distributed_c10d._abort_process_group()
        else:
            distributed.destroy_process_group()


class _TorchTeam:
    def __init__(self, links: TorchLinks, group: Any, first: int) -> None:
        self._links, self._group, self._first = links, group, first

    def all_reduce(self, flat: torch.Tensor) -> None:
        self._links.finish(distributed.all_reduce(flat, group=self._group, async_op=True))

    def broadcast(self, flat: torch.Tensor) -> None:
        self._links.finish(
            distributed.broadcast(flat, self._first, group=self._group, async_op=True)
        )


_ENVIRONMENT = {
    # Listen where no other machine can connect.
    "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0",
    "NCCL_SOCKET_IFNAME": "lo",
    # NCCL's watchdog would end the process. The mesh distinguishes dead from slow processes and saves the run.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
}


def _bytes(values: np.ndarray) -> memoryview:
    return values.view(np.uint8).data
