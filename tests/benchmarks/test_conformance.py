"""The table of environments: its data, and that its page reports the findings."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.conformance import page
from benchmarks.conformance.environments import GROUPS
from benchmarks.conformance.odd import Odd
from benchmarks.conformance.verdicts import judged

ROW = {"environment": {"id": "Odd-v0"}, "algorithm": "ppo", "fragment_steps": 16}
ENDED = {
    "code": 0,
    "is_traceback": False,
    "can_save": False,
    "is_replayed": True,
    "continued": 2,
    "actors_failed": 0,
}
SAID = "error: environment.id = 'Odd-v0': its space is <function f at 0x7f38>"


def test_the_page_says_what_was_found() -> None:
    results = json.loads(page.RESULTS.read_text())
    assert page.PAGE.read_text() == page.page(results)
    rows = [row for group in results["groups"].values() for row in group["rows"]]
    assert set(results["groups"]) == set(GROUPS)
    assert len({row["environment"]["id"] for row in rows if row["verdict"] == "works"}) >= 40
    assert len({name for group in results["groups"].values() for name in group["versions"]}) >= 8


@pytest.mark.parametrize(
    ("found", "verdict", "open_episodes", "reason"),
    [
        (ENDED, "works", "replay", ""),
        (ENDED | {"is_replayed": False, "can_save": True}, "works", "state", ""),
        (ENDED | {"is_replayed": False}, "works", "whole", ""),
        (
            {"code": 2, "is_traceback": False, "said": SAID},
            "refused",
            "",
            "environment.id = 'Odd-v0': its space is <function f>",
        ),
        (
            {"code": 1, "is_traceback": False, "said": "RunError: it diverged"},
            "fails",
            "",
            "RunError: it diverged",
        ),
        ({"code": 2, "is_traceback": True, "said": "KeyError: 1"}, "fails", "", "KeyError: 1"),
        (
            {"broken": "RuntimeError: no licence", "code": 2, "is_traceback": False, "said": SAID},
            "upstream broken",
            "",
            "RuntimeError: no licence",
        ),
    ],
)
def test_a_verdict(found: dict[str, Any], verdict: str, open_episodes: str, reason: str) -> None:
    got = judged(ROW, found)
    assert (got["verdict"], got["open_episodes"], got["reason"]) == (verdict, open_episodes, reason)


def test_what_we_say_of_a_broken_environment_is_told_beside_what_it_raised() -> None:
    broken = {"broken": "RuntimeError: no licence"}
    assert judged(ROW, broken | {"code": 2, "is_traceback": False, "said": SAID})[
        "said"
    ].startswith("environment.id")
    assert judged(ROW, broken | ENDED | {"actors_failed": 3})["said"] == (
        "the run goes on without what failed: 3 actors"
    )


def test_an_odd_environment_is_as_odd_as_its_name() -> None:
    environment = Odd("nan_reward", fault_step=2)
    environment.reset(seed=0)
    rewards = [environment.step(0)[1] for _ in range(3)]
    assert [reward == reward for reward in rewards] == [True, False, True]
