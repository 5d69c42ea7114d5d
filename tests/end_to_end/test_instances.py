"""Training whose instances play and learn on their own equals training in one process, whichever of them is killed."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from runtime.money.prices import PRICES
from tests.end_to_end.test_crashes import start
from tests.helpers import (
    command_line,
    descendants,
    events,
    is_alive,
    overrides,
    results_only,
    rounds,
    summary,
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
stop: {max_rounds: 6}
evaluation: {every_rounds: 2, episodes: 1}
seed: 3
"""
INSTANCES = overrides(learner__kind="gmi", learner__instances=2, learner__reduction="mpr")
FILES = {2: 44, 8: 56}
"""Open files per number of instances: these are enough, and one fewer is refused."""
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


@pytest.fixture(scope="module")
def undisturbed(file: Path) -> Path:
    """The directory of an undisturbed run of two instances."""
    out = file.parent / "undisturbed"
    finished = train(file, out, *INSTANCES)
    assert finished.returncode == 0, finished.stderr + finished.stdout
    return out


def instances_of(process: subprocess.Popen[str]) -> list[int]:
    """Returns the process ids of the instances."""
    return [pid for pid in descendants(process.pid) if b"runtime.gmi.worker" in command_line(pid)]


def start_limited(file: Path, out: Path, instances: int, *arguments: str) -> subprocess.Popen[str]:
    """Starts a run whose trainer has no more open files than the required minimum."""
    process = start(file, out, *arguments)
    # From the first instance on: the helper of `tests.warm`, forked before, has more.
    wait_for(lambda: instances_of(process), "an instance")
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (FILES[instances],) * 2)
    return process


def test_instances_train_as_one_process_does(file: Path, undisturbed: Path) -> None:
    alone = file.parent / "alone"
    finished = train(file, alone)
    assert finished.returncode == 0, finished.stderr
    for found, expected in zip(rounds(undisturbed), rounds(alone), strict=True):
        assert found["instances"] == 2
        assert expected["instances"] is None
        for key in FIGURES:
            assert found[key] == (
                None if expected[key] is None else pytest.approx(expected[key], rel=1e-3, abs=1e-5)
            ), key
    assert not (undisturbed / ".updates").exists()


def kill_in_rounds(process: subprocess.Popen[str], out: Path, drawn: random.Random) -> None:
    """Kills one instance in each of three rounds, then the trainer; returns when all have ended."""
    for round_index in range(1, 5):
        wait_for(
            (out / "checkpoints" / f"round_{round_index:06}.json").exists, f"round {round_index}"
        )
        below = descendants(process.pid)
        os.kill(
            drawn.choice(instances_of(process)) if round_index < 4 else process.pid, signal.SIGKILL
        )
    process.communicate()
    wait_for(lambda: not any(map(is_alive, below)), "the instances to end with the trainer")


