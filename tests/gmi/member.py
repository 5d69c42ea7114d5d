"""A member of a group that takes orders as lines of JSON: ``python -m tests.gmi.member``."""

from __future__ import annotations

import json
import os
import signal
import sys
import zlib
from collections.abc import Callable
from typing import Any

import torch

from runtime.errors import RunError
from runtime.gmi.group import InstanceGroup, Meeting
from runtime.gmi.shared_memory import HostMemory

STEPS = [
    (Meeting, "set"),
    (Meeting, "get"),
    (HostMemory, "barrier"),
    (InstanceGroup, "_finish"),
]
"""Whatever a member does for others to see. Before each of these it may die."""


class Member:
    """Answers each order with the result of the method that it names."""

    group: InstanceGroup

    def __init__(self) -> None:
        self.steps_left = -1
        for owner, name in STEPS:
            setattr(owner, name, self._counted(getattr(owner, name)))

    def join(self, *, die_at: int = -1, **options: Any) -> None:
        """Joins a group; dies before this step from now, counted from 0."""
        self.steps_left = die_at
        self.group = InstanceGroup(device="cpu", **options)

    def sum(
        self, shapes: list[tuple[str, list[int]]], seed: int = 0, die_at: int = -1
    ) -> dict[str, Any]:
        """Sums tensors; any member can compute the inputs of all others."""
        self.steps_left = die_at

        def made(rank: int) -> list[torch.Tensor]:
            random = torch.Generator().manual_seed(1000 * seed + rank)
            return [
                torch.randn(shape, dtype=getattr(torch, dtype), generator=random)
                for dtype, shape in shapes
            ]

        tensors = made(self.group.rank)
        inputs = list(zip(*map(made, range(self.group.size)), strict=True))
        totals = [torch.stack([tensor.double() for tensor in every]).sum(0) for every in inputs]
        self.group.sum(tensors)
        return {
            "bits": [zlib.crc32(tensor.numpy().tobytes()) for tensor in tensors],
            "error": max(
                float((tensor - total).abs().max()) if total.numel() else 0.0
                for tensor, total in zip(tensors, totals, strict=True)
            ),
            "is_in_order": all(
                torch.equal(tensor, sum(every[1:], every[0]))
                for tensor, every in zip(tensors, inputs, strict=True)
            ),
            "seconds": [self.group.waited_s, self.group.reduce_s],
        }

    def leave(self) -> None:
        self.group.leave()
        self.group.leave()
        del self.group

    def holds(self) -> list[int]:
        """Returns the numbers of open files and of threads of this process."""
        return [len(os.listdir(f"/proc/self/{kind}")) for kind in ("fd", "task")]

    def _counted(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            if self.steps_left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self.steps_left -= 1
            return method(*args, **options)

        return counted


def main() -> None:
    torch.set_num_threads(1)
    member = Member()
    for line in sys.stdin:
        order, options = json.loads(line)
        try:
            answer = {"value": getattr(member, order)(**options)}
        except RunError as error:
            answer = {"error": f"{error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
