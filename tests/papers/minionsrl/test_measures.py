"""MinionsRL's measures on runs whose seconds, dollars and returns are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from papers.bills import Bill
from papers.measures import KINDS
from papers.runs import Results
from papers.study import studies

FIRST, SECOND = "minions-hopper", "minions-impact"
STUDY: dict[str, Any] = {**studies()[FIRST], "arms": {"minions": {"scaler.scheduler": "hopper"}}}


def a_run(
    counts: list[int], returned: list[float], passes: int = 30, steps: int = 512
) -> dict[str, Any]:
    sizes = [steps * count for count in counts]
    return {
        "actor_count": counts,
        "env_steps": sizes,
        "episode_return_mean": returned,
        "episodes_finished": [10] * len(counts),
        "evaluation_return_mean": [None, *returned[1:]],
        "hessian_products": [None] * len(counts),
        "product_samples": [None] * len(counts),
        "gradient_steps": [passes * size // 256 for size in sizes],
        "samples_trained": [passes * size for size in sizes],
    }


def measured(tmp_path: Path, kind: str, runs: dict[str, dict[str, Any]], **arguments: Any) -> Any:
    """Measures arms of ten equal seeds: those of FIRST, and ``impact`` of SECOND."""
    for study, arms in (
        (FIRST, {arm: run for arm, run in runs.items() if arm != "impact"}),
        (SECOND, {arm: run for arm, run in runs.items() if arm == "impact"}),
    ):
        content = {
            "runs": {arm: {str(seed): run for seed in range(10)} for arm, run in arms.items()}
        }
        (tmp_path / f"{study}.json").write_text(json.dumps(content))
    results = Results(tmp_path, {FIRST: STUDY, SECOND: studies()[SECOND]})
    return KINDS[kind](results, **arguments)


def race(**more: Any) -> dict[str, Any]:
    return {"study": FIRST, "ours": "minions", "rival": "max", **more}


RISING = [100.0 * (k + 1) for k in range(8)]
OURS, MAX = a_run([8] * 8, RISING), a_run([32] * 8, RISING)


def test_less_time_and_money_to_the_target_are_shares_of_the_rivals(tmp_path: Path) -> None:
    runs = {"minions": OURS, "max": MAX}
    bill, server = (Bill.of(STUDY, "gpu", on) for on in ("minionsrl", "c5.9xlarge"))
    found = measured(tmp_path, "to_target", runs, of="seconds", **race())["Hopper"]
    expected = 1 - bill.round_s(OURS).sum() / bill.round_s(MAX).sum()
    assert found["interquartile_mean"] == pytest.approx(expected)
    assert 0.5 < expected < 0.75
    found = measured(tmp_path, "to_target", runs, of="dollars", **race(rival_on="c5.9xlarge"))
    dollars = 1 - bill.usd(OURS).sum() / server.usd(MAX).sum()
    assert found["Hopper"]["interquartile_mean"] == pytest.approx(dollars)
    found = measured(tmp_path, "to_target", {"minions": MAX, "max": OURS}, of="dollars", **race())
    assert found["Hopper"]["interquartile_mean"] < -1


def test_runs_whose_last_evaluation_is_below_the_target_have_not_reached_it(tmp_path: Path) -> None:
    missed = a_run([32] * 8, [599.0] * 8)
    found = measured(
        tmp_path, "to_target", {"minions": OURS, "max": missed}, of="dollars", **race()
    )
    assert "10 and 0 of 10 reached the target" in found["Hopper"]["note"]


def test_asynchronous_actors_play_while_the_learner_updates(tmp_path: Path) -> None:
    impact = a_run([32] * 8, RISING, passes=1, steps=50)
    study = studies()[SECOND]
    slow = Bill.of(study, "cpu", "c5.9xlarge")
    assert slow.round_s(impact) == pytest.approx(slow.learner_s(impact))
    server = Bill.of(study, "gpu", "c5.9xlarge")
    assert server.round_s(impact) == pytest.approx(
        np.maximum(server.actor_s(impact), server.learner_s(impact))
    )
    found = measured(
        tmp_path,
        "to_target",
        {"minions": OURS, "impact": impact},
        of="seconds",
        **race(rival="impact", rival_study=SECOND, rival_on="c5.9xlarge"),
    )["Hopper"]
    ours = Bill.of(STUDY, "gpu", "minionsrl").round_s(OURS).sum()
    theirs = server.round_s(impact).sum()
    assert found["interquartile_mean"] == pytest.approx(1 - ours / theirs)


def test_the_schedulers_training_counts_with_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Saved:
        history = ({"env_steps": 7 * sum(OURS["env_steps"])}, {"env_steps": sum(OURS["env_steps"])})

    monkeypatch.setattr("papers.minionsrl.measures.load_scheduler", lambda path: Saved)
    bill = Bill.of(STUDY, "gpu", "minionsrl")
    ours, theirs = bill.usd(OURS).sum(), bill.usd(MAX).sum()
    found = measured(tmp_path, "to_target_with_training", {"minions": OURS, "max": MAX}, **race())[
        "Hopper"
    ]
    assert found["interquartile_mean"] == pytest.approx(1 - 9 * ours / theirs)
    assert f"after {8 * ours / (theirs - ours):,.0f} trainings" in found["note"]
    found = measured(tmp_path, "to_target_with_training", {"minions": MAX, "max": OURS}, **race())
    assert found["Hopper"]["note"] == "the training never pays"


def test_returns_are_compared_when_the_first_of_a_pair_ends(tmp_path: Path) -> None:
    """A round of 8 actors takes a bit more than a quarter of one of 32."""
    ours = a_run([8] * 24, [10.0 * k for k in range(24)])
    theirs = a_run([32] * 40, [5.0 * k for k in range(40)])
    bill = Bill.of(STUDY, "gpu", "minionsrl")
    ours_s, theirs_s = (np.cumsum(bill.round_s(run)) for run in (ours, theirs))
    last = np.count_nonzero(theirs_s <= ours_s[-1]) - 1
    assert 4 < last < 10
    rivals = {"Max": {"rival": "max"}}
    found = measured(
        tmp_path,
        "ahead",
        {"minions": ours, "max": theirs},
        of="seconds",
        study=FIRST,
        ours="minions",
        rivals=rivals,
    )["Max"]
    assert found["interquartile_mean"] == pytest.approx(230.0 / (5.0 * last) - 1)


def test_phases_and_differences(tmp_path: Path) -> None:
    counts = [30] * 10 + [10] * 18 + [20] * 2
    runs = {"minions": a_run(counts, [3.0] * 30), "max": MAX, "fixed-16": a_run([16] * 8, RISING)}
    phases = {"study": FIRST, "arm": "minions", "fewer": [0.333, 0.667]}
    for more, expected in (([0.0, 0.333], 20.0), ([0.9, 1.0], np.mean([10, 20, 20]) - 10)):
        found = measured(tmp_path, "phases", runs, **phases, more=more)["Hopper"]
        assert found["interquartile_mean"] == pytest.approx(expected)
    three = ["minions", "max", "fixed-16"]
    different = measured(tmp_path, "different", runs, study=FIRST, arms=three)
    assert list(different) == ["max over minions", "fixed-16 over minions", "max over fixed-16"]
    found = different["max over minions"]
    assert found["interquartile_mean"] == pytest.approx(800.0 / 3.0 - 1)
    assert 0.0 < found["interval_low"] <= found["interval_high"]


def test_nothing_measured_yet_is_no_error(tmp_path: Path) -> None:
    for of in ("seconds", "dollars"):
        found = measured(tmp_path, "to_target", {"max": MAX}, of=of, **race())
        assert found["Hopper"]["seeds"] == 0
    found = measured(tmp_path, "to_target_with_training", {"max": MAX}, **race())
    assert found["Hopper"]["seeds"] == 0