def test_whoever_is_killed_the_rounds_are_the_same_to_the_bit(
    file: Path, undisturbed: Path, tmp_path: Path
) -> None:
    """Kills instances in the middle of rounds, whatever they are doing. Then kills the trainer and resumes it."""
    out = tmp_path / "run"
    process = start_limited(file, out, 2, *INSTANCES)
    wait_for((out / "checkpoints" / "round_000001.json").exists, "round 1")
    if len(os.sched_getaffinity(0)) > 1:
        mine = [os.sched_getaffinity(one) for one in instances_of(process)]
        assert len(mine) == 2 and not mine[0] & mine[1], "each has its own cores"
    kill_in_rounds(process, out, random.Random(0))
    assert "instance_replaced" in {event["event"] for event in events(out)}
    resumed = train(file, out, *INSTANCES, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert without_failures(out) == without_failures(undisturbed)
    assert (out / "policy.safetensors").read_bytes() == (
        undisturbed / "policy.safetensors"
    ).read_bytes()


OFF_POLICY = overrides(
    scaler__actors_fixed=6, algorithm__kind="impact", algorithm__minibatch_steps=128
)
SHARING = (
    *OFF_POLICY,
    *overrides(
        learner__kind="gmi",
        learner__layout="asynchronous",
        learner__instances=8,
        learner__reduction="mpr",
    ),
)
IN_TURNS = overrides(algorithm__rounds="synchronous")


@pytest.fixture(scope="module")
def shared(file: Path) -> Path:
    """The directory of a run whose six serving instances share their fragments with two trainers, in turns."""
    out = file.parent / "shared"
    finished = train(file, out, *SHARING, *IN_TURNS)
    assert finished.returncode == 0, finished.stderr + finished.stdout
    return out


def test_trainers_train_on_what_others_play_as_one_process_does(file: Path, shared: Path) -> None:
    alone = file.parent / "alone_off_policy"
    finished = train(file, alone, *OFF_POLICY, *IN_TURNS)
    assert finished.returncode == 0, finished.stderr
    for found, expected in zip(rounds(shared), rounds(alone), strict=True):
        assert found["instances"] == 2
        for key in FIGURES:
            assert found[key] == (
                None if expected[key] is None else pytest.approx(expected[key], rel=1e-3, abs=1e-5)
            ), key


def test_neither_a_serving_instance_nor_a_trainer_takes_anything_with_it(
    file: Path, shared: Path, tmp_path: Path
) -> None:
    out, arguments = tmp_path / "run", (*SHARING, *IN_TURNS)
    kill_in_rounds(start_limited(file, out, 8, *arguments), out, random.Random(1))
    resumed = train(file, out, *arguments, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert without_failures(out) == without_failures(shared)
    assert (out / "policy.safetensors").read_bytes() == (shared / "policy.safetensors").read_bytes()


def test_neither_waits_for_the_other(file: Path, tmp_path: Path) -> None:
    """In asynchronous rounds, each step is counted once, whichever process is killed."""
    out, began_s = tmp_path / "run", time.monotonic()
    process = start_limited(file, out, 8, *SHARING, *overrides(stop__max_rounds=36))
    for count in (1, 6, 12, 18):
        wait_for(
            lambda count=count: (
                (out / "rounds.jsonl").exists()
                and (out / "rounds.jsonl").read_bytes().count(b"\n") >= count
            ),
            f"round {count}",
        )
        os.kill(random.Random(count).choice(instances_of(process)), signal.SIGKILL)
    told, _ = process.communicate()
    took_s = time.monotonic() - began_s
    assert process.returncode == 0, told
    rows = rounds(out)
    assert len(rows) == 36
    assert rows[-1]["env_steps_total"] == sum(row["env_steps"] for row in rows)
    assert all(row["env_steps"] == 64 * row["actors_returned"] for row in rows)
    assert max(row["staleness_max"] for row in rows) > 0, "actors continued while trainers trained"
    seconds = (
        sum(row["learner_cost_usd"] for row in rows) / PRICES.instance_hour_usd["c7i.large"] * 3600
    )
    assert 0.0 < seconds <= sum(row["round_s"] for row in rows) <= took_s


def test_too_low_a_limit_of_open_files_is_refused(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (FILES[2] - 1, FILES[2] - 1))
    refused = train(file, tmp_path / "run", *INSTANCES)
    assert refused.returncode == 2
    assert "learner.instances = 2: " in refused.stderr
    assert (
        f"it may have {FILES[2] - 1}; allowed: 1 to 1, or ulimit -n {FILES[2]}\n" in refused.stderr
    )


def test_more_instances_than_memory_holds_are_refused(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        os, "sysconf", {"SC_PHYS_PAGES": 900 * 256, "SC_PAGE_SIZE": 4096}.__getitem__
    )
    refused = train(file, tmp_path / "run", *INSTANCES, *overrides(learner__instances=5))
    assert refused.returncode == 2
    assert (
        "instances = 5: each takes 200 MiB at least, and this machine has 900 MiB; allowed: 1 to 4\n"
        in (refused.stderr)
    )


def test_more_shared_memory_than_there_is_is_refused(file: Path, tmp_path: Path) -> None:
    refused = train(
        file,
        tmp_path / "run",
        *SHARING,
        *overrides(
            actor__fragment_steps=1_000_000,
            scaler__actors_fixed=10_000,
            actor__timeout_s=15,
            budget__usd=1e5,
        ),
    )
    assert refused.returncode == 2
    assert (
        "scaler.actors_fixed = 10000 with actor.fragment_steps = 1000000 share " in refused.stderr
    )
    assert "allowed: fewer or shorter fragments" in refused.stderr


def test_the_smallest_budget_that_is_allowed_holds_a_round(file: Path, tmp_path: Path) -> None:
    def done_with(usd: float) -> Any:
        settings = overrides(budget__usd=usd, stop__max_rounds=1)
        return train(file, tmp_path / "run", *INSTANCES, *settings)

    usd = 1e-6
    while (done := done_with(usd)).returncode == 2:
        # Each trial measures its own seconds.
        allowed_usd = float(done.stderr.split("allowed: budget.usd from ")[1].split(",")[0])
        assert allowed_usd > usd
        usd = allowed_usd
    assert done.returncode == 0, done.stderr
    assert usd > 1e-6
    assert summary(tmp_path / "run")["stop_reason"] == "max_rounds"


def without_failures(out: Path) -> list[dict[str, Any]]:
    """Returns the rounds without the number of failed actors."""
    return [
        {key: value for key, value in row.items() if not key.startswith(("actors_", "lost_"))}
        for row in results_only(rounds(out))
    ]
