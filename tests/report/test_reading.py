"""Records in any state: the page names unreadable records, and shows the rest."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.errors import RunDirectoryError
from runtime.report.page import report_page
from runtime.report.reading import read_groups
from tests.report.records import a_run, some_seeds


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def lose(path: Path, key: str) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text(
        "".join(json.dumps({name: row[name] for name in row if name != key}) + "\n" for row in rows)
    )


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (
            lambda run: cut(run / "rounds.jsonl"),
            "rounds.jsonl: the last line was written only in part",
        ),
        (
            lambda run: cut(run / "events.jsonl"),
            "events.jsonl: the last line was written only in part",
        ),
        (
            lambda run: change(run / "rounds.jsonl", '"round_index": 2', '"round_index": []'),
            "rounds.jsonl: 1 of 6 lines cannot be read, and are left out; the first is line 2",
        ),
        (
            lambda run: change(run / "rounds.jsonl", '"round_index": 2,', '"round_index": 3,'),
            "1 rounds are there twice",
        ),
        (
            lambda run: change(run / "rounds.jsonl", '"round_index": 6,', '"round_index": 9,'),
            "only 6 of rounds 1 to 9",
        ),
        (
            lambda run: change(run / "rounds.jsonl", '"round_s": 3.5', '"round_s": NaN'),
            "round_s (6×): no number",
        ),
        (
            lambda run: lose(run / "rounds.jsonl", "modelled_round_s"),
            "rounds.jsonl lacks modelled_round_s in some rounds",
        ),
        (
            lambda run: lose(run / "rounds.jsonl", "env_steps"),
            "rounds.jsonl lacks env_steps in some rounds",
        ),
        (
            lambda run: (run / "rounds.jsonl").write_bytes(b"\xff\x00\n"),
            "rounds.jsonl: 1 of 1 lines cannot be read",
        ),
        (
            lambda run: (run / "rounds.jsonl").unlink(),
            "summary.json tells of 6 rounds, rounds.jsonl of 0",
        ),
        (lambda run: (run / "config.yaml").unlink(), "there is no config.yaml"),
        (lambda run: (run / "config.yaml").write_text("a: [b"), "config.yaml cannot be read"),
        (
            lambda run: (run / "config.yaml").write_text("- 1"),
            "config.yaml cannot be read: it is no mapping of sections",
        ),
        (lambda run: (run / "config.yaml").write_bytes(b"\xff"), "config.yaml cannot be read"),
        (
            lambda run: (run / "summary.json").write_text("[]"),
            "summary.json cannot be read: it is no JSON object",
        ),
        (
            lambda run: (run / "summary.json").write_text(
                '{"spent_usd": NaN, "rounds": "x", "error": [{}]}'
            ),
            "error",
        ),
        (lambda run: (run / "summary.json").unlink(), "it has not ended"),
        (lambda run: [path.unlink() for path in run.iterdir()], "no records of a run are here"),
        (
            lambda run: [path.unlink() for path in run.iterdir() if path.name != "config.yaml"],
            "it has not ended",
        ),
        (
            lambda run: [path.write_bytes(b"") for path in run.iterdir()],
            "summary.json cannot be read",
        ),
    ],
    ids=lambda given: given if isinstance(given, str) else "damage",
)
def test_damage_is_told(tmp_path: Path, damage: Callable[[Path], None], told: str) -> None:
    run = a_run(tmp_path / "run")
    damage(run)
    groups = read_groups([run, a_run(tmp_path / "sound")])
    assert told in report_page(groups)
    assert told == "error" or any(told in problem for problem in groups[0].runs[0].problems)
    assert groups[1].runs[0].problems == []
    assert told in report_page(groups[:1])


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunDirectoryError, match="file: is a file; allowed: the directory"):
        read_groups([tmp_path / "file"])


def test_unknown_seeds_are_those_whose_directories_are_there(tmp_path: Path) -> None:
    path = some_seeds(tmp_path / "five", 3)
    (path / "seeds.json").write_text("{")
    [group] = read_groups([path])
    assert [run.name for run in group.runs] == ["seed 0", "seed 1", "seed 2"]
    assert [problem.split(":")[0] for problem in group.problems] == [
        "seeds.json cannot be read",
        "seeds.json does not say which seeds there are",
    ]


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    paths = [a_run(tmp_path / "a" / "run"), a_run(tmp_path / "b" / "run"), a_run(tmp_path / "c")]
    assert [group.name for group in read_groups(paths)] == [str(paths[0]), str(paths[1]), "c"]
