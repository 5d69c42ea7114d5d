"""Estimates over several seeds."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from runtime.show.estimates import interquartile_mean, interval_estimate


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([5.0], 5.0),
        ([100.0, 1.0, 2.0, 3.0], 2.5),
        ([9.0, 1.0, -50.0, 2.0, 3.0], 2.0),
    ],
)
def test_the_interquartile_mean_leaves_a_quarter_out_on_each_side(
    values: list[float], expected: float
) -> None:
    assert interquartile_mean(np.array(values)) == expected


def exact_interval(values: list[float]) -> tuple[float, float]:
    """Returns the bootstrap over all possible resamples, each with equal weight."""
    cut = len(values) // 4
    means = sorted(
        float(np.mean(sorted(resample)[cut : len(values) - cut]))
        for resample in itertools.product(values, repeat=len(values))
    )
    return tuple(np.quantile(means, (0.025, 0.975), method="inverted_cdf"))


@pytest.mark.parametrize(
    "values",
    [
        [1.0, 2.0, 10.0],
        [4.0, 7.0, 1.0, 30.0],
        [1.0, 2.0, 4.0, 8.0, 16.0, 32.0],
    ],
)
def test_the_interval_is_that_of_all_resamples(values: list[float]) -> None:
    low, high = exact_interval(values)
    estimate = interval_estimate(values)
    spread = max(values) - min(values)
    assert estimate["interval_low"] == pytest.approx(low, abs=0.02 * spread)
    assert estimate["interval_high"] == pytest.approx(high, abs=0.02 * spread)
    assert low <= estimate["interquartile_mean"] <= high


def test_without_runs_there_is_no_estimate_and_of_one_no_interval() -> None:
    assert list(interval_estimate([]).values()) == [0, None, None, None]
    assert list(interval_estimate([7.0]).values()) == [1, 7.0, None, None]
