"""The command line's scheduler on the real engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from papers.minionsrl.__main__ import main, random_schedule
from tests.helpers import rounds
from tests.papers.minionsrl.workloads import make_surrogate, record, write
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


def test_a_scheduler_is_fine_tuned_on_real_runs_and_then_used(
    experiment: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], one_thread: None
) -> None:
    from papers.minionsrl.scheduler.recordings import read_recording
    from papers.minionsrl.scheduler.training import SchedulerLearner
    from runtime.scaler.saved_scheduler import load_scheduler

    begun, tuned = str(tmp_path / "begun.safetensors"), str(tmp_path / "tuned.safetensors")
    SchedulerLearner(2, 6).saved([{"phase": "made up", "usd": 2.0}], PRICING).save(Path(begun))
    assert main(["finetune", begun, experiment, "--episodes", "1", "--out", tuned]) == 0
    rows = rounds(tmp_path / "tuned.runs" / "episode-0001")
    assert [2 <= row["actor_count"] <= 6 for row in rows] == [True] * 3
    assert all(row["detect_s"] is None for row in rows), "an unused signal is not measured"
    capsys.readouterr()
    assert main(["show", tuned]) == 0
    shown = capsys.readouterr().out
    path = tmp_path / "tuned.runs" / "episode-0001"
    run = read_recording(path, load_scheduler(Path(tuned)).pricing)
    assert f"all of this cost ${2.0 + run.spent_usd:.4f}" in shown
    assert "fine-tuned on real runs" in shown
    assert (
        main(["finetune", begun, experiment, "--set", "scaler.actors_max=5", "--out", tuned]) == 2
    )
    assert "the scheduler chooses from 2 to 6 actors" in capsys.readouterr().err


def test_recorded_counts_are_log_uniform_and_all_in_bounds(
    experiment: str, tmp_path: Path, one_thread: None
) -> None:
    schedule = random_schedule(2, 31, seed=3)
    counts = [count for _, count in schedule]
    assert (min(counts), max(counts)) == (2, 31)
    assert sum(count < 8 for count in counts) / 1000 == pytest.approx(0.5, abs=0.05)
    assert main(["record", experiment, "--runs", "1", "--out", str(tmp_path)]) == 0
    assert [row["actor_count"] for row in rounds(tmp_path / "run-001")] == [
        count for _, count in random_schedule(2, 6, seed=1)[:3]
    ]


def test_recordings_become_a_surrogate_and_that_a_scheduler(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], one_thread: None
) -> None:
    for seed in range(2):
        run = record(
            make_surrogate(workload={"max_rounds": 12}),
            lambda _, draws: int(draws.integers(2, 7)),
            seed,
        )
        write(run, tmp_path / f"run-{seed}")
    surrogate, out = str(tmp_path / "s.json"), str(tmp_path / "a.safetensors")
    assert main(["fit", str(tmp_path), "--out", surrogate]) == 0
    assert "return_gain" in capsys.readouterr().out
    assert main(["train", surrogate, "--episodes", "1", "--out", out]) == 0
    assert "went into it (by counts)" in capsys.readouterr().out


def test_what_cannot_be_trained_is_refused(
    experiment: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_scheduler().save(tmp_path / "a.safetensors")
    for words, message in (
        (["train", "--out", "x"], "name either a surrogate or --real"),
        (
            ["train", "s.json", "--out", "x.runs"],
            "--out x.runs: allowed: a name that ends in .safetensors",
        ),
        (["show", "nobody"], "nobody.safetensors' cannot be read"),
        (
            ["record", experiment, "--set", "stop.target_return=null", "--out", "x"],
            "stop.target_return = null",
        ),
        (["finetune", str(tmp_path / "a.safetensors"), experiment, "--out", "x"], "has no critic"),
    ):
        assert main(words) == 2
        assert message in capsys.readouterr().err
