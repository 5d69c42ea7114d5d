"""Estimates over the runs of several seeds.

Paper: Agarwal et al. 2021, Deep Reinforcement Learning at the Edge of the Statistical Precipice: interquartile means
with percentile intervals of a stratified bootstrap. With a single task, the runs are resampled.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

CONFIDENCE = 0.95
RESAMPLES = 50_000
FEW_SEEDS = 5
ESTIMATED = {
    "evaluation_return_mean": "last evaluation",
    "evaluation_return_best": "best evaluation",
    "spent_usd": "dollars",
    "env_steps_total": "steps",
}
"""Estimated keys of a run's summary, with their names for people."""
_BOOTSTRAP_SEED = 0xB007


def ended_by_itself(summary: Mapping[str, object]) -> bool:
    """Returns whether a run ended neither by an error nor by a signal, as estimates over seeds require."""
    return summary.get("stop_reason") not in (None, "failed", "interrupted")


def interquartile_mean(values: np.ndarray) -> np.ndarray:
    """Returns the mean over the last axis without its lowest and its highest quarter.

    A quarter is rounded down to whole values, so nothing is left out of three or fewer.
    """
    ordered = np.sort(np.asarray(values, np.float64), axis=-1)
    cut = ordered.shape[-1] // 4
    means: np.ndarray = ordered[..., cut : ordered.shape[-1] - cut].mean(axis=-1)
    return means


def interval_estimate(
    values: Sequence[float], *, resamples: int = RESAMPLES
) -> dict[str, float | int | None]:
    """Returns the interquartile mean over runs, and its percentile interval by bootstrap; deterministic.

    Args:
        values: One per run.

    Returns:
        ``seeds``, their number; ``interquartile_mean``, None without values; ``interval_low`` and ``interval_high``,
        None for fewer than two.
    """
    runs = np.asarray(values, np.float64)
    if not len(runs):
        return {"seeds": 0, "interquartile_mean": None, "interval_low": None, "interval_high": None}
    low = high = None
    if len(runs) > 1:
        generator = np.random.default_rng(_BOOTSTRAP_SEED)
        means = interquartile_mean(runs[generator.integers(len(runs), size=(resamples, len(runs)))])
        outside = (1.0 - CONFIDENCE) / 2.0
        low, high = (float(bound) for bound in np.quantile(means, (outside, 1.0 - outside)))
    return {
        "seeds": len(runs),
        "interquartile_mean": float(interquartile_mean(runs)),
        "interval_low": low,
        "interval_high": high,
    }


class Estimates(NamedTuple):
    """Estimates over the runs that ended by themselves.

    Attributes:
        finished: Their number.
        by_key: `interval_estimate` of each of `ESTIMATED`.
        caution: A warning about few runs; empty if there are enough.
    """

    finished: int
    by_key: dict[str, dict[str, float | int | None]]
    caution: str


def estimates(summaries: Iterable[Mapping[str, Any]]) -> Estimates:
    """Estimates over runs by their summaries."""
    finished = [summary for summary in summaries if ended_by_itself(summary)]
    by_key = {
        key: interval_estimate(
            [summary[key] for summary in finished if summary.get(key) is not None]
        )
        for key in ESTIMATED
    }
    return Estimates(len(finished), by_key, caution(len(finished)))


def caution(seeds: int) -> str:
    """Warns about an interval over few seeds; empty if there are enough.

    For up to four runs, the interval goes from the smallest to the largest value, because the smallest run is the
    interquartile mean of more than 2.5 % of all resamples. It misses the median of all possible runs more often than a
    95 % interval should.
    """
    if not seeds:
        return "no seed is finished yet"
    if seeds >= FEW_SEEDS:
        return ""
    say = "one seed says" if seeds == 1 else f"{seeds} seeds say"
    return f"{say} little of how much others would differ; train {FEW_SEEDS} or more"
