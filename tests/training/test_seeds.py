"""Several seeds: what is said of them together, and what each may spend."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from runtime.cost.budget import Budget
from runtime.records.estimates import caution, interval_estimate
from runtime.training.seeds import fair_share_usd, table_lines


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
