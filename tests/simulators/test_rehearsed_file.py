"""An experiment file's own deployment, rehearsed: what is played of it, what is refused, and what fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.errors import ExperimentError
from runtime.experiment.loading import load_experiment
from tests.helpers import ROOT
from tests.simulators.rehearsal.__main__ import main
from tests.simulators.rehearsal.file import ROUNDS, play, read

EXPERIMENTS = ROOT / "experiments"


def written(folder: Path, text: str, base: str = "nitro") -> Path:
    path = folder / "small.yaml"
    path.write_text(f"extends: {EXPERIMENTS / f'{base}.yaml'}\n{text}")
    return path


def test_only_the_rounds_and_the_gpu_are_not_the_files(tmp_path: Path) -> None:
    file = read(EXPERIMENTS / "nitro.yaml")
    assert file.changes == (
        f"stop.max_rounds = {ROUNDS} instead of no limit",
        "learner.device = cpu, because this machine has no GPU",
    )
    played = tmp_path / "played.yaml"
    played.write_text(file.text)
    assert load_experiment(played) == load_experiment(
        EXPERIMENTS / "nitro.yaml", [f"stop.max_rounds={ROUNDS}", "learner.device=cpu"]
    )
    assert all(
        text in "\n".join(file.lines)
        for text in (
            "experiments/nitro.yaml",
            "g4dn.xlarge",
            "cache redis",
            "64 of them warm",
            "$2",
            *file.changes,
        )
    )


@pytest.mark.parametrize(
    ("base", "text", "told"),
    [
        ("nitro", "fleet: {kind: ray}\n", "fleet.kind = ray"),
        ("nitro", "budget: {usd: 0.2}\n", "budget.usd = 0.2"),
        (
            "hopper",
            "learner: {kind: external}\n",
            "learner.kind = external has no rounds of its own",
        ),
        ("nitro", "environment: {package: gymnasium}\n", "environment.package = 'gymnasium'"),
        ("nitro", "seed: x\n", "seed = 'x'"),
    ],
)
def test_what_cannot_be_played_is_refused_in_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    base: str,
    text: str,
    told: str,
) -> None:
    path = written(tmp_path, text, base)
    with pytest.raises(ExperimentError):
        read(path)
    monkeypatch.setattr("sys.argv", ["rehearsal", "--experiment", str(path)])
    assert main() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line


def test_a_learner_without_the_gpu_that_it_asks_for_fails_the_rehearsal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.simulators.rehearsal.machines.has_gpu", lambda _: False)
    file = read(
        written(tmp_path, "scaler: {actors_min: 2, actors_max: 2}\nactor: {provisioned: 2}\n"),
        rounds=1,
    )
    result = play(file, tmp_path / "out", is_quiet=True)
    assert result["result"] == "failed"
    assert "the run's end is None" in result["problems"]
