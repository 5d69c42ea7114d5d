"""Estimates over seeds: interquartile means with intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from runtime.show.estimates import interval_estimate

SEEDS = range(10)
"""Seeds of every study."""


def over_seeds(values: Iterable[float]) -> dict[str, Any]:
    """Returns the interquartile mean and its 95 % interval over seeds."""
    return interval_estimate([float(one) for one in values])


def relative(pairs: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Estimates the differences of pairs, as a share of the second values' mean."""
    base = abs(float(np.mean([theirs for _, theirs in pairs]))) if pairs else 1.0
    return over_seeds((ours - theirs) / base for ours, theirs in pairs)


def percent(estimate: Mapping[str, Any]) -> dict[str, Any]:
    """Returns an estimate times 100."""
    return {
        key: 100.0 * value if isinstance(value, float) else value for key, value in estimate.items()
    }


def number(value: float, digits: int, sign: str = "") -> str:
    """Formats a number with a real minus sign. What would be rounded to 0 has one more digit."""
    formatted = f"{value:{sign},.{digits}f}"
    if not formatted.strip("+-0."):
        formatted = f"{value:{sign}.{digits + 1}f}"
    return formatted.replace("-", "−") if formatted.strip("+-0.") else "0"


def percentage(estimate: Mapping[str, Any]) -> str:
    """Formats a share as ``+4 % [−1, +9]``."""
    return text(percent(estimate), 0, " %", sign=True)


def text(
    estimate: Mapping[str, Any],
    digits: int = 1,
    unit: str = "",
    *,
    sign: bool = False,
) -> str:
    """Formats an estimate as ``3.9 % [0.4, 7.5]``, without an interval for one seed; empty for none."""
    shown = [
        number(estimate[name], digits, "+" if sign else "")
        for name in ("interquartile_mean", "interval_low", "interval_high")
        if estimate[name] is not None
    ]
    return (
        f"{shown[0]}{unit}" + (f" [{', '.join(shown[1:])}]" if shown[1:] else "") if shown else ""
    )
