"""The group of instances that share each gradient: torch.distributed between devices, the host's memory within them.

Paper: GMI-DRL §4.1, Figure 4. A strategy sums; the caller divides to get the mean. The result has the same bits in all
members, and the same bits again for the same layout.

Departure: The leaders of HAR are each device's lowest rank. The paper's have id mod M = t, where M is the number of
instances of a device, which differs between devices in the first case in which Algorithm 1 chooses HAR.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as distributed
from torch.distributed import FileStore, PrefixStore, Store  # type: ignore[attr-defined]  # exported by documentation alone

from runtime.errors import RunError
from runtime.gmi.shared_memory import HostMemory

_CALLED_OFF = "called off"
_LOOK_S = 0.005
"""Seconds between looks for a member that has not come."""
_POLL_S = 20e-6
"""Seconds between looks whether an operation has ended."""
_WATCH_S = 0.1
"""Seconds between looks whether the group was called off, while an operation runs."""
_CLOSE_S = 1.0
"""Most seconds that closing connections takes."""
_ENVIRONMENT = {
    # Listen where no other machine can connect.
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
    # NCCL's watchdog would end the process.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
}

Strategy = Callable[[torch.Tensor], None]
"""Replaces a vector by its sum over all members."""


def ranks_by_device(devices: Sequence[int]) -> list[list[int]]:
    """Returns the members of each device, lowest rank first. Devices are sorted by number.

    Args:
        devices: Device of each rank.
    """
    return [
        [rank for rank, own in enumerate(devices) if own == device]
        for device in sorted(set(devices))
    ]


def reductions(devices: Sequence[int]) -> tuple[str, ...]:
    """Returns the strategies that suit a layout, the paper's choice first. On one device, all are MPR.

    Paper: GMI-DRL, Algorithm 1.

    Args:
        devices: Device of each rank.
    """
    sizes = [len(group) for group in ranks_by_device(devices)]
    if len(sizes) == 1:
        return ("mpr",)
    has_rings = len(set(sizes)) == 1 and sizes[0] <= len(sizes)
    return ("mrr", "har", "mpr") if has_rings else ("har", "mpr")


class Meeting(Store):
    """Where the members of a group find each other: a file. Waiting ends when the group is called off."""

    def __init__(self, path: str, timeout_s: float) -> None:
        """Opens the file, and makes it if there is none."""
        super().__init__()
        self._file = FileStore(path, -1)
        self._timeout_s = timeout_s

    def set(self, key: str, value: Any) -> None:
        """Sets a value."""
        self._file.set(key, value)

    def add(self, key: str, amount: int) -> int:
        """Adds to a number, and returns the sum."""
        return self._file.add(key, amount)

    def check(self, keys: list[str]) -> bool:
        """Returns whether all keys have values."""
        return self._file.check(keys)

    def get(self, key: str) -> bytes:
        """Returns a value, as soon as there is one."""
        self.wait([key])
        return self._file.get(key)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Waits until all keys have values.

        Raises:
            RunError: The group was called off, or a value does not come in time.
        """
        deadline_s = time.monotonic() + self._timeout_s
        while not self.check(keys):
            self.look(deadline_s)
            time.sleep(_LOOK_S)

    def look(self, deadline_s: float) -> None:
        """Raises if the group was called off, or if it is too late."""
        if self.check([_CALLED_OFF]):
            raise RunError("it was called off")
        if time.monotonic() > deadline_s:
            raise RunError(f"no answer for {self._timeout_s:g} s")


def call_off(path: str) -> None:
    """Makes the members of a group that meets there give up, because one will not come."""
    FileStore(path, -1).set(_CALLED_OFF, "")


