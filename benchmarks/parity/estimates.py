"""Compares the returns of two sides with rliable's estimates, without the library.

Paper: Agarwal et al. 2021, Deep Reinforcement Learning at the Edge of the Statistical Precipice. Runs are resampled
within each environment and each side, independently of one another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from runtime.records.estimates import CONFIDENCE, RESAMPLES, interquartile_mean, interval_estimate

Scores = Mapping[str, np.ndarray]
"""One number per run, ``[runs]``, by environment."""
METHOD = (
    f"interquartile means; {CONFIDENCE:.0%} percentile intervals of {RESAMPLES:,} bootstrap resamples of the runs, "
    "stratified by environment and side; over all environments of scores that are 0 at the return of uniform actions "
    "and 1 at the peer's interquartile mean; the probability of improvement is that a run of ours returns more than "
    "one of the peer's, ties counted half"
)
_SEED = 0x9A71
_DECIMALS = 4
_POINTS, _WINDOW_SHARE = 50, 0.06


def compared(ours: Scores, peer: Scores, chance: Mapping[str, float]) -> dict[str, Any]:
    """Returns estimates for each environment, and over all of them with normalized scores.

    A score is 0 at the return of uniformly random actions, and 1 at the peer's interquartile mean, both taken as
    constants.

    Args:
        chance: Mean return of uniformly random actions, by environment.
    """
    unit = {name: float(interquartile_mean(peer[name])) - chance[name] for name in ours}
    scores = [
        {name: (side[name] - chance[name]) / unit[name] for name in ours} for side in (ours, peer)
    ]
    estimate = partial(
        _estimate, runs=min(len(runs) for side in (ours, peer) for runs in side.values())
    )
    generator = np.random.default_rng(_SEED)
    resampled = [{name: _resampled(side[name], generator) for name in side} for side in scores]
    return {
        "environments": {
            name: {
                "ours": interval_estimate(ours[name]),
                "peer": interval_estimate(peer[name]),
                "chance": chance[name],
                "difference": estimate(
                    interquartile_mean(ours[name]) - interquartile_mean(peer[name]),
                    unit[name]
                    * (
                        interquartile_mean(resampled[0][name])
                        - interquartile_mean(resampled[1][name])
                    ),
                ),
                "probability_of_improvement": estimate(
                    probability_of_improvement(ours[name], peer[name]),
                    probability_of_improvement(resampled[0][name], resampled[1][name]),
                ),
            }
            for name in ours
        },
        "all_environments": {
            "ours": estimate(_aggregate(scores[0]), _aggregate(resampled[0])),
            "peer": estimate(_aggregate(scores[1]), _aggregate(resampled[1])),
            "difference": estimate(
                _aggregate(scores[0]) - _aggregate(scores[1]),
                _aggregate(resampled[0]) - _aggregate(resampled[1]),
            ),
            "probability_of_improvement": estimate(
                _mean_improvement(scores[0], scores[1]),
                _mean_improvement(resampled[0], resampled[1]),
            ),
        },
    }


def probability_of_improvement(ours: np.ndarray, peer: np.ndarray) -> np.ndarray:
    """Returns the share of pairs in which ours is larger, over the last axis. Ties count half: Mann–Whitney U / n·m."""
    differences = ours[..., :, None] - peer[..., None, :]
    return (0.5 * (1.0 + np.sign(differences))).mean((-2, -1))


def smoothed(curve: Sequence[Mapping[str, Any]], last_step: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns a learning curve at equally spaced steps until the last one.

    Args:
        curve: Rows with ``env_steps``, the number of ``episodes`` since the previous row, and their ``return_mean``.

    Returns:
        The steps, and the mean return of the episodes that ended in a window before each. If none did, the previous
        value; NaN until the first.
    """
    steps = np.linspace(last_step / _POINTS, last_step, _POINTS)
    ends = np.array([row["env_steps"] for row in curve])
    counts = np.array([row["episodes"] for row in curve], np.float64)
    sums = np.array([(row["return_mean"] or 0.0) * row["episodes"] for row in curve])
    means = np.full(_POINTS, np.nan)
    for index, step in enumerate(steps):
        is_inside = (ends > step - _WINDOW_SHARE * last_step) & (ends <= step)
        if counts[is_inside].sum():
            means[index] = sums[is_inside].sum() / counts[is_inside].sum()
        elif index:
            means[index] = means[index - 1]
    return steps, means


def training_return_mean(curve: Sequence[Mapping[str, Any]]) -> float:
    """Returns the mean height of a learning curve over its steps, which rewards early learning."""
    return float(np.nanmean(smoothed(curve, curve[-1]["env_steps"])[1]))


def _resampled(runs: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """``[R, runs]``."""
    return runs[generator.integers(len(runs), size=(RESAMPLES, len(runs)))]


def _aggregate(scores: Scores) -> np.ndarray:
    """Returns the interquartile mean of all runs of all environments together, over the last axis."""
    return interquartile_mean(np.concatenate(list(scores.values()), axis=-1))


def _mean_improvement(ours: Scores, peer: Scores) -> np.ndarray:
    return np.mean([probability_of_improvement(ours[name], peer[name]) for name in ours], axis=0)


def _estimate(value: np.ndarray, resampled: np.ndarray, *, runs: int) -> dict[str, float | None]:
    """Returns a value with its interval, which is None if a side has only one run."""
    outside = (1.0 - CONFIDENCE) / 2.0
    low, high = np.quantile(resampled, (outside, 1.0 - outside)) if runs > 1 else (None, None)
    return {
        "estimate": round(float(value), _DECIMALS),
        "interval_low": None if low is None else round(float(low), _DECIMALS),
        "interval_high": None if high is None else round(float(high), _DECIMALS),
    }
