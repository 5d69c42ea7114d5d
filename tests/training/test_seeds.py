"""Several seeds: what is said of them together, and what each may spend."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.cost.budget import Budget
from runtime.training.seeds import (
    caution,
    fair_share_usd,
    interquartile_mean,
    interval_estimate,
    table_lines,
)


@pytest.mark.parametrize(("values", "expected"), [
    ([5.0], 5.0),
    ([1.0, 2.0, 6.0], 3.0),
    ([100.0, 1.0, 2.0, 3.0], 2.5),
    ([9.0, 1.0, -50.0, 2.0, 3.0], 2.0),
    ([8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0], 4.5),
])
def test_the_interquartile_mean_leaves_a_quarter_out_on_each_side(values: list[float], expected: float) -> None:
    assert interquartile_mean(np.array(values)) == expected


def exact_interval(values: list[float]) -> tuple[float, float]:
    """The bootstrap over every resample that there is, each as often as any other."""
    cut = len(values) // 4
    means = sorted(float(np.mean(sorted(resample)[cut:len(values) - cut]))
                   for resample in itertools.product(values, repeat=len(values)))
    return tuple(np.quantile(means, (0.025, 0.975), method="inverted_cdf"))


@pytest.mark.parametrize("values", [
    [3.0, 8.0], [1.0, 2.0, 10.0], [4.0, 7.0, 1.0, 30.0], [310.0, 295.0, 402.0, 350.0, 120.0],
    [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]])
def test_the_interval_is_that_of_all_resamples(values: list[float]) -> None:
    low, high = exact_interval(values)
    estimate = interval_estimate(values)
    spread = max(values) - min(values)
    assert estimate["interval_low"] == pytest.approx(low, abs=0.02 * spread)
    assert estimate["interval_high"] == pytest.approx(high, abs=0.02 * spread)
    assert low <= estimate["interquartile_mean"] <= high


def test_the_same_seeds_give_the_same_interval_in_any_order() -> None:
    values = [3.0, 1.0, 4.0, 1.5, 9.0]
    assert interval_estimate(values) == interval_estimate(values)
    assert interval_estimate(values)["interquartile_mean"] == interval_estimate(values[::-1])["interquartile_mean"]


def test_without_runs_there_is_no_estimate_and_of_one_no_interval() -> None:
    assert interval_estimate([]) == {
        "seeds": 0, "interquartile_mean": None, "interval_low": None, "interval_high": None}
    assert interval_estimate([7.0]) == {
        "seeds": 1, "interquartile_mean": 7.0, "interval_low": None, "interval_high": None}


@pytest.mark.parametrize(("seeds", "share"), [(2, "50.0%"), (3, "25.0%"), (4, "12.5%")])
def test_what_is_said_about_few_seeds_is_true(seeds: int, share: str) -> None:
    values = list(np.random.default_rng(seeds).normal(size=seeds))
    estimate = interval_estimate(values)
    assert (estimate["interval_low"], estimate["interval_high"]) == (min(values), max(values))
    assert share in caution(seeds)
    # Of many such experiments, in how many are all seeds on one side of the median?
    many = np.random.default_rng(0).normal(size=(100_000, seeds))
    missed = ((many > 0).all(axis=1) | (many < 0).all(axis=1)).mean()
    assert f"{missed:.0%}" == f"{float(share.rstrip('%')) / 100:.0%}"


def test_nothing_is_said_where_there_are_enough() -> None:
    values = [1.0, 2.0, 3.0, 4.0, 5.0]
    assert caution(5) == ""
    assert "no interval" in caution(1)
    assert interval_estimate(values)["interval_low"] > 1.0


def test_five_seeds_hold_the_centre_as_often_as_the_docs_say() -> None:
    many = np.random.default_rng(1).normal(size=(500, 5))
    estimates = [interval_estimate(list(values), resamples=1000) for values in many]
    held = np.mean([estimate["interval_low"] <= 0.0 <= estimate["interval_high"] for estimate in estimates])
    assert held == pytest.approx(0.91, abs=0.03)


def test_what_an_earlier_run_did_not_use_goes_to_the_later_ones() -> None:
    assert fair_share_usd(3.0, finished_usd=0.0, others_usd=0.0, unfinished=3) == 1.0
    assert fair_share_usd(3.0, finished_usd=0.5, others_usd=0.5, unfinished=2) == 1.25
    assert fair_share_usd(3.0, finished_usd=1.75, others_usd=1.75, unfinished=1) == 1.25


def test_a_run_that_was_killed_keeps_its_share() -> None:
    """What the run itself has spent is part of its share, wherever it stopped."""
    assert fair_share_usd(3.0, finished_usd=1.0, others_usd=1.0, unfinished=2) == 1.0
    assert fair_share_usd(3.0, finished_usd=1.0, others_usd=2.5, unfinished=2) == 0.5, "others went further already"
    assert fair_share_usd(3.0, finished_usd=4.0, others_usd=4.0, unfinished=1) == 0.0, "the budget was lowered"


@given(st.floats(0.001, 1000.0), st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12))
def test_the_runs_together_never_exceed_the_budget(budget_usd: float, used: list[float]) -> None:
    spent: list[float] = []
    for index, part in enumerate(used):
        share_usd = fair_share_usd(budget_usd, finished_usd=sum(spent), others_usd=sum(spent),
                                   unfinished=len(used) - index)
        budget = Budget(share_usd)
        assert budget.reserve("all", part * budget.free_usd)
        budget.settle("all", part * budget.free_usd)
        budget.forfeit()
        spent.append(budget.spent_usd)
    assert sum(spent) <= budget_usd


def test_the_table_names_every_seed_and_every_estimate() -> None:
    row = {"seed": 3, "stop_reason": "max_rounds", "error": None, "evaluation_return_mean": 12.5,
           "evaluation_return_best": 20.0, "env_steps_total": 4096, "spent_usd": 0.0312}
    unfinished = {"seed": 4, "stop_reason": None, "error": None, "evaluation_return_mean": None,
                  "evaluation_return_best": None, "env_steps_total": None, "spent_usd": 0.0}
    text = "\n".join(table_lines({
        "seeds": [row, unfinished], "confidence": 0.95, "caution": caution(1), "budget_usd": 1.0, "spent_usd": 0.0312,
        "estimates": {
            key: interval_estimate([row[key]] if key != "spent_usd" else [0.0312, 0.0412])
            for key in ("evaluation_return_mean", "evaluation_return_best", "spent_usd", "env_steps_total")},
    }, "runs/here"))
    assert max(map(len, text.splitlines())) <= 79
    for words in ("max_rounds", "12.5", "4,096", "not finished", "no interval   (1 seed)", "0.0312 … 0.0412",
                  "interquartile mean over seeds, 95% interval", "runs/here", "nothing is known"):
        assert words in text