class InstanceGroup:
    """A member's view of the group; see `runtime.learner.share.ProcessGroup`.

    Attributes:
        rank: Rank of this member.
        size: Number of members.
        reduce_s: Seconds that this member has spent in sums.
        waited_s: Seconds of `reduce_s` spent waiting for others. Sums by torch.distributed count completely.
    """

    def __init__(
        self,
        *,
        rank: int,
        devices: Sequence[int],
        path: str,
        reduction: str,
        timeout_s: float,
        device: str,
        elements: int,
    ) -> None:
        """Joins a group. Returns when all members have joined.

        Args:
            rank: Rank of this member, from 0.
            devices: The device of each rank. Their number is the size of the group.
            path: A new path, at which the members meet. After a death, all others leave and meet at another one.
            reduction: mpr, mrr or har, one of `reductions`.
            timeout_s: Maximum seconds that a member waits for another, here and in a sum.
            device: Where the tensors are: ``cpu``, or this instance's ``cuda:N``.
            elements: float32 numbers of a usual sum. Longer sums work piece by piece.

        Raises:
            RunError: A member does not join in time, or is gone.
        """
        self.rank = rank
        self.size = len(devices)
        self.reduce_s = 0.0
        self._devices = tuple(devices)
        self._path = path
        self._timeout_s = timeout_s
        self._device = device
        self._elements = elements
        self._torch_s = 0.0
        self._memories: list[HostMemory] = []
        # Nothing else refers to these, so that removing one closes its connections.
        self._teams: dict[str, Any] = {}
        self._buffers: dict[torch.dtype, torch.Tensor] = {}
        self._strategy: Strategy | None = None
        for variable, value in _ENVIRONMENT.items():
            os.environ.setdefault(variable, value)
        with self._leaving("join"):
            self._meeting = Meeting(path, timeout_s)
            if self._meeting.add(f"member {rank}", 1) > 1:
                raise RunError("another process was this member")
            self._strategy = self._make(reduction)

    @property
    def waited_s(self) -> float:
        """See above."""
        return self._torch_s + sum(memory.waited_s for memory in self._memories)

    def sum(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replaces each tensor by its sum over all members, with the same bits in all. After an error, sums end.

        Args:
            tensors: float32 or float64, of any shapes.

        Raises:
            RunError: A member is gone, or does not take part in time.
        """
        started_s = time.monotonic()
        with torch.no_grad(), self._leaving("sum in"):
            if self._strategy is None:
                raise RunError("it has ended")
            for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
                alike = [tensor for tensor in tensors if tensor.dtype == dtype]
                flat = self._flat(dtype, sum(tensor.numel() for tensor in alike))
                torch.cat([tensor.reshape(-1) for tensor in alike], out=flat)
                self._strategy(flat)
                parts = torch.split(flat, [tensor.numel() for tensor in alike])
                for tensor, part in zip(alike, parts, strict=True):
                    tensor.copy_(part.view_as(tensor))
        self.reduce_s += time.monotonic() - started_s

    def leave(self) -> None:
        """Leaves the group without waiting for the others; idempotent."""
        self._strategy = None
        for memory in self._memories:
            memory.close()
        teams, self._teams = self._teams, {}
        if self._device != "cpu":
            # An orderly end would wait for the others.
            for name in teams:
                teams[name].abort()
        # In a thread, because gloo waits for operations that run, and others may not have noticed yet.
        thread = threading.Thread(target=teams.clear, daemon=True)
        thread.start()
        thread.join(_CLOSE_S)

    @contextmanager
    def _leaving(self, what: str) -> Any:
        """Leaves the group if anything fails."""
        try:
            yield
        except BaseException as error:
            self.leave()
            if isinstance(error, OSError | RuntimeError | RunError):
                raise RunError(
                    f"member {self.rank} of {self.size} cannot {what} its group: {error}"
                ) from error
            raise

    def _flat(self, dtype: torch.dtype, length: int) -> torch.Tensor:
        # Keep it, because fresh memory costs more than the copy into it.
        if dtype not in self._buffers or len(self._buffers[dtype]) < length:
            self._buffers[dtype] = torch.empty(length, dtype=dtype, device=self._device)
        return self._buffers[dtype][:length]

    # Strategies

    def _make(self, name: str) -> Strategy:
        groups = ranks_by_device(self._devices)
        if name == "mpr":
            return self._multi_process()
        if name == "mrr":
            return self._multi_ring(list(zip(*groups, strict=True)))
        return self._hierarchical(groups)

    def _multi_process(self) -> Strategy:
        """MPR: all instances, through the host's memory."""
        memory = self._memory(range(self.size))

        def sum_up(flat: torch.Tensor) -> None:
            for piece in memory.pieces(flat):
                piece.copy_(memory.reduce(piece))

        return sum_up

    def _multi_ring(self, rings: Sequence[Sequence[int]]) -> Strategy:
        """MRR: t rings of one instance per device, then a ring over instance j of device j, then broadcasts.

        In Table 2 a device's link carries all t rings of g members, and one more. The paper counts g members for the
        last ring, though it has t: 2 (g − 1) (t + 1) / g of the vector. The table omits the broadcast.
        """
        place = next(place for place, ring in enumerate(rings) if self.rank in ring)
        self._connect("ring", place, rings[place])
        ends = [ring[place] for place, ring in enumerate(rings)]
        if self.rank in ends:
            self._connect("ends", 0, ends)

        def sum_up(flat: torch.Tensor) -> None:
            self._finish(self._teams["ring"].allreduce(flat))
            if self.rank in ends:
                self._finish(self._teams["ends"].allreduce(flat))
            self._finish(self._teams["ring"].broadcast(flat, place))

        return sum_up

    def _hierarchical(self, groups: Sequence[Sequence[int]]) -> Strategy:
        """HAR: the host's memory inside each device, then a ring of the leaders, then the memory again.

        Table 2 counts what a leader receives: 2 (t − 1) / t of the vector inside its device, and 2 (g − 1) / g in the
        ring. The table omits the broadcast: here each other member of a device reads the whole vector. Devices may
        hold different numbers of instances.
        """
        here = next(group for group in groups if self.rank in group)
        memory = self._memory(here)
        leaders = [group[0] for group in groups]
        if self.rank in leaders:
            self._connect("leaders", 0, leaders)

        def sum_up(flat: torch.Tensor) -> None:
            for piece in memory.pieces(flat):
                total = memory.reduce(piece)
                if self.rank in leaders:
                    # The same tensor, unless the ring is over GPUs.
                    moved = total.to(flat.device)
                    self._finish(self._teams["leaders"].allreduce(moved))
                    total.copy_(moved)
                memory.barrier()
                piece.copy_(total)

        return sum_up

    def _memory(self, ranks: Sequence[int]) -> HostMemory:
        path = f"{self._path}-{len(self._memories)}-{ranks[0]}"
        memory = HostMemory(
            self._meeting,
            path,
            ranks,
            self.rank,
            elements=self._elements,
            timeout_s=self._timeout_s,
        )
        self._memories.append(memory)
        return memory

    def _connect(self, name: str, number: int, ranks: Sequence[int]) -> None:
        """Makes torch's process group of these members: gloo on CPUs, NCCL on GPUs."""
        make: Any = (
            distributed.ProcessGroupNCCL if self._device != "cpu" else distributed.ProcessGroupGloo
        )
        # In a thread, because gloo does not notice that a member has died while it connects them.
        executor = ThreadPoolExecutor(1)
        made = executor.submit(
            make,
            PrefixStore(f"{name} {number}", self._meeting),
            ranks.index(self.rank),
            len(ranks),
            timedelta(seconds=self._timeout_s),
        )
        executor.shutdown(wait=False)
        self._wait_until(made.done)
        self._teams[name] = made.result()

    def _finish(self, work: Any) -> None:
        started_s = time.monotonic()
        self._wait_until(work.is_completed)
        work.wait()
        self._torch_s += time.monotonic() - started_s

    def _wait_until(self, is_done: Callable[[], bool]) -> None:
        """Polls, because the libraries do not notice every death."""
        started_s = time.monotonic()
        look_s = started_s + _WATCH_S
        while not is_done():
            time.sleep(_POLL_S)
            if time.monotonic() > look_s:
                self._meeting.look(started_s + self._timeout_s)
                look_s += _WATCH_S
