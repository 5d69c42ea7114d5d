"""Records in any state: the page names unreadable records, and shows the rest."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.show.reading import read_groups
from runtime.show.report import report_page
from tests.show.records import a_run, some_seeds


def replace(path: Path, old: str, new: str) -> None:
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (
            lambda run: replace(run / "rounds.jsonl", '"collect_s": 2.0', '"collect_s": NaN'),
            "rounds.jsonl: 6 of 6 lines cannot be read",
        ),
        (
            lambda run: replace(run / "rounds.jsonl", '"collect_s": 2.0', '"collect_s": 1e308'),
            "rounds.jsonl: 6 of 6 lines cannot be read",
        ),
        (
            lambda run: (run / "rounds.jsonl").write_bytes(
                (run / "rounds.jsonl").read_bytes()[:-20]
            ),
            "has 6 rounds, rounds.jsonl has 5",
        ),
        (lambda run: (run / "ledger.json").write_text('{"bud'), "ledger.json cannot be read"),
        (lambda run: (run / "events.jsonl").write_text("[1]\n"), "events.jsonl: 1 of 1 lines"),
        (lambda run: (run / "config.yaml").write_text("a: [b"), "config.yaml cannot be read"),
        (lambda run: (run / "summary.json").unlink(), "no process of this machine trains it"),
    ],
)
def test_damage_is_told(tmp_path: Path, damage: Callable[[Path], object], told: str) -> None:
    run = a_run(tmp_path / "run")
    damage(run)
    groups = read_groups([run, a_run(tmp_path / "sound")])
    assert told in report_page(groups) and told in report_page(groups[:1])
    assert groups[1].runs[0].problems == []


def test_seeds_of_a_directory_have_its_budget_and_those_to_come_are_told(tmp_path: Path) -> None:
    path = some_seeds(tmp_path / "four", 4)
    shutil.rmtree(path / "seed-3")
    (path / "seed-1").rename(path / "seed-10")
    [group] = read_groups([path])
    assert [run.name for run in group.runs] == ["seed 0", "seed 2", "seed 10"]
    assert {run.settings["budget.usd"] for run in group.runs} == {"9.0"}
    assert group.problems == ["1 of 4 seeds were not begun"]
