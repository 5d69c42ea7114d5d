"""Training in a user's own batched environment, from the command line: the example, kill -9, and refusals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lambda_actor.errors import UnusableEnvironmentError
from runtime.gmi.worlds.playing import WorldsTasks
from tests.end_to_end.test_crashes import finished_rounds
from tests.end_to_end.test_instances import instances_of
from tests.helpers import (
    ROOT,
    command,
    events,
    overrides,
    results_only,
    rounds,
    run_command,
    summary,
    train,
    wait_for,
)

EXAMPLE = ROOT / "docs" / "example_environment"
FILE = EXAMPLE / "thermostats.yaml"
SMALL = overrides(
    learner__device="cpu",
    scaler__actors_fixed=50,
    algorithm__minibatch_steps=400,
    stop__max_rounds=12,
    evaluation__every_rounds=4,
)
BROKEN = """
import torch
from thermostats import Thermostats

class Wrong(Thermostats):
    def __init__(self, what, **arguments):
        super().__init__(**arguments)
        self.what = what
        if what == "count":
            self.num_envs += 1
        if what == "raises":
            raise ValueError("no such room")

    def step(self, actions):
        observations, rewards, dones, extras = super().step(actions)
        match self.what:
            case "shape":
                rewards = rewards[:, None]
            case "dtype":
                observations = observations.double()
            case "flags":
                dones = dones.float()
            case "array":
                rewards = rewards.numpy()
            case "nan":
                rewards = rewards / 0.0 * 0.0
            case "finals":
                extras["final_observations"] = observations[:, :1]
        return observations, rewards, dones, extras

    def state(self):
        state = super().state()
        if self.what == "state":
            state["chance"] = torch.Generator().manual_seed(1).get_state()
        return state

class Bare:
    num_envs = num_actions = 4

    def __init__(self, **arguments):
        pass
"""


@pytest.fixture(autouse=True)
def _path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Puts the example, and broken environments, where Python finds them."""
    (tmp_path / "broken_rooms.py").write_text(BROKEN)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(EXAMPLE), str(tmp_path)]))
    monkeypatch.setattr(sys, "path", [*sys.path, str(EXAMPLE), str(tmp_path)])
    yield


