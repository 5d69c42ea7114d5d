"""The paper's rule for choosing a reduction."""

from __future__ import annotations

from collections.abc import Sequence


def ranks_by_device(devices: Sequence[int]) -> list[list[int]]:
    """Returns the members of each device, lowest rank first. Devices are sorted by number.

    Args:
        devices: Device of each rank.
    """
    return [
        [rank for rank, own in enumerate(devices) if own == device]
        for device in sorted(set(devices))
    ]


def applicable(devices: Sequence[int], *, is_cuda: bool = False) -> tuple[str, ...]:
    """Returns the strategies that suit a layout.

    Args:
        devices: Device of each rank.
        is_cuda: Whether the tensors are on GPUs. NCCL refuses two members of a team on the same one.
    """
    groups = ranks_by_device(devices)
    has_rings = len({len(group) for group in groups}) == 1 and len(groups[0]) <= len(groups)
    is_flat = not is_cuda or len(groups) == len(devices)
    return ("mpr", *["mrr"] * has_rings, "har", *["flat"] * is_flat)


def choice_of_paper(devices: Sequence[int]) -> str:
    """Returns the strategy that the paper's rule chooses: mpr, mrr or har.

    Args:
        devices: Device of each rank.

    Paper: GMI-DRL, Algorithm 1.
    """
    groups = ranks_by_device(devices)
    if len(groups) <= 1:
        return "mpr"
    return "mrr" if "mrr" in applicable(devices) else "har"
