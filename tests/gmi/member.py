"""A member of a group that takes orders as lines of JSON: ``python -m tests.gmi.member``."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import zlib
from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed import TCPStore

from runtime.errors import RunError
from runtime.gmi import group as group_module
from runtime.gmi.group import InstanceGroup, join_group
from runtime.gmi.links import SocketLinks, TorchLinks
from runtime.gmi.mesh import Mesh
from runtime.gmi.reductions import MultiProcess

REAL_SUM, REAL_TRANSFER = MultiProcess.sum, Mesh._transfer


class Member:
    """Answers each order with the result of the method that it names."""

    group: InstanceGroup

    def __init__(self, port: int) -> None:
        self.store, self.lag_s = TCPStore("127.0.0.1", port, is_master=False), 0.0
        group_module.time = SimpleNamespace(monotonic=lambda: time.monotonic() + self.lag_s)

    def join(self, *, over_torch: bool = False, lag_s: float = 0.0, **options: Any) -> str:
        """Joins a group; returns its reduction.

        Args:
            over_torch: Whether rings use the library.
            lag_s: Seconds that this member adds to its measurements of MPR sums.
        """

        def torch_links(mesh: Mesh) -> TorchLinks:
            return TorchLinks(
                mesh,
                self.store,
                f"{options['name']}/links",
                is_cuda=False,
                timeout_s=options["timeout_s"],
            )

        def lagging(reduction: MultiProcess, flat: torch.Tensor) -> None:
            REAL_SUM(reduction, flat)
            self.lag_s += lag_s

        group_module.SocketLinks = torch_links if over_torch else SocketLinks
        MultiProcess.sum = lagging
        self.group = join_group(store=self.store, device="cpu", **options)
        return self.group.reduction

    def sum(self, shapes: list[tuple[str, list[int]]], seed: int = 0) -> dict[str, Any]:
        """Sums tensors; any member can compute the inputs of all others."""

        def made(rank: int) -> list[torch.Tensor]:
            random = torch.Generator().manual_seed(1000 * seed + rank)
            return [
                torch.randn(shape, dtype=getattr(torch, dtype), generator=random)
                for dtype, shape in shapes
            ]

        tensors, size = made(self.group.rank), self.group.size
        plain = [
            torch.stack([tensor.double() for tensor in every]).mean(0)
            for every in zip(*map(made, range(size)), strict=True)
        ]
        before = self.group.messages, self.group.bytes_sent, self.group.bytes_received
        self.group.sum(tensors)
        after = self.group.messages, self.group.bytes_sent, self.group.bytes_received
        return {
            "bits": [zlib.crc32(tensor.numpy().tobytes()) for tensor in tensors],
            "error": max(
                float((tensor / size - mean).abs().max()) if mean.numel() else 0.0
                for tensor, mean in zip(tensors, plain, strict=True)
            ),
            "counts": [now - then for now, then in zip(after, before, strict=True)],
        }

    def die_at(self, transfer: int) -> int:
        """Dies by SIGKILL in the next sum, before its ``transfer``-th transfer from now, counted from 0."""
        left = [transfer]

        def transfer_or_die(mesh: Mesh, *parts: Any) -> None:
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            REAL_TRANSFER(mesh, *parts)

        Mesh._transfer = transfer_or_die
        return 0

    def hurry(self, timeout_s: float) -> None:
        """Sets this member's time-out."""
        for one in (self.group._mesh, self.group._links):
            if one is not None:
                one._timeout_s = timeout_s

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def transfers(self, length: int) -> int:
        """Returns the number of transfers that this member makes in a sum."""
        made = []

        def counted(mesh: Mesh, *parts: Any) -> None:
            made.append(0)
            REAL_TRANSFER(mesh, *parts)

        Mesh._transfer = counted
        self.group.sum([torch.zeros(length)])
        Mesh._transfer = REAL_TRANSFER
        return len(made)

    def leave(self) -> dict[str, Any]:
        """Leaves the group; returns the open files of this process."""
        self.group.leave()
        self.group.leave()
        with open("/proc/self/maps") as file:
            memory = sum("gmi-reduction" in line for line in file)
        return {
            "files": len(os.listdir("/proc/self/fd")),
            "memory": memory,
            "threads": len(os.listdir("/proc/self/task")),
            "groups": torch.distributed.is_initialized(),
        }

    def seconds(self) -> tuple[float, float]:
        return self.group.reduce_s, self.group.waited_s


def main(port: int) -> None:
    torch.set_num_threads(1)
    member = Member(port)
    for line in sys.stdin:
        order, options = json.loads(line)
        try:
            answer = {"value": getattr(member, order)(**options)}
        except RunError as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