def start(*arguments: str, out: Path) -> subprocess.Popen[str]:
    """Starts a training of the example, which finds its module as this process does."""
    return subprocess.Popen(
        command("train", str(FILE), "--out", str(out), *arguments),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def learned(out: Path) -> tuple[list[dict[str, Any]], bytes]:
    return results_only(rounds(out)), (out / "policy.safetensors").read_bytes()


def test_the_example_learns_and_its_end_counts_worlds(tmp_path: Path) -> None:
    finished = train(FILE, tmp_path / "run", *overrides(learner__device="cpu"))
    assert finished.returncode == 0, finished.stderr + finished.stdout
    assert "40, 512 worlds" in finished.stdout and "0 actors" not in finished.stdout
    rows = rounds(tmp_path / "run")
    assert [row["env_steps_total"] for row in rows] == [512 * 32 * (n + 1) for n in range(40)]
    assert {row["actor_count"] for row in rows} == {512}
    evaluated = [row["evaluation_return_mean"] for row in rows if row["evaluation_round"]]
    assert len(evaluated) == 4 and evaluated[-1] > 96.0
    # The first whole episodes end in the fourth round.
    assert rows[3]["episode_return_mean"] < 85.0 < rows[-1]["episode_return_mean"]
    assert summary(tmp_path / "run")["worlds"] == 512
    assert "rescale_actions: false" in (tmp_path / "run" / "config.yaml").read_text()
    refused = run_command("evaluate", str(tmp_path / "run"))
    assert refused.returncode == 2
    assert "batched environment, 'thermostats:Thermostats'" in refused.stderr


@pytest.mark.parametrize("instances", [1, 2])
def test_a_killed_run_is_resumed_to_the_bit(tmp_path: Path, instances: int) -> None:
    changes = [*SMALL, *overrides(learner__instances=instances, learner__reduction="mpr")]
    undisturbed, out = tmp_path / "undisturbed", tmp_path / "run"
    assert train(FILE, undisturbed, *changes).returncode == 0
    process = start(*changes, out=out)
    wait_for(lambda: finished_rounds(out) >= 3, "three rounds")
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    resumed = train(FILE, out, *changes, "--resume")
    assert resumed.returncode == 0, resumed.stderr + resumed.stdout
    (begun,) = [one for one in events(out, "run_started") if one["resumed_after_round"]]
    assert begun["resumed_after_round"] >= 1
    assert learned(out) == learned(undisturbed)
    assert any(row["episodes_spanning_versions"] for row in rounds(out))


def test_an_instance_that_dies_is_replaced_with_new_episodes(tmp_path: Path) -> None:
    out = tmp_path / "run"
    changes = [*SMALL, *overrides(learner__instances=2, stop__max_rounds=60)]
    process = start(*changes, out=out)
    wait_for(lambda: finished_rounds(out) >= 2, "two rounds")
    os.kill(instances_of(process)[0], signal.SIGKILL)
    output, errors = process.communicate()
    assert process.returncode == 0, output + errors
    assert len(events(out, "instance_replaced")) == 1
    assert [row["env_steps"] for row in rounds(out)] == [50 * 32] * 60


def test_without_a_state_a_resumed_run_begins_new_episodes(tmp_path: Path) -> None:
    (tmp_path / "stateless.py").write_text(
        "from thermostats import Thermostats\n"
        "class Stateless(Thermostats):\n"
        "    state = property()\n"
    )
    out, changes = tmp_path / "run", [*SMALL, *overrides(environment__id="stateless:Stateless")]
    assert train(FILE, out, *changes, *overrides(stop__max_rounds=3)).returncode == 0
    resumed = train(FILE, out, *changes, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    rows = rounds(out)
    assert len(rows) == 12
    # Rounds have 32 steps, and episodes at most 100: the fourth round is the first of all episodes.
    assert all(
        row["episode_length_mean"] is None or row["episode_length_mean"] <= 32 for row in rows[3:4]
    )


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("count", "num_envs is 5; allowed: the 4 asked for"),
        ("raises", "ValueError: no such room"),
        ("shape", "the reward of step() has the shape [4, 1]; allowed: [4]"),
        ("dtype", "the observation of step() is torch.float64; allowed: torch.float32"),
        ("flags", "the third result of step() is torch.float32; allowed: bool or whole numbers"),
        ("array", "the reward of step() is a ndarray; allowed: a torch.Tensor"),
        ("nan", "rewards of step 1 are not finite; allowed: finite numbers"),
        ("finals", "extras['final_observations'] of step() has the shape [4, 1]; allowed: [4, 2]"),
        ("state", "after set_state(state()), step 1 differs"),
    ],
)
def test_a_trial_refuses_an_unusable_environment(what: str, says: str) -> None:
    made = {"backend": "torch", "id": "broken_rooms:Wrong", "kwargs": {"what": what}}
    with pytest.raises(UnusableEnvironmentError) as error:
        WorldsTasks(lambda *_: None, {**made, "max_episode_steps": None}, "cpu").play()
    assert str(error.value).startswith("environment.id = 'broken_rooms:Wrong'")
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"environment__id": "broken_rooms:Bare"},
            "it has no get_observations, step, as rsl-rl's VecEnv",
        ),
        (
            {"environment__rescale_actions": True},
            "environment.rescale_actions = True is not possible with environment.backend = torch; leave it out",
        ),
        (
            {"algorithm__kind": "impact"},
            "algorithm.kind = impact is not possible with environment.backend = torch",
        ),
    ],
)
def test_what_worlds_cannot_be_is_refused_in_one_line_before_a_run_begins(
    tmp_path: Path, changes: dict[str, str], says: str
) -> None:
    refused = train(FILE, tmp_path / "run", *overrides(learner__device="cpu", **changes))
    assert refused.returncode == 2
    assert says in refused.stderr.strip().splitlines()[-1]
    assert not (tmp_path / "run" / "rounds.jsonl").exists()
