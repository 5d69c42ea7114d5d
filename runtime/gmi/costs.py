"""The paper's rule for choosing a reduction, and its cost model."""

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


def cost_s(
    reduction: str,
    *,
    devices: int,
    instances: int,
    model_bytes: float,
    host_bandwidth: float,
    link_bandwidth: float,
) -> float:
    """Returns the seconds of a reduction in the paper's model.

    In this model, MPR is the cheapest on 4 devices with 4 instances each if B₂ < 4 B₁, though Algorithm 1 chooses MRR.

    Args:
        reduction: mpr, mrr or har.
        devices: g.
        instances: t, instances per device.
        model_bytes: M_p, bytes of a gradient.
        host_bandwidth: B₁, bytes per second between processes.
        link_bandwidth: B₂, bytes per second between devices.

    Paper: GMI-DRL, Table 2.
    """
    g, t = devices, instances
    across = 2 * (g - 1) * model_bytes / (g * link_bandwidth)
    match reduction:
        case "mpr":
            return 2 * (g * t - 1) * model_bytes / (g * t * host_bandwidth)
        case "mrr":
            return (t + 1) * across
        case "har":
            return across + 2 * (t - 1) * model_bytes / (t * host_bandwidth)
    raise ValueError(f"Table 2 has no {reduction!r}")
