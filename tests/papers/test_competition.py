"""The competition: a rule that joins later does not affect the others, and its page reports the findings."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.pages import with_part
from papers.competition import page
from papers.competition.plan import RULES, TUNING_SEEDS, reported_runs
from papers.competition.run import choose


def test_a_rule_that_is_not_tuned_yet_is_left_out() -> None:
    tuned = [
        {
            "rule": rule,
            "settings": candidate,
            "spent_usd": 1.0 + place,
            "stop_reason": "target_return",
        }
        for rule, candidates in RULES.items()
        if rule != "minions"
        for place, candidate in enumerate(candidates)
        for _ in TUNING_SEEDS
    ]
    begun = {
        "rule": "minions",
        "settings": "greedy",
        "spent_usd": 0.1,
        "stop_reason": "target_return",
    }
    chosen = choose([*tuned, begun])
    assert (
        chosen
        == choose(tuned)
        == {
            rule: next(iter(candidates))
            for rule, candidates in RULES.items()
            if candidates and rule != "minions"
        }
    )
    assert {run.rule for run in reported_runs("hopper", Path(), chosen)} == set(RULES) - {"minions"}


def test_the_results_page_has_the_table_of_the_analysis() -> None:
    """An emptied page is filled with the current table."""
    text = page.PAGE.read_text()
    emptied = with_part(text, page.PART, "")
    assert emptied != text
    assert page.filled(emptied, json.loads(page.ANALYSIS.read_text())) == text
