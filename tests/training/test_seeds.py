"""Several seeds: their shares of the budget, their list on disk and their table."""

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
from runtime.show.seeds_table import table_lines
from runtime.training.run import RunResult
from runtime.training.seeds import fair_share_usd, train_seeds
from runtime.training.summary import summarise
from tests.records.rows import a_row


@given(st.floats(0.001, 1000.0), st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12))
def test_the_runs_together_never_exceed_the_budget(budget_usd: float, used: list[float]) -> None:
    spent: list[float] = []
    for index, part in enumerate(used):
        share_usd = fair_share_usd(
            budget_usd, finished_usd=sum(spent), others_usd=sum(spent), unfinished=len(used) - index
        )
        budget = Budget(share_usd)
        assert budget.reserve({"all": part * budget.free_usd})
        budget.settle("all", part * budget.free_usd)
        spent.append(budget.spent_usd)
    assert sum(spent) <= budget_usd


EXPERIMENT = experiment_from_tree(
    {"environment": {"id": "some:thing"}, "budget": {"usd": 1.0}}, source="x"
).resolved()
BACKEND = SimpleNamespace(cost_basis="local", prices=PRICES)


def trained(out: Path, *, resume: bool, fails_at: int | None = None) -> RunResult:
    """Runs two seeds with a fake training."""

    def train_one(experiment: Any, path: Path) -> RunResult:
        path.mkdir(exist_ok=True)
        is_failed = experiment.seed == fails_at
        summary = summarise(
            [a_row(1, env_steps_total=4096, evaluation_return_mean=12.5 + experiment.seed)],
            name="x",
            experiment=experiment,
            backend=BACKEND,
            best=None,
            stop_reason="failed" if is_failed else "max_rounds",
            error="the motor" * is_failed,
            spent_usd=0.25 + experiment.seed / 8,
            session_s=1.0,
            was_resumed=False,
        )
        (path / "summary.json").write_text(json.dumps(summary))
        return RunResult(summary, int(is_failed))

    return train_seeds(
        EXPERIMENT, out, train_one, count=2, resume=resume, say=lambda line: None, name="x"
    )


def test_each_seed_gets_an_equal_share_of_what_those_before_it_left(tmp_path: Path) -> None:
    shares_usd: list[float] = []

    def train_one(experiment: Any, path: Path) -> RunResult:
        shares_usd.append(experiment.budget.usd)
        path.mkdir()
        (path / "summary.json").write_text('{"stop_reason": "max_rounds", "spent_usd": 0.25}')
        return RunResult({})

    train_seeds(
        EXPERIMENT, tmp_path / "runs", train_one, count=3, resume=False, say=print, name="x"
    )
    assert shares_usd == pytest.approx([1 / 3, 0.75 / 2, 0.5])


def test_the_table_shows_every_seed_and_the_estimates(
    tmp_path: Path,
) -> None:
    whole = trained(tmp_path / "whole", resume=False).summary
    lines = table_lines(whole, "runs/here")
    assert [line.split() for line in lines[1:3]] == [
        ["0", "max_rounds", "12.5", "–", "4,096", "0.2500"],
        ["1", "max_rounds", "13.5", "–", "4,096", "0.3750"],
    ]
    text = "\n".join(lines)
    for words in (
        "\nmean over seeds, 95% interval",
        "0.3125   0.2500 … 0.3750   (2 seeds)",
        "2 seeds say little",
        "results      runs/here",
    ):
        assert words in text
    assert max(map(len, lines)) <= 79


def test_a_seed_that_failed_is_told_from_one_never_begun_and_the_run_goes_on_there(
    tmp_path: Path,
) -> None:
    result = trained(tmp_path / "runs", resume=False, fails_at=0)
    assert (result.exit_code, result.summary["stop_reason"]) == (1, "failed")
    text = "\n".join(table_lines(result.summary, "runs/here"))
    for words in ("0  failed", "1  not begun", "error of seed 0: the motor", "no seed is finished"):
        assert words in text
    (tmp_path / "runs" / "seed-0" / "summary.json").unlink()
    result = trained(tmp_path / "runs", resume=True, fails_at=1)
    text = "\n".join(table_lines(result.summary, "runs/here"))
    for words in ("0  max_rounds", "1  failed", "no interval   (1 seed)"):
        assert words in text
    # A killed run has no summary.
    row = result.summary["seeds"][1] | {"stop_reason": None}
    assert "1  not finished" in table_lines({**result.summary, "seeds": [row]}, "x")[1]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("summary.json", "holds a single run; name another directory for --seeds"),
        ("config.yaml", r"^--resume: .*/config\.yaml"),
    ],
)
def test_a_damaged_list_of_seeds_is_refused(tmp_path: Path, name: str, words: str) -> None:
    trained(tmp_path / "runs", resume=False)
    path = tmp_path / "runs" / name
    path.write_text("{")
    with pytest.raises(RunDirectoryError, match=words):
        trained(tmp_path / "runs", resume=True)
