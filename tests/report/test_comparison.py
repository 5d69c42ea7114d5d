"""The table of `compare`: differences, and the progress of runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runtime.cli.main import main
from runtime.records.estimates import interval_estimate
from runtime.report.comparison import comparison_lines
from runtime.report.reading import read_comparable
from tests.report.records import a_run, some_seeds


def table(*paths: Path, columns: int = 200) -> dict[str, list[str]]:
    """Returns the cells of each labeled line, at least two spaces apart."""
    lines = comparison_lines(read_comparable(paths), columns)
    return {
        label: [cell for cell in line[22:].split("  ") if cell]
        for line in lines
        if (label := line[:20].strip())
    }


def test_two_runs_stand_side_by_side(tmp_path: Path) -> None:
    first, second = a_run(tmp_path / "first"), a_run(tmp_path / "second", rounds=3, seed=7)
    config = second / "config.yaml"
    config.write_text(config.read_text().replace("kind: nitro", "kind: fixed"))
    found = {
        label: [cell.strip() for cell in cells] for label, cells in table(first, second).items()
    }
    assert found["scaler.kind"] == ["nitro", "fixed"]
    assert found["seed"] == ["0", "7"]
    assert "environment.id" not in found
    assert found["last evaluation"] == ["60.0", "37.0"]
    assert found["steps"] == ["600", "300"]
    assert found["rounds"] == ["6", "3"]
    assert found["dollars, modelled"] == ["0.2500", "7.2500"]
    assert found["minutes by the clock"] == ["0.35", "0.17"]


def test_settings_stand_as_in_a_file_and_small_returns_keep_their_digits(tmp_path: Path) -> None:
    first, second = a_run(tmp_path / "first"), a_run(tmp_path / "second")
    for run, kwargs in (
        (first, "{is_slippery: true, map: null}"),
        (second, "{is_slippery: false, map: [SF, FG]}"),
    ):
        config = run / "config.yaml"
        config.write_text(config.read_text().replace("scaler:", f"  kwargs: {kwargs}\nscaler:"))
        rows = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
        (run / "rounds.jsonl").write_text(
            "".join(
                json.dumps(row | {"episode_return_mean": row["episode_return_mean"] / 25}) + "\n"
                for row in rows
            )
        )
    assert table(first, second)["environment.kwargs.m"[:20]] == ["null", '["SF", "FG"]']
    lines = "\n".join(comparison_lines(read_comparable([first, second]), 200))
    assert [
        line.split()[-2:]
        for line in lines.splitlines()
        if line.startswith(("environment.kwargs.is", "training"))
    ] == [["true", "false"], ["0.720", "0.720"]]


def test_seeds_are_one_column_with_an_interval_and_alone_one_for_each(tmp_path: Path) -> None:
    five, alone = some_seeds(tmp_path / "five"), a_run(tmp_path / "alone")
    estimate = interval_estimate([10.0 * (5 + seed) + seed for seed in range(5)])
    beside, apart = (
        comparison_lines(read_comparable(paths), 200) for paths in ([five, alone], [five])
    )
    for lines in (beside, apart):
        text = "\n".join(lines)
        assert f"{estimate['interquartile_mean']:.1f}" in text
        assert f"{estimate['interval_low']:.1f} … {estimate['interval_high']:.1f}" in text
        assert "95% percentile" in text
    assert beside[0].split() == ["five", "alone"]
    assert apart[0].split() == [
        "seed",
        "0",
        "seed",
        "1",
        "seed",
        "2",
        "seed",
        "3",
        "seed",
        "4",
        "all",
        "5",
    ]


def test_what_does_not_fit_the_terminal_follows_below(tmp_path: Path) -> None:
    runs = [a_run(tmp_path / f"run-{seed}", seed=seed) for seed in range(6)]
    lines = comparison_lines(read_comparable(runs), 60)
    assert max(map(len, lines)) <= 60
    assert sum(line.startswith("last evaluation") for line in lines) > 1
    assert {name for line in lines for name in line.split() if name.startswith("run-")} == {
        f"run-{seed}" for seed in range(6)
    }


def test_a_run_that_has_not_ended_is_compared_by_its_rounds_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = a_run(tmp_path / "run")
    (run / "summary.json").unlink()
    assert main(["compare", str(run)]) == 0
    printed = capsys.readouterr()
    assert "! run: it has not ended" in printed.err
    assert [
        line.split()[-1]
        for line in printed.out.splitlines()
        if line.startswith(("stopped", "steps"))
    ] == ["ended", "600"]


@pytest.mark.parametrize("command", ["compare", "plot"])
def test_what_cannot_be_compared_is_refused_in_one_line(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    begun, empty, file, seeds = (tmp_path / name for name in ("begun", "empty", "file", "seeds"))
    (a_run(begun) / "rounds.jsonl").unlink()
    empty.mkdir()
    file.write_text("")
    seeds.mkdir()
    (seeds / "seeds.json").write_text(json.dumps({"seeds": [0, 1]}))
    no_run = "holds no run, nor several seeds: neither config.yaml nor seeds.json is there"
    for path, words in {
        tmp_path / "none": "there is no such directory",
        begun: "no round has finished yet",
        empty: no_run,
        file: "is a file; allowed: the directory of a run or of several seeds",
        seeds: "no round has finished yet",
        tmp_path: f"{no_run}; did you mean {begun}?",
    }.items():
        out = ["--out", str(tmp_path / "plot.png")] if command == "plot" else []
        assert main([command, str(path), *out]) == 2
        assert capsys.readouterr().err == f"error: {path}: {words}\n"
