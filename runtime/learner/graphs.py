"""Records work on a GPU once, so that repeating it takes one launch."""

from __future__ import annotations

from collections.abc import Callable

import torch

_WARM_UPS = 3


def graphed(work: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """Returns the work as a CUDA graph; on a CPU, the work itself.

    Args:
        work: Reads and writes the same tensors in every call. It is called a few times here, so the caller restores
            afterwards what it writes.
        device: Where these tensors are.
    """
    if device.type != "cuda":
        return work
    beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch has no types for it
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(_WARM_UPS):
            work()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    replay: Callable[[], None] = graph.replay
    return replay
