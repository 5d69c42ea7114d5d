"""The group of processes that share each gradient, over torch.distributed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as distributed
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch exports it by its documentation alone

from runtime.errors import RunError

CHECK_S = 0.2
"""Seconds between two looks at whether the others still live."""
_POLL_S = 20e-6


class TorchGroup:
    """The processes as `runtime.learner.actor_critic` sees them."""

    def __init__(
        self, rank: int, size: int, *, timeout_s: float, check: Callable[[], None], explain: Callable[[str], RunError],
    ) -> None:
        """Describes the group; `join_group` joins it.

        Args:
            rank: Which process this one is.
            size: Processes in all.
            timeout_s: Seconds that a sum takes at most.
            check: Raises if the others can be seen to have ended.
            explain: Says what it means that a sum failed.
        """
        self.rank, self.size = rank, size
        self._timeout_s, self._check, self._explain = timeout_s, check, explain

    def sum(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replaces each by its sum over all processes, the same bits in all of them.

        Raises:
            RunError: Another process is gone, or does not take part in time.
        """
        with torch.no_grad():
            for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
                alike = [tensor for tensor in tensors if tensor.dtype == dtype]
                flat = torch.cat([tensor.reshape(-1) for tensor in alike])
                self._all_reduce(flat)
                parts = torch.split(flat, [tensor.numel() for tensor in alike])
                for tensor, part in zip(alike, parts, strict=True):
                    tensor.copy_(part.view_as(tensor))

    def _all_reduce(self, flat: torch.Tensor) -> None:
        """Looks for the end instead of waiting for it: a wait for a process that is gone may be a long one."""
        started_s = checked_s = time.monotonic()
        try:
            work = distributed.all_reduce(flat, async_op=True)
            while not work.is_completed():
                time.sleep(_POLL_S)
                now_s = time.monotonic()
                if now_s > checked_s + CHECK_S:
                    checked_s = now_s
                    self._check()
                if now_s > started_s + self._timeout_s:
                    raise self._explain(f"no answer for {self._timeout_s:g} s")
            work.wait()
        except RuntimeError as error:
            raise self._explain(str(error)) from error


def device_of(device: str, rank: int) -> str:
    """Returns the device of one process: on ``cuda`` each has a GPU of its own."""
    return f"cuda:{rank}" if device == "cuda" else device


def join_group(rank: int, size: int, device: str, store: TCPStore, timeout_s: float) -> None:
    """Joins torch's process group; returns when all have."""
    options: dict[str, Any] = {}
    if device == "cuda":
        torch.cuda.set_device(rank)
        options["device_id"] = torch.device("cuda", rank)
    distributed.init_process_group("nccl" if device == "cuda" else "gloo", store=store, rank=rank, world_size=size,
                                   timeout=timedelta(seconds=timeout_s), **options)


def leave_group(*, is_in_step: bool) -> None:
    """Leaves torch's process group.

    Args:
        is_in_step: Whether the others leave it too.
    """
    if not is_in_step and distributed.get_backend() == "nccl":
        # An orderly end would wait for the others.
        distributed.distributed_c10d._abort_process_group()
    else:
        distributed.destroy_process_group()
