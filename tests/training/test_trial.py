"""What is tried and proven of an environment before a run, and what one that replays is billed and tells."""

from __future__ import annotations

import builtins
import itertools
import json
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from lambda_actor.environments import make_environment
from runtime.config.loading import load_experiment
from runtime.config.resolved import FittedExperiment
from runtime.errors import ExperimentError
from runtime.training.preflight import preflight
from runtime.training.trial import prove_replay, try_environment
from tests.environments import Counter
from tests.helpers import ROOT, command, is_alive, results_only, rounds, train, wait_for

LIMITED = f"{__name__}:make_long"


def make_long() -> gymnasium.Env:
    """An episode of fifty steps at most, which nobody can save."""
    return gymnasium.wrappers.TimeLimit(Counter(episode_steps=None), 50)


def make_very_long() -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(Counter(episode_steps=None), 100_000)


def make_normalized() -> gymnasium.Env:
    return gymnasium.wrappers.NormalizeObservation(make_long())


class Local(Counter):
    """Shows the process that it is in."""

    def _observation(self) -> np.ndarray:
        return np.array([self.count, os.getpid()], np.float32)


def make_local() -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(Local(episode_steps=None), 50)


class Remembering(Counter):
    """Shows how many episodes it has begun."""

    begun = 0

    def reset(self, *, seed=None, options=None):
        self.begun += 1
        return super().reset(seed=seed)

    def _observation(self) -> np.ndarray:
        return np.array([self.count, self.begun], np.float32)


def make_remembering() -> gymnasium.Env:
    return Remembering(episode_steps=8)


class Starting(Counter):
    """Starts a program that inherits its output, and elsewhere a thread that does not end."""

    def __init__(self, home: int, pids: str) -> None:
        super().__init__(episode_steps=None)
        self.program = subprocess.Popen(["sleep", "600"])
        with Path(pids).open("a") as file:
            file.write(f"{self.program.pid}\n")
        if os.getpid() != home:
            threading.Thread(target=time.sleep, args=(600,)).start()

    def close(self):
        self.program.kill()
        self.program.wait()
        raise RuntimeError("closing it is a mess")


def write(path: Path, environment_id: str, fragment_steps: int = 20, **environment: object) -> Path:
    section = {"id": environment_id, **environment}
    path.write_text(f"""
environment: {section}
algorithm: {{kind: ppo, ppo: {{epochs: 1, minibatch_steps: 32}}}}
scaler: {{kind: fixed, actors_fixed: 2}}
actor: {{fragment_steps: {fragment_steps}, timeout_s: 30, provisioned: 0}}
budget: {{usd: 1.0}}
stop: {{max_rounds: 4}}
evaluation: {{every_rounds: 0}}
""")
    return path


class Broken(Counter):
    """Raises at its third step."""

    def __init__(self, error: str) -> None:
        super().__init__()
        self.error = getattr(builtins, error)

    def step(self, action):
        if self.count == 2:
            raise self.error("the motor is on fire")
        return super().step(action)


class Stopping(Counter):
    """Hangs, or ends its process, at one place."""

    def __init__(self, marker: str, place: str, how: str) -> None:
        super().__init__(episode_steps=None)
        self.marker, self.place, self.how = Path(marker), place, how
        self._pass("make")

    def reset(self, *, seed=None, options=None):
        self._pass("reset")
        return super().reset(seed=seed)

    def step(self, action):
        if self.count == 2:
            self._pass("step")
        return super().step(action)

    def _pass(self, place: str) -> None:
        if place == self.place and self.how == "exit":
            print("goodbye", flush=True)
            os._exit(0)
        if place == self.place:
            self.marker.write_text(str(os.getpid()))
            while True:
                pass


def made(environment_id: str) -> str:
    return json.dumps([environment_id, "auto", {}])


def fitted(path: Path) -> FittedExperiment:
    return preflight(load_experiment(path).resolved())[1]


@pytest.mark.parametrize(("environment_id", "steps", "way"), [
    (LIMITED, 20, "reset"), (f"{__name__}:make_remembering", 5, "anew"), ("BipedalWalker-v3", 40, "anew")])
def test_how_episodes_are_replayed_is_found_out(environment_id: str, steps: int, way: str) -> None:
    assert prove_replay(made(environment_id), steps) == way


def test_what_shows_its_process_is_not_deterministic() -> None:
    with pytest.raises(ExperimentError, match=r"In another process: .* at step 1 of 20 .* not deterministic.*Allowed"):
        prove_replay(made(f"{__name__}:make_local"), 20)


@pytest.mark.parametrize("error", ["RuntimeError", "SystemExit"])
def test_an_environment_that_raises_is_refused_with_what_it_said(error: str) -> None:
    with pytest.raises(ExperimentError, match=f"it raised when it was tried: {error}: the motor is on fire"):
        prove_replay(json.dumps([f"{__name__}:Broken", "auto", {"kwargs": {"error": error}}]), 20)


def tried(path: Path, **kwargs: object) -> None:
    """Tries `Stopping`, which saves nothing, in a run's trial, without the run."""
    fitted(write(path / "one.yaml", f"{__name__}:Stopping", max_episode_steps=50, kwargs={
        "marker": str(path / "stopped"), **kwargs}))


PLACES = {"make": "being imported and made", "reset": r"in reset\(seed=\d+\)", "step": "in step 3 of an episode"}


