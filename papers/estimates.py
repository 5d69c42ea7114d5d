"""Estimates over seeds: interquartile means with intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from runtime.show.estimates import interval_estimate

SEEDS = range(10)
"""Seeds of every study."""


def over_seeds(values: Iterable[float]) -> dict[str, Any]:
    """Returns the interquartile mean and its 95 % interval over seeds."""
    return interval_estimate([float(one) for one in values])


def number(value: float, form: str) -> str:
    """Formats a number with a real minus sign."""
    return f"{value:{form}}".replace("-", "−")


def text(
    estimate: Mapping[str, Any],
    digits: int = 1,
    unit: str = "",
    *,
    sign: bool = False,
) -> str:
    """Formats an estimate as ``3.9 % [0.4, 7.5]``, without an interval for one seed; empty for none."""
    shown = [
        number(estimate[name], f"{'+' if sign else ''},.{digits}f")
        for name in ("interquartile_mean", "interval_low", "interval_high")
        if estimate[name] is not None
    ]
    return (
        f"{shown[0]}{unit}" + (f" [{', '.join(shown[1:])}]" if shown[1:] else "") if shown else ""
    )
