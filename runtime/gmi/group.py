"""The group of instances that share each gradient."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import torch
from torch.distributed import Store  # type: ignore[attr-defined]  # torch exports it by its documentation alone

from runtime.errors import ExperimentError, RunError
from runtime.gmi.costs import applicable, choice_of_paper
from runtime.gmi.links import Links, Ring, SocketLinks, TorchLinks
from runtime.gmi.mesh import Mesh
from runtime.gmi.reductions import Flat, Hierarchical, MultiProcess, MultiRing, Reduction

_TRIALS = 5


def join_group(
    *,
    rank: int,
    devices: Sequence[int],
    store: Store,
    name: str,
    reduction: str,
    timeout_s: float,
    device: str,
    elements: int,
) -> InstanceGroup:
    """Joins a group. Returns when all members have joined.

    Args:
        rank: Rank of this member, from 0.
        devices: The device of each rank. Their number is the size of the group.
        store: Where the members find each other, hosted by a process that outlives the group.
        name: Name of the group, new in this store. After a death, all others leave and join a group of another name.
        reduction: mpr, mrr, har or flat; paper = Algorithm 1 chooses; auto = the fastest that the layout allows,
            measured now. Another choice rounds sums differently: give a resumed run its `reduction` by name.
        timeout_s: Maximum seconds that a member waits for another, here and in a sum.
        device: Where the tensors are: ``cpu``, or this instance's ``cuda:N``.
        elements: float32 numbers of a usual sum. Longer sums work piece by piece.

    Raises:
        ExperimentError: The layout does not allow the reduction.
        RunError: A member does not join in time, or is gone.
    """
    return InstanceGroup(rank, devices, store, name, reduction, timeout_s, device, elements)


class InstanceGroup:
    """A member's view of the group; see `runtime.learner.share.ProcessGroup`.

    Attributes:
        rank: Rank of this member.
        size: Number of members.
        reduction: The chosen strategy: mpr, mrr, har or flat.
        reduce_s: Seconds that this member has spent in sums.
    """

    def __init__(
        self,
        rank: int,
        devices: Sequence[int],
        store: Store,
        name: str,
        reduction: str,
        timeout_s: float,
        device: str,
        elements: int,
    ) -> None:
        """Joins the group; see `join_group`."""
        self._devices, self._device, self._elements = tuple(devices), device, elements
        self._store, self._name, self._timeout_s = store, name, timeout_s
        self.rank, self.size, self.reduce_s, self._made = rank, len(devices), 0.0, 0
        allowed = applicable(devices, is_cuda=device != "cpu")
        if reduction not in ("auto", "paper", *allowed):
            raise ExperimentError(
                f"reduction {reduction}: not for instances on the devices {list(devices)}; "
                f"allowed: auto | paper | {' | '.join(allowed)}"
            )
        self._buffers: dict[torch.dtype, torch.Tensor] = {}
        self._reduction: Reduction | None = None
        self._links: Links | None = None
        self._mesh = Mesh(rank, self.size, store, name, timeout_s=timeout_s)
        try:
            self.reduction = (
                choice_of_paper(devices)
                if reduction == "paper"
                else self._quickest(allowed)
                if reduction == "auto"
                else reduction
            )
            self._reduction = self._make(self.reduction)
        except BaseException as error:
            self.leave()
            if isinstance(error, OSError | RuntimeError):
                raise RunError(
                    f"member {rank} of {self.size} cannot join group {name}: {error}"
                ) from error
            raise
        self._mesh.messages = self._mesh.bytes_sent = self._mesh.bytes_received = 0
        self._mesh.waited_s = 0.0

    @property
    def messages(self) -> int:
        """Number of messages that this member has sent. A read of its memory by another member counts as one."""
        return self._mesh.messages

    @property
    def bytes_sent(self) -> int:
        """Bytes of these messages."""
        return self._mesh.bytes_sent

    @property
    def bytes_received(self) -> int:
        """Bytes of the messages that this member has received."""
        return self._mesh.bytes_received

    @property
    def waited_s(self) -> float:
        """Seconds of `reduce_s` spent waiting for others. Sums by torch.distributed count completely."""
        return self._mesh.waited_s

    def sum(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replaces each tensor by its sum over all members, with the same bits in all. After an error, sums end.

        Args:
            tensors: float32 or float64, of any shapes.

        Raises:
            RunError: A member is gone, or does not take part in time.
        """
        if self._reduction is None:
            raise RunError(f"group {self._name} has ended")
        started_s = time.monotonic()
        try:
            with torch.no_grad():
                for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
                    alike = [tensor for tensor in tensors if tensor.dtype == dtype]
                    flat = self._flat(dtype, sum(tensor.numel() for tensor in alike))
                    torch.cat([tensor.reshape(-1) for tensor in alike], out=flat)
                    if self.size > 1:
                        self._reduction.sum(flat)
                    parts = torch.split(flat, [tensor.numel() for tensor in alike])
                    for tensor, part in zip(alike, parts, strict=True):
                        tensor.copy_(part.view_as(tensor))
        except BaseException as error:
            self.leave()
            if isinstance(error, OSError | RuntimeError):
                raise RunError(
                    f"member {self.rank} of {self.size} lost group {self._name}: {error}"
                ) from error
            raise
        self.reduce_s += time.monotonic() - started_s

    def leave(self) -> None:
        """Leaves the group without waiting for the others; idempotent."""
        # Tell the others first.
        self._mesh.close()
        self._drop()

    def _flat(self, dtype: torch.dtype, length: int) -> torch.Tensor:
        # Keep it, because fresh memory costs more than the copy into it.
        if dtype not in self._buffers or len(self._buffers[dtype]) < length:
            self._buffers[dtype] = torch.empty(length, dtype=dtype, device=self._device)
        return self._buffers[dtype][:length]

    def _make(self, name: str) -> Reduction:
        if name == "mpr":
            return MultiProcess(self._mesh, self._elements)
        self._made += 1
        self._links = (
            SocketLinks(self._mesh)
            if self._device == "cpu" and name != "flat"
            else TorchLinks(
                self._mesh,
                self._store,
                f"{self._name}/torch/{self._made}",
                is_cuda=self._device != "cpu",
                timeout_s=self._timeout_s,
            )
        )
        if name == "mrr":
            return MultiRing(self._links, self.rank, self._devices)
        if name == "har":
            return Hierarchical(self._mesh, self._links, self._devices, self._elements)
        return Flat(self._links, self.size)

    def _drop(self) -> None:
        links, self._reduction, self._links = self._links, None, None
        if links is not None:
            links.close()

    def _quickest(self, names: Sequence[str]) -> str:
        everyone, seconds = range(self.size), []
        for name in names:
            reduction, flat, trials = (
                self._make(name),
                torch.zeros(self._elements, device=self._device),
                [],
            )
            for _ in range(_TRIALS + 1):
                self._mesh.barrier(everyone)
                started_s = time.monotonic()
                reduction.sum(flat)
                flat.cpu()
                trials.append(time.monotonic() - started_s)
            seconds.append(statistics.median(trials[1:]))
            self._drop()
        # All members choose by the same sums.
        total = torch.tensor(seconds, dtype=torch.float64)
        Ring(self._mesh, everyone).all_reduce(total)
        return names[int(total.argmin())]
