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


def applicable(devices: Sequence[int]) -> tuple[str, ...]:
    """Returns the strategies that suit a layout. On a single device, all of them are MPR.

    Args:
        devices: Device of each rank.
    """
    groups = ranks_by_device(devices)
    if len(groups) <= 1:
        return ("mpr",)
    has_rings = len({len(group) for group in groups}) == 1 and len(groups[0]) <= len(groups)
    return ("mpr", "mrr", "har") if has_rings else ("mpr", "har")


def choice_of_paper(devices: Sequence[int]) -> str:
    """Returns the strategy that the paper's rule chooses: mpr, mrr or har.

    Args:
        devices: Device of each rank.

    Paper: GMI-DRL, Algorithm 1.
    """
    return next(name for name in ("mrr", "har", "mpr") if name in applicable(devices))
