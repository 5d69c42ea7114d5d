"""The table of `compare`: differences, and the progress of runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.cli.main import main
from runtime.records.estimates import interval_estimate
from runtime.show.comparison import comparison_lines
from runtime.show.reading import read_comparable
from tests.show.records import a_run, some_seeds


def table(*paths: Path) -> dict[str, list[str]]:
    """Returns the cells of each labeled line."""
    lines = comparison_lines(read_comparable(paths), 200)
    cells = [[cell.strip() for cell in line.split("  ") if cell] for line in lines]
    return {label: values for label, *values in filter(None, cells)}


def test_two_runs_stand_side_by_side(tmp_path: Path) -> None:
    first, second = a_run(tmp_path / "first"), a_run(tmp_path / "second", rounds=3, seed=7)
    config = second / "config.yaml"
    kwargs = "  kwargs: {map: [SF, FG]}\nscaler:\n"
    config.write_text(
        config.read_text().replace("kind: nitro", "kind: fixed").replace("scaler:\n", kwargs)
    )
    found = table(first, second)
    assert found["scaler.kind"] == ["nitro", "fixed"]
    assert found["environment.kwargs.map"] == ["–", '["SF", "FG"]']
    assert found["seed"] == ["0", "7"]
    assert "environment.id" not in found
    assert found["stopped by"] == ["max_rounds", "max_rounds"]
    assert found["last evaluation"] == ["60.0", "37.0"]
    assert found["training return"] == ["18.0", "9.000"]
    assert found["steps"] == ["600", "300"]
    assert found["rounds"] == ["6", "3"]
    assert found["dollars"] == ["0.2500", "7.2500"]
    assert found["minutes by the clock"] == ["0.35", "0.17"]


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
    assert " ".join(apart[0].split()) == "seed 0 seed 1 seed 2 seed 3 seed 4 all 5"
    assert max(map(len, comparison_lines(read_comparable([five]), 60)[:-1])) <= 60
    (five / "seed-4" / "summary.json").unlink()
    found = table(five, alone)
    assert found["seeds finished"] == ["4 of 5", "1 of 1"]
    assert (
        found["steps"][0] == f"{interval_estimate([500, 600, 700, 800])['interquartile_mean']:.0f}"
    )


def test_a_run_that_has_not_ended_is_compared_by_its_rounds_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = a_run(tmp_path / "run")
    (run / "summary.json").unlink()
    assert main(["compare", str(run)]) == 0
    printed = capsys.readouterr()
    assert "! run: it has not ended" in printed.err
    found = [
        line.split()[-1]
        for line in printed.out.splitlines()
        if line.startswith(("stopped", "steps"))
    ]
    assert found == ["ended", "600"]


def test_what_cannot_be_compared_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    begun, file = tmp_path / "begun", tmp_path / "file"
    (a_run(begun) / "rounds.jsonl").unlink()
    file.write_text("")
    for path, words in {
        tmp_path / "none": "there is no such directory; allowed: a run, or several seeds",
        file: "is a file; allowed: a run, or several seeds",
        begun: "no finished round of a run, or of seeds, is there",
        tmp_path: "no finished round of a run, or of seeds, is there",
    }.items():
        assert main(["compare", str(path)]) == 2
        assert capsys.readouterr().err == f"error: {path}: {words}\n"
