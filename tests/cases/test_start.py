"""What the start of a run says of limits, actions and errors."""

from __future__ import annotations

import re
import tempfile
import time
from pathlib import Path

import gymnasium
import mujoco
import numpy as np
import pytest

from lambda_actor import trial
from lambda_actor.check import main
from runtime.errors import FleetError
from runtime.fleet import FleetSetup
from runtime.fleet.ray_cluster import RayFleet
from tests.helpers import pendulum_file, train


class Push(gymnasium.Env):
    """Waits at each step.

    Its actions have no upper bound, and its ``close`` and ``__del__`` fail like those of a broken GL context.
    """

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gymnasium.spaces.Box(0, np.inf, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        time.sleep(0.003)
        return np.zeros(1, np.float32), 1.0, False, False, {}

    def close(self):
        raise AttributeError("'Context' object has no attribute '_context'")

    __del__ = close


def make_limited() -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(Push(), 30)


def test_limits_without_effect_actions_without_bounds_and_slow_steps_are_mentioned(
    tmp_path: Path,
) -> None:
    """Gymnasium #291, stable-baselines3 #897."""
    environment = {"id": f"{__name__}:make_limited", "max_episode_steps": 1000}
    file = pendulum_file(
        tmp_path,
        environment=environment,
        scaler={"kind": "fixed", "actors_fixed": 2, "actors_min": 1},
        stop={"max_rounds": 1},
        evaluation={"every_rounds": 0},
    )
    ended = train(file, tmp_path / "run")
    assert ended.returncode == 0, ended.stderr
    assert (
        "! limit: environment.max_episode_steps = 1,000 has no effect, because the environment or a wrapper ends "
        "episodes after 30 steps\n" in ended.stdout
    )
    assert "\nactions: Not rescaled. A new policy's are about -1 to 1; " in ended.stdout
    assert re.search(
        r"\nprocesses: A step takes [\d.]+ ms. fleet.processes = 1 play 2 actors in 2 environments. The simulator "
        r"mostly waits, so more are faster: --set fleet.processes=2\n",
        ended.stdout,
    )


def test_ignored_errors_take_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """MuJoCo #991."""
    assert main([f"{__name__}:make_limited", "8"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert re.fullmatch(r"! ignored: AttributeError: 'Context' .*, in .*, line \d+", lines[0])


def test_an_error_without_a_screen_names_the_setting_and_the_packages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Gymnasium #411."""
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    error = mujoco.FatalError("an OpenGL platform library has not been loaded into this process")
    words = trial.explained("mine:make", error)
    assert "MUJOCO_GL is not set; without a screen: MUJOCO_GL=egl with " in words
    assert "apt install libegl1" in words


def test_actors_are_other_processes(capsys: pytest.CaptureFixture[str]) -> None:
    """Ray #4591: an id that only the user's script registers."""
    assert [main([name, "8"]) for name in ("Mine-v0", "mine.make")] == [1, 1]
    said = capsys.readouterr().err
    assert said.endswith("; did you mean mine:make?\n")
    assert "actors are other processes" in said and "my_module:Mine-v0" in said


def test_sockets_of_ray_have_short_paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Verl #1120, Ray #7945: a scheduler's folder for temporary files is long."""
    ray = pytest.importorskip("ray", reason="needs the extra ray")
    settings: dict[str, str] = {}

    def init(**given: str) -> None:
        settings.update(given)
        raise RuntimeError("enough")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("x" * 60)))
    with pytest.raises(FleetError, match="cannot be started: enough"):
        RayFleet(
            FleetSetup(
                function="", concurrency=1, timeout_s=1.0, memory_mib=1769, log_path=tmp_path
            )
        )
    session = "session_2026-11-28_12-07-45_925550_4194304/sockets/plasma_store"
    assert len(f"{settings['_temp_dir']}/{session}") <= 107
