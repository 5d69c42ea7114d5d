"""The command line's scheduler on the real engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from papers.minionsrl.__main__ import main
from papers.minionsrl.runs import read_run
from papers.minionsrl.training import SchedulerLearner
from runtime.scaler.interfaces import RoundView
from runtime.scaler.minions_settings import MinionsSettings
from runtime.scaler.saved_scheduler import load_scheduler
from tests.helpers import rounds
from tests.scaler.schedulers import PRICING, make_scheduler

EXPERIMENT = """\
environment: {id: Pendulum-v1}
algorithm: {kind: ppo, epochs: 1, minibatch_steps: 64}
scaler: {kind: nitro, actors_min: 2, actors_max: 6}
actor: {fragment_steps: 16, provisioned: 0}
learner: {device: cpu, threads: 1}
fleet: {processes: 1}
cache: {kind: none}
budget: {usd: 1.0}
stop: {max_rounds: 3, target_return: 1000}
evaluation: {every_rounds: 9, episodes: 1}
"""


@pytest.fixture
def experiment(tmp_path: Path) -> str:
    path = tmp_path / "pendulum.yaml"
    path.write_text(EXPERIMENT)
    return str(path)


def test_a_scheduler_is_trained_further_on_real_runs_and_then_shown(
    experiment: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], one_thread: None
) -> None:
    begun, tuned = str(tmp_path / "begun.safetensors"), str(tmp_path / "tuned.safetensors")
    SchedulerLearner(2, 6).saved([{"phase": "made up", "usd": 2.0}], PRICING).save(Path(begun))
    words = ["train", experiment, "--from", begun, "--episodes", "1", "--out", tuned]
    assert main(words) == 0
    path = tmp_path / "tuned.runs" / "episode-0001"
    rows = rounds(path)
    assert [2 <= row["actor_count"] <= 6 for row in rows] == [True] * 3
    assert all(row["detect_s"] is None for row in rows), "an unused signal is not measured"
    assert "seed: 10001" in (path / "config.yaml").read_text(), "reported runs have other seeds"
    capsys.readouterr()
    assert main(["show", tuned]) == 0
    shown = capsys.readouterr().out
    run = read_run(path, load_scheduler(Path(tuned)).pricing)
    drew = str(tmp_path / "tuned.runs" / "scheduler-0001.safetensors")
    scaler = MinionsSettings(actors_min=2, actors_max=6, scheduler=drew).make()
    for k, finished in enumerate(run.rows, start=1):
        view = RoundView(k, target_return=1000.0, budget_usd=1.0, seed=10_001)
        assert scaler.decide(view).actor_count == finished.actor_count
        scaler.observe(finished)
    assert f"all of this cost ${2.0 + run.spent_usd:.4f}" in shown
    assert "2. trained on real runs" in shown
    assert main([*words, "--set", "scaler.actors_max=5"]) == 2
    assert "chooses from 2 to 6 actors" in capsys.readouterr().err


def test_what_cannot_be_trained_is_refused(
    experiment: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_scheduler().save(tmp_path / "a.safetensors")
    out = ["--out", str(tmp_path / "x.safetensors")]
    for words, message in (
        (["train", experiment, "--out", "x.runs"], "allowed: a name that ends in .safetensors"),
        (["train", experiment, "--out", "nowhere/x.safetensors"], "cannot be written"),
        (["show", "nobody"], "nobody.safetensors' cannot be read"),
        (
            ["train", experiment, "--set", "stop.target_return=null", *out],
            "stop.target_return = null",
        ),
        (["train", experiment, "--from", str(tmp_path / "a.safetensors"), *out], "has no critic"),
    ):
        assert main(words) == 2
        assert message in capsys.readouterr().err
