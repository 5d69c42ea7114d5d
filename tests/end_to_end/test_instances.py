"""Training whose instances play and learn on their own equals training in one process, whichever of them is killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from runtime.money.prices import PRICES
from tests.end_to_end.test_crashes import finished_rounds, start
from tests.helpers import (
    command_line,
    descendants,
    events,
    is_alive,
    overrides,
    results_only,
    rounds,
    train,
    wait_for,
)

EXPERIMENT = """\
environment: {id: Hopper-v5}
algorithm: {kind: ppo, epochs: 2, minibatch_steps: 128}
scaler: {kind: fixed, actors_fixed: 5}
actor: {fragment_steps: 64, timeout_s: 30}
learner: {device: cpu, threads: 1}
budget: {usd: 1.0}
stop: {max_rounds: 4}
evaluation: {every_rounds: 2, episodes: 1}
seed: 3
"""
INSTANCES = overrides(learner__kind="gmi", learner__instances=2, learner__reduction="mpr")
FIGURES = (
    "policy_loss",
    "value_loss",
    "entropy",
    "kl",
    "explained_variance",
    "episode_return_mean",
    "evaluation_return_mean",
    "episodes_finished",
    "env_steps_total",
    "episodes_spanning_versions",
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("instances") / "small.yaml"
    path.write_text(EXPERIMENT)
    return path


def instances_of(process: subprocess.Popen[str]) -> list[int]:
    """Returns the process ids of the instances."""
    return [pid for pid in descendants(process.pid) if b"runtime.gmi.worker" in command_line(pid)]


def has_ended(process: subprocess.Popen[str]) -> bool:
    """Fails, with what the process said, if it has ended."""
    assert process.poll() is None, process.communicate()[1]
    return False


def kill_in_rounds(process: subprocess.Popen[str], out: Path, drawn: random.Random) -> None:
    """Kills one instance in each of two rounds, then the trainer; returns when all have ended."""
    for round_index in range(1, 4):
        checkpoint = out / "checkpoints" / f"round_{round_index:06}.json"
        wait_for(
            lambda path=checkpoint: path.exists() or has_ended(process), f"round {round_index}"
        )
        below = descendants(process.pid)
        os.kill(
            drawn.choice(instances_of(process)) if round_index < 3 else process.pid, signal.SIGKILL
        )
    process.communicate()
    wait_for(lambda: not any(map(is_alive, below)), "the instances to end with the trainer")


OFF_POLICY = overrides(
    scaler__actors_fixed=6,
    algorithm__kind="impact",
    algorithm__minibatch_steps=128,
    algorithm__rounds="synchronous",
)
SHARING = overrides(
    learner__kind="gmi",
    learner__layout="asynchronous",
    learner__instances=4,
    learner__reduction="mpr",
)


@pytest.mark.parametrize(
    ("instances", "trainers", "settings", "layout"),
    [(2, 2, [], INSTANCES), (4, 1, OFF_POLICY, SHARING)],
    ids=["each plays and trains", "three play and one trains"],
)
def test_instances_train_as_one_process_does_whoever_is_killed(
    file: Path,
    tmp_path: Path,
    instances: int,
    trainers: int,
    settings: list[str],
    layout: list[str],
) -> None:
    """Kills instances in the middle of rounds, whatever they are doing. Then kills the trainer and resumes it."""
    alone, undisturbed, out = tmp_path / "alone", tmp_path / "undisturbed", tmp_path / "run"
    for place, arguments in ((alone, settings), (undisturbed, [*settings, *layout])):
        finished = train(file, place, *arguments)
        assert finished.returncode == 0, finished.stderr
    for found, expected in zip(rounds(undisturbed), rounds(alone), strict=True):
        assert (found["instances"], expected["instances"]) == (trainers, None)
        for key in FIGURES:
            assert found[key] == (
                None if expected[key] is None else pytest.approx(expected[key], rel=1e-3, abs=1e-5)
            ), key
    process = start(file, out, *settings, *layout)
    kill_in_rounds(process, out, random.Random(0))
    assert trainers < instances or events(out, "instance_replaced")
    resumed = train(file, out, *settings, *layout, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert without_failures(out) == without_failures(undisturbed)
    assert (out / "policy.safetensors").read_bytes() == (
        undisturbed / "policy.safetensors"
    ).read_bytes()
    assert not (out / ".updates").exists()


def test_neither_waits_for_the_other(file: Path, tmp_path: Path) -> None:
    """In asynchronous rounds, each step is counted once, whichever process is killed."""
    out, began_s = tmp_path / "run", time.monotonic()
    settings = overrides(algorithm__rounds="asynchronous", stop__max_rounds=18)
    process = start(file, out, *OFF_POLICY, *SHARING, *settings)
    for count in (1, 6, 12):
        wait_for(
            lambda count=count: finished_rounds(out) >= count or has_ended(process),
            f"round {count}",
        )
        os.kill(random.Random(count).choice(instances_of(process)), signal.SIGKILL)
    printed, _ = process.communicate()
    took_s = time.monotonic() - began_s
    assert process.returncode == 0, printed
    rows = rounds(out)
    assert rows[-1]["env_steps_total"] == sum(row["env_steps"] for row in rows)
    assert all(row["env_steps"] == 64 * row["actors_returned"] for row in rows)
    assert max(row["staleness_max"] for row in rows) > 0, "actors continued while trainers trained"
    seconds = (
        sum(row["learner_cost_usd"] for row in rows) / PRICES.instance_hour_usd["c7i.large"] * 3600
    )
    assert 0.0 < seconds <= sum(row["round_s"] for row in rows) <= took_s


def test_more_shared_memory_than_there_is_is_refused(file: Path, tmp_path: Path) -> None:
    sizes = overrides(
        actor__fragment_steps=1_000_000,
        scaler__actors_fixed=10_000,
        actor__timeout_s=15,
        budget__usd=1e5,
    )
    refused = train(file, tmp_path / "run", *OFF_POLICY, *SHARING, *sizes)
    assert refused.returncode == 2
    assert "fragment_steps = 1000000: needs " in refused.stderr
    assert "allowed: fewer or shorter fragments" in refused.stderr


def without_failures(out: Path) -> list[dict[str, Any]]:
    """Returns the rounds without the number of failed actors."""
    return [
        {key: value for key, value in row.items() if not key.startswith(("actors_", "lost_"))}
        for row in results_only(rounds(out))
    ]
