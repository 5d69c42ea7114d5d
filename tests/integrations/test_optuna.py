"""Sweeps by Optuna: one budget, a kill in the middle, and results in Optuna's storage."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

optuna = pytest.importorskip("optuna", reason="needs the extra sweep")

from optuna.distributions import FloatDistribution  # noqa: E402

import nitro_rl  # noqa: E402
from nitro_rl import RunError  # noqa: E402
from nitro_rl.integrations import optuna as sweeps  # noqa: E402
from runtime.errors import BudgetTooSmallError, NotFiniteError  # noqa: E402
from tests.helpers import PATIENCE_S, ROOT, pendulum_file, results_only, rounds, summary  # noqa: E402

LEARNING_RATE = "algorithm.learning_rate"
SPACE = {LEARNING_RATE: FloatDistribution(1e-4, 1e-2, log=True)}
GUIDE = (ROOT / "docs" / "guides" / "sweeps.md").read_text()
KILLS = """
import os, signal
from runtime.records.run_directory import RunDirectory
def kills(self, row, append_round=RunDirectory.append_round):
    append_round(self, row)
    if self.path.name == "trial-1" and row.round_index == 2:
        os.kill(os.getpid(), signal.SIGKILL)
RunDirectory.append_round = kills
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", GUIDE, re.DOTALL)


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def swept(folder: Path, killed: str = "") -> subprocess.CompletedProcess[str]:
    """Runs the guide's script for three short trials."""
    folder.mkdir(exist_ok=True)
    [file], [script] = blocks("yaml"), blocks("python")
    file = file.replace("experiments/", f"{ROOT}/experiments/").replace("rounds: 20", "rounds: 3")
    short = (
        "scaler: {actors_fixed: 2}\nevaluation: {every_rounds: 3, episodes: 1}\n"
        "actor: {fragment_steps: 128}\nfleet: {processes: 1}\nlearner: {threads: 1}\n"
    )
    (folder / "sweep.yaml").write_text(file + short)
    (folder / "sweep.py").write_text(killed + script.replace("trials=20", "trials=3"))
    return run(folder, sys.executable, "sweep.py")


def study_in(folder: Path) -> Any:
    return optuna.load_study(
        study_name="sweep", storage=f"sqlite:///{folder / 'runs/sweep/study.db'}"
    )


def test_a_killed_sweep_ends_as_an_undisturbed_one_and_optuna_shows_it(tmp_path: Path) -> None:
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    done = swept(undisturbed)
    assert done.returncode == 0, done.stderr
    assert swept(killed, KILLS).returncode == -9
    trial = killed / "runs/sweep/trial-1"
    spent_before_usd = rounds(trial)[-1]["spent_usd"]
    assert [one.state.name for one in study_in(killed).trials] == ["COMPLETE", "RUNNING"]
    done = swept(killed)
    assert done.returncode == 0, done.stderr

    expected, found = study_in(undisturbed), study_in(killed)
    assert [(one.params, one.values) for one in found.trials] == [
        (one.params, one.values) for one in expected.trials
    ]
    assert len({one.params[LEARNING_RATE] for one in found.trials}) == 3
    folders = [killed / f"runs/sweep/trial-{number}" for number in range(3)]
    assert [[summary(path)["evaluation_return_mean"]] for path in folders] == [
        one.values for one in found.trials
    ]
    assert results_only(rounds(trial)) == results_only(rounds(undisturbed / "runs/sweep/trial-1"))
    spent_usd = [summary(path)["spent_usd"] for path in folders]
    assert spent_usd[1] > spent_before_usd
    assert found.user_attrs["spent_usd"] == pytest.approx(sum(spent_usd))

    # The storage is Optuna's: its own command line finds the best trial.
    best, report = blocks("sh")[1].splitlines()
    shown = run(killed, str(Path(sys.executable).parent / "optuna"), *best.split()[1:])
    assert shown.returncode == 0, shown.stderr
    assert str(found.best_trial.number) in shown.stdout
    words = report.split()
    assert words[:4] == ["python", "-m", "runtime", "report"]
    shown = run(killed, sys.executable, *words[1:4], *map(str, folders))
    assert shown.returncode == 0, shown.stderr


class Training:
    """Stands for the training of trials, which spend these dollars; negative ones are interrupted once."""

    def __init__(self, spends: list[float]) -> None:
        self.spends = spends
        self.begun: list[str] = []

    def __call__(self, experiment: Any, *, out: Path, **named: Any) -> Any:
        number = int(out.name.removeprefix("trial-"))
        usd = self.spends[number]
        self.begun.append(out.name)
        out.mkdir(exist_ok=True)
        (out / "summary.json").write_text(json.dumps({"spent_usd": abs(usd)}))
        if usd < 0:
            self.spends[number] = -usd
            raise KeyboardInterrupt
        return nitro_rl.TrainingResult(out, {"evaluation_return_mean": float(number)})


