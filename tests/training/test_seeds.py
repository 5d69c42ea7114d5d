"""Several seeds: their common summary, and each one's allowance."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.errors import RunDirectoryError
from runtime.experiment.loading import experiment_from_tree
from runtime.money.budget import Budget
from runtime.money.prices import PRICES
from runtime.records.estimates import caution, interval_estimate
from runtime.training import seeds
from runtime.training.interfaces import HERE
from runtime.training.run import RunResult
from runtime.training.seeds import fair_share_usd, table_lines, train_seeds
from runtime.training.summary import summarise
from tests.records.rows import a_row


def test_what_an_earlier_run_did_not_use_goes_to_the_later_ones() -> None:
    assert fair_share_usd(3.0, finished_usd=0.0, others_usd=0.0, unfinished=3) == 1.0
    assert fair_share_usd(3.0, finished_usd=0.5, others_usd=0.5, unfinished=2) == 1.25
    assert fair_share_usd(3.0, finished_usd=1.75, others_usd=1.75, unfinished=1) == 1.25


def test_a_run_that_was_killed_keeps_its_share() -> None:
    """The run's own spending is part of its share, wherever it stopped."""
    assert fair_share_usd(3.0, finished_usd=1.0, others_usd=1.0, unfinished=2) == 1.0
    assert fair_share_usd(3.0, finished_usd=1.0, others_usd=2.5, unfinished=2) == 0.5, (
        "others have already spent more"
    )
    assert fair_share_usd(3.0, finished_usd=4.0, others_usd=4.0, unfinished=1) == 0.0, (
        "the budget was lowered"
    )


@given(st.floats(0.001, 1000.0), st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12))
def test_the_runs_together_never_exceed_the_budget(budget_usd: float, used: list[float]) -> None:
    spent: list[float] = []
    for index, part in enumerate(used):
        share_usd = fair_share_usd(
            budget_usd, finished_usd=sum(spent), others_usd=sum(spent), unfinished=len(used) - index
        )
        budget = Budget(share_usd)
        assert budget.reserve("all", part * budget.free_usd)
        budget.settle("all", part * budget.free_usd)
        budget.forfeit()
        spent.append(budget.spent_usd)
    assert sum(spent) <= budget_usd


def test_the_table_names_every_seed_and_every_estimate() -> None:
    row = {
        "seed": 3,
        "stop_reason": "max_rounds",
        "error": None,
        "evaluation_return_mean": 12.5,
        "evaluation_return_best": 20.0,
        "env_steps_total": 4096,
        "spent_usd": 0.0312,
    }
    unfinished = {
        "seed": 4,
        "stop_reason": None,
        "error": None,
        "evaluation_return_mean": None,
        "evaluation_return_best": None,
        "env_steps_total": None,
        "spent_usd": 0.0,
    }
    text = "\n".join(
        table_lines(
            {
                "seeds": [row, unfinished],
                "confidence": 0.95,
                "caution": caution(1),
                "budget_usd": 1.0,
                "spent_usd": 0.0312,
                "estimates": {
                    key: interval_estimate([row[key]] if key != "spent_usd" else [0.0312, 0.0412])
                    for key in (
                        "evaluation_return_mean",
                        "evaluation_return_best",
                        "spent_usd",
                        "env_steps_total",
                    )
                },
            },
            "runs/here",
        )
    )
    assert max(map(len, text.splitlines())) <= 79
    for words in (
        "max_rounds",
        "12.5",
        "4,096",
        "not finished",
        "no interval   (1 seed)",
        "0.0312 … 0.0412",
        "interquartile mean over seeds, 95% interval",
        "runs/here",
        "nothing is known",
    ):
        assert words in text


# Directories that anyone may have altered

EXPERIMENT = experiment_from_tree(
    {"environment": {"id": "some:thing"}, "budget": {"usd": 1.0}}, source="x"
).resolved()
BACKEND = SimpleNamespace(cost_basis=HERE, prices=PRICES)


def trained(
    out: Path, monkeypatch: pytest.MonkeyPatch, *, resume: bool
) -> tuple[list[str], RunResult]:
    """Runs two seeds with a fake training; returns the printed lines and the result."""

    def train(experiment: Any, path: Path, **_: Any) -> RunResult:
        path.mkdir(exist_ok=True)
        summary = summarise(
            [a_row(1, env_steps_total=512)],
            name="x",
            experiment=experiment,
            backend=BACKEND,
            best=None,
            stop_reason="max_rounds",
            error="",
            spent_usd=0.25,
            session_s=1.0,
            was_resumed=False,
        )
        (path / "summary.json").write_text(json.dumps(summary))
        return RunResult(summary)

    said: list[str] = []
    for name, stub in {
        "try_experiment": None,
        "smallest_budget_usd": 0.01,
        "preflight": None,
        "try_to_write_report": "",
        "make_display": SimpleNamespace(close=lambda: None),
    }.items():
        monkeypatch.setattr(seeds, name, lambda *_, stub=stub, **__: stub)
    monkeypatch.setattr(seeds, "train", train)
    result = train_seeds(
        EXPERIMENT,
        out,
        make_backend=lambda _: BACKEND,
        seeds=2,
        resume=resume,
        say=said.append,
        name="x",
    )
    return table_lines(result.summary, "runs/x") and said, result


@pytest.mark.parametrize(
    "damage",
    [
        {"finished": 5},
        {"finished": {"0": 5}},
        {"finished": {"0": {"budget_usd": "x", "stop": {}}}},
        {"finished": {"0": {"stop": {}}}},
        {"seeds": 5},
        {"seeds": [None]},
        {"experiment": []},
        {"experiment": None},
        "[]",
        "{",
    ],
    ids=lambda one: str(one)[:40],
)
def test_a_damaged_list_of_seeds_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: dict[str, Any] | str
) -> None:
    trained(tmp_path / "runs", monkeypatch, resume=False)
    path = tmp_path / "runs" / "seeds.json"
    path.write_text(
        damage if isinstance(damage, str) else json.dumps(json.loads(path.read_text()) | damage)
    )
    with pytest.raises(
        RunDirectoryError, match=r"^--resume: .*seeds\.json cannot be read: .{1,200}$"
    ):
        trained(tmp_path / "runs", monkeypatch, resume=True)


@pytest.mark.parametrize(
    "damage",
    [
        "[]",
        '"x"',
        {"env_steps_total": "many"},
        {"env_steps_total": float("nan")},
        {"evaluation_return_mean": [1]},
        {"stop_reason": {}},
    ],
    ids=lambda one: str(one)[:40],
)
def test_a_damaged_summary_of_a_finished_seed_tells_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: dict[str, Any] | str
) -> None:
    _, whole = trained(tmp_path / "runs", monkeypatch, resume=False)
    assert [row["env_steps_total"] for row in whole.summary["seeds"]] == [512, 512]
    path = tmp_path / "runs" / "seed-0" / "summary.json"
    path.write_text(
        damage if isinstance(damage, str) else json.dumps(json.loads(path.read_text()) | damage)
    )
    _, resumed = trained(tmp_path / "runs", monkeypatch, resume=True)
    assert [row["env_steps_total"] for row in resumed.summary["seeds"]] == [None, 512]
    assert resumed.summary["estimates"]["env_steps_total"]["seeds"] == 1
