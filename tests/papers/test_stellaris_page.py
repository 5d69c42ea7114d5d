"""Stellaris' benefits: the page agrees with the data, and judges nothing on fewer than five seeds."""

from __future__ import annotations

from typing import Any

import pytest

from papers.stellaris import page
from papers.stellaris.arms import SERIES, WORKLOADS, arms_of

COSTS, TO_TARGET = "costs 41 % less: 20 rounds", "costs 41 % less: to the target"
TARGET = WORKLOADS["hopper"].target_return


def a_run(arm: str, seed: int, height: float, usd: float) -> dict[str, Any]:
    """Returns ``height`` after 20 rounds and twice that after 40. Each round costs ``usd`` and takes a second."""
    rows = {name: [0.0] * 40 for name in SERIES} | {
        "priced_usd": [usd] * 40,
        "priced_s": [1.0] * 40,
    }
    rounds = [index if index % 20 == 0 else None for index in range(1, 41)]
    rows |= {
        "evaluation_round": rounds,
        "evaluation_return_mean": [
            None if one is None else height * one / 20 + seed for one in rounds
        ],
    }
    return {"arm": arm, "seed": seed, "rounds": 40, "commits": ["abc"], "rows": rows}


def found(heights: dict[str, float], usd: dict[str, float], name: str = "hopper") -> dict[str, Any]:
    return {
        "command": "make it",
        "date": "today",
        "arms": dict.fromkeys(arms_of(name)),
        "runs": [
            a_run(arm, seed, heights.get(arm, 300.0), usd.get(arm, 0.01))
            for seed in range(5)
            for arm in arms_of(name)
        ],
    }


def verdicts(*of_found: Any) -> dict[str, tuple[str, str]]:
    return page.claims(page.by_arm(found(*of_found)), WORKLOADS["hopper"])


def test_the_page_is_up_to_date() -> None:
    assert page.PAGE.read_text() == page.page(page.read())


def test_a_saving_is_in_percent_of_the_dearer_bill() -> None:
    cheap = verdicts({page.FULL: 600.0}, {page.FULL: 0.007})
    assert cheap[COSTS] == ("partly", "30 % [30, 30]")
    # It reaches the target after 20 rounds, the baseline after 40.
    assert cheap[TO_TARGET] == ("reproduced", "65 % [65, 65]")
    assert cheap[f"{COSTS}{page.ALWAYS_ON}"][0] == "not"
    assert verdicts({}, {page.FULL: 0.04})[COSTS] == ("not", "−75 % [−75, −75]")


@pytest.mark.parametrize(
    ("ours", "theirs", "usd", "verdict"),
    [
        (
            600.0,
            250.0,
            0.01,
            ("reproduced", "at least 50 % [50, 50]"),
        ),  # 20 rounds, and a miss after 40
        (600.0, 250.0, 0.015, ("partly", "at least 25 % [25, 25]")),
        (600.0, 250.0, 0.03, ("undecided", "−33 to 100 %")),  # the miss is cheap
        (250.0, 600.0, 0.01, ("not", "at most −50 % [−50, −50]")),
        (250.0, 600.0, 0.001, ("undecided", "−100 to 80 %")),
        (250.0, 250.0, 0.001, ("not", "0 % [0, 0]")),
    ],
)
def test_whoever_misses_the_target_costs_at_least_what_it_spent(
    ours: float, theirs: float, usd: float, verdict: tuple[str, str]
) -> None:
    assert (
        verdicts({page.FULL: ours, page.BASELINE: theirs}, {page.FULL: usd})[TO_TARGET] == verdict
    )