@pytest.mark.parametrize("place", PLACES)
def test_an_environment_that_never_returns_is_told_of_and_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    marker, seen = tmp_path / "stopped", itertools.count(-1)

    class Clock:
        """Stands still until it hangs, and once more; goes in steps of a hundred seconds from then on."""

        @staticmethod
        def monotonic() -> float:
            return 100.0 * max(0, next(seen)) if marker.exists() else 0.0

    monkeypatch.setattr("runtime.training.trial.time", Clock)
    monkeypatch.setattr("runtime.training.trial._POLL_S", 0.05)
    with pytest.raises(ExperimentError, match=f"{__name__}:Stopping'.* it was still {PLACES[place]} after 600 s"):
        tried(tmp_path, place=place, how="hang")
    assert re.search(f"^! environment.id = .* still {PLACES[place]} after 30 s; after 600 s it is refused\n$",
                     capsys.readouterr().err)
    assert not is_alive(int(marker.read_text()))


@pytest.mark.parametrize("place", PLACES)
def test_an_environment_that_ends_its_process_is_refused_with_what_it_was_doing(tmp_path: Path, place: str) -> None:
    with pytest.raises(ExperimentError, match=r"it ended the process that it was tried in \(exit code 0\), while it "
                                              f"was {PLACES[place]}; the last line there: goodbye"):
        tried(tmp_path, place=place, how="exit")


def test_a_trial_ends_with_a_killed_trainer(tmp_path: Path) -> None:
    marker = tmp_path / "stopped"
    path = write(tmp_path / "one.yaml", f"{__name__}:Stopping", max_episode_steps=50, kwargs={
        "marker": str(marker), "place": "step", "how": "hang"})
    trainer = subprocess.Popen(command("train", str(path), "--out", str(tmp_path / "run")), cwd=ROOT)
    wait_for(lambda: marker.exists() and marker.read_text(), "the trial")
    trainer.kill()
    trainer.wait()
    wait_for(lambda: not is_alive(int(marker.read_text())), "the trial's process to end")


def test_what_an_environment_is_like_is_told_as_it_is() -> None:
    for environment_id in ("Hopper-v5", "CartPole-v1", "tests.environments:make_signs", LIMITED):
        found, environment = try_environment(environment_id), make_environment(environment_id)
        assert found.spaces == environment.spaces
        assert (found.preprocessing, found.episode_steps_max, found.can_save_episode, found.cannot_save_reason) == (
            environment.preprocessing, environment.episode_steps_max, environment.can_save_episode,
            environment.cannot_save_reason)


def test_nothing_that_an_environment_starts_holds_up_or_outlives_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.training.trial._PATIENCE_S", 60)
    path = write(tmp_path / "one.yaml", f"{__name__}:Starting", max_episode_steps=50, kwargs={
        "home": os.getpid(), "pids": str(tmp_path / "pids")})
    finished = train(path, tmp_path / "run", "--set", "stop.max_rounds=1", "--set", "evaluation.every_rounds=1",
                     "--set", "evaluation.episodes=1")
    assert finished.returncode == 0, finished.stderr
    evaluated = subprocess.run(
        [sys.executable, "-m", "runtime", "evaluate", str(tmp_path / "run")], capture_output=True, text=True,
        check=False, timeout=60)
    assert evaluated.returncode == 0, evaluated.stderr
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) >= 6, "here, replayed here and elsewhere, two actors, two evaluations"
    wait_for(lambda: not any(map(is_alive, pids)), "what the environments have started to end")


@pytest.mark.parametrize(("environment_id", "told"), [
    ("tests.environments:make_stateless_counter", "no limit of steps that Gymnasium knows, and Counter offers no"),
    (f"{__name__}:make_very_long", "can have 100,000 steps, .* fit a message up to 81,920 steps"),
    (f"{__name__}:make_normalized", "wrapper NormalizeObservation keeps moments across episodes"),
])
def test_what_cannot_be_replayed_is_refused(tmp_path: Path, environment_id: str, told: str) -> None:
    with pytest.raises(ExperimentError, match=told):
        fitted(write(tmp_path / "one.yaml", environment_id))
    cut = fitted(write(tmp_path / "two.yaml", environment_id, truncate_at_fragment=True))
    assert cut.environment.replay == ""


@pytest.mark.parametrize(("environment_id", "fragment_steps"), [(LIMITED, 50), ("Hopper-v5", 20)])
def test_what_needs_no_replay_has_none(tmp_path: Path, environment_id: str, fragment_steps: int) -> None:
    environment = fitted(write(tmp_path / "one.yaml", environment_id, fragment_steps)).environment
    assert (environment.replay, environment.replay_steps_max) == ("", 0)


def test_a_run_replays_the_same_whoever_continues_an_episode_and_whenever_it_is_resumed(tmp_path: Path) -> None:
    path = write(tmp_path / "one.yaml", LIMITED)
    runs = {name: tmp_path / name for name in ("one process", "two processes")}
    for processes, out in enumerate(runs.values(), 1):
        fleet = ("--set", f"fleet.processes={processes}")
        if processes == 2:
            assert train(path, out, *fleet, "--set", "stop.max_rounds=2").returncode == 0
        finished = train(path, out, "--resume", *fleet)
        assert finished.returncode == 0, finished.stderr
    one, two = (rounds(out) for out in runs.values())
    assert results_only(one) == results_only(two)
    # Two episodes of fifty steps, twenty in each round; the third round ends them and leaves ten steps of the next.
    assert [row["replayed_steps"] for row in one] == [0, 40, 80, 20]
    assert [row["episodes_finished"] for row in one] == [0, 0, 2, 0]
    assert make_environment(LIMITED).episode_steps_max == 50