@pytest.mark.parametrize(
    ("spends", "budget_usd", "begun"),
    [
        ([0.1, 0.1, 0.1], 1.0, 3),
        ([0.2, 0.2, 0.2, 0.2], 0.75, 3),
        ([0.25, 0.25, 0.25, 0.25], 0.75, 3),
        ([0.25, 0.25, 0.25], 0.7499, 2),
        ([-0.2, -0.2, 0.2], 0.6501, 3),
        ([0.2, -0.2, 0.2], 0.6499, 2),
    ],
)
def test_a_trial_starts_only_if_its_worst_case_fits_beside_all_that_was_spent(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spends: list[float],
    budget_usd: float,
    begun: int,
) -> None:
    """Trials of at most 0.25 dollars; an interrupted one continues, and counts once."""
    training = Training([*spends])
    monkeypatch.setattr(sweeps, "train", training)
    file = pendulum_file(tmp_path, budget={"usd": 0.25})

    def sweep() -> Any:
        return sweeps.sweep(
            file, SPACE, out=tmp_path / "out", budget_usd=budget_usd, trials=len(spends)
        )

    for usd in spends[:begun]:
        if usd < 0:
            with pytest.raises(KeyboardInterrupt):
                sweep()
    study = sweep()
    expected = [
        f"trial-{number}" for number in range(begun) for _ in range(1 + (spends[number] < 0))
    ]
    assert training.begun == expected
    assert len(study.trials) == begun
    assert study.user_attrs["spent_usd"] == pytest.approx(sum(map(abs, spends[:begun])))
    assert study.user_attrs["spent_usd"] <= budget_usd


def test_what_is_wrong_is_refused_before_it_costs_money(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training([0.1, 0.1])
    monkeypatch.setattr(sweeps, "train", training)
    file = pendulum_file(tmp_path, budget={"usd": 0.2})

    def sweep(space: Any = SPACE, file: Path = file, budget_usd: float = 1.0) -> Any:
        return sweeps.sweep(file, space, out=tmp_path / "out", budget_usd=budget_usd, trials=2)

    for message, space in (
        ("algorithm.lerning_rate", {"algorithm.lerning_rate": FloatDistribution(0, 1)}),
        ("learning_rate = -1", {LEARNING_RATE: FloatDistribution(-1, 1)}),
        ("is not allowed; allowed: a distribution of optuna", {LEARNING_RATE: (1e-4, 1e-2)}),
    ):
        with pytest.raises(RunError, match=message):
            sweep(space)
    with pytest.raises(
        BudgetTooSmallError, match="budget_usd = 0.19 does not hold a trial; .* 0.2"
    ):
        sweep(budget_usd=0.19)
    blind = pendulum_file(tmp_path, evaluation={"every_rounds": 0})
    with pytest.raises(RunError, match="every_rounds = 0: a sweep compares evaluations"):
        sweep(file=blind)
    pendulum_file(tmp_path, budget={"usd": 0.2})
    assert training.begun == []
    assert len(sweep().trials) == 2
    with pytest.raises(RunError, match=r"was another sweep: space algorithm\.learning_rate is"):
        sweep({LEARNING_RATE: FloatDistribution(1e-4, 1e-3)})
    pendulum_file(tmp_path, seed=9)
    with pytest.raises(RunError, match="was another sweep: seed is 9 now, 0 there"):
        sweep()
    assert training.begun == ["trial-0", "trial-1"]


def test_a_diverged_trial_has_failed_and_any_other_error_ends_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training([0.1, 0.1, 0.1])
    errors = [NotFiniteError("the loss is nan"), OSError("the disk is full")]

    def train(experiment: Any, *, out: Path, **named: Any) -> Any:
        result = training(experiment, out=out, **named)
        if errors and out.name != "trial-0":
            error = errors.pop(0)
            raise RunError(f"the training failed: {error}") from error
        return result

    monkeypatch.setattr(sweeps, "train", train)

    def sweep() -> Any:
        return sweeps.sweep(
            pendulum_file(tmp_path, budget={"usd": 0.2}),
            SPACE,
            out=tmp_path / "out",
            budget_usd=1.0,
            trials=3,
        )

    with pytest.raises(RunError, match="the disk is full"):
        sweep()
    study = sweep()
    assert [one.state.name for one in study.trials] == ["COMPLETE", "FAIL", "COMPLETE"]
    assert training.begun == ["trial-0", "trial-1", "trial-2", "trial-2"]
    assert study.user_attrs["spent_usd"] == pytest.approx(0.3)
