"""Trials and proofs of an environment before a run, and the bill and report of one that replays."""

from __future__ import annotations

import builtins
import os
import re
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest

from lambda_actor.environments import make_environment
from lambda_actor.rollout import EPISODE_BYTES_MAX
from runtime.errors import ExperimentError
from runtime.experiment.loading import load_experiment
from runtime.experiment.resolved import ResolvedExperiment
from runtime.training.preflight import preflight
from runtime.training.trial import try_environment
from tests.environments import Counter, StatefulCounter
from tests.helpers import PATIENCE_S, ROOT, command, is_alive, results_only, rounds, train, wait_for

LIMITED = f"{__name__}:make_long"


def make_long() -> gymnasium.Env:
    """An episode of at most fifty steps that cannot be saved."""
    return gymnasium.wrappers.TimeLimit(Counter(episode_steps=None), 50)


def make_very_long() -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(Counter(episode_steps=None), 100_000)


def make_normalized() -> gymnasium.Env:
    return gymnasium.wrappers.NormalizeObservation(make_long())


class Local(Counter):
    """Shows the process in which it runs."""

    def _observation(self) -> np.ndarray:
        return np.array([self.count, os.getpid()], np.float32)


def make_local() -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(Local(episode_steps=None), 50)


class Remembering(Counter):
    """Shows the number of episodes begun."""

    begun = 0

    def reset(self, *, seed=None, options=None):
        self.begun += 1
        return super().reset(seed=seed)

    def _observation(self) -> np.ndarray:
        return np.array([self.count, self.begun], np.float32)


def make_remembering() -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(Remembering(episode_steps=8), 20)


class Starting(Counter):
    """Starts a program that inherits its output; elsewhere, a thread that does not end."""

    def __init__(self, home: int, pids: str) -> None:
        super().__init__(episode_steps=None)
        self.program = subprocess.Popen(["sleep", "9000"])
        with Path(pids).open("a") as file:
            file.write(f"{self.program.pid}\n")
        if os.getpid() != home:
            threading.Thread(target=time.sleep, args=(9000,)).start()

    def close(self):
        self.program.kill()
        self.program.wait()
        raise RuntimeError("closing it is a mess")


def write(
    path: Path,
    environment_id: str,
    fragment_steps: int = 20,
    processes: int = 2,
    **environment: object,
) -> Path:
    section = {"id": environment_id, **environment}
    path.write_text(f"""
environment: {section}
algorithm: {{kind: ppo, epochs: 1, minibatch_steps: 32}}
scaler: {{kind: fixed, actors_fixed: 2}}
actor: {{fragment_steps: {fragment_steps}, timeout_s: 30, provisioned: 0}}
budget: {{usd: 1.0}}
stop: {{max_rounds: 4}}
evaluation: {{every_rounds: 0}}
fleet: {{processes: {processes}}}
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
    """Hangs, or ends its process, at a given place."""

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


def fitted(path: Path) -> ResolvedExperiment:
    return preflight(load_experiment(path).resolved())[1]


@pytest.mark.parametrize(
    ("environment_id", "steps", "way"),
    [
        (LIMITED, 20, "reset"),
        (f"{__name__}:make_remembering", 5, "anew"),
        ("BipedalWalker-v3", 40, "anew"),
    ],
)
def test_how_episodes_are_replayed_is_found_out(environment_id: str, steps: int, way: str) -> None:
    tried = try_environment(environment_id, fragment_steps=steps)
    assert (tried.replay, tried.problem, tried.remark) == (way, "", "")


def test_what_shows_its_process_is_not_deterministic() -> None:
    tried = try_environment(f"{__name__}:make_local", fragment_steps=20)
    assert (
        "at step 1 of 20 when it was replayed; the environment is not deterministic"
        in tried.problem
    )


@pytest.mark.parametrize("error", ["RuntimeError", "SystemExit"])
def test_an_environment_that_raises_is_refused_with_what_it_said(error: str) -> None:
    line = next(
        number
        for number, text in enumerate(Path(__file__).read_text().splitlines(), 1)
        if "the motor is on fire" in text
    )
    with pytest.raises(ExperimentError) as caught:
        try_environment(f"{__name__}:Broken", options={"kwargs": {"error": error}})
    assert str(caught.value) == (
        f"environment.id = '{__name__}:Broken': it raised when it was tried: {error}: the "
        f"motor is on fire, in {__file__}, line {line}"
    )


def tried(path: Path, **kwargs: object) -> None:
    """Tries `Stopping`, which saves nothing, as a run's trial does."""
    fitted(
        write(
            path / "one.yaml",
            f"{__name__}:Stopping",
            max_episode_steps=50,
            kwargs={"marker": str(path / "stopped"), **kwargs},
        )
    )


class Time:
    """The trial's clock: only what its looks find advances it, so that no verdict depends on this machine's speed."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        passes: Callable[[set[str]], float],
        begins: Callable[[], Any] = lambda: True,
    ) -> None:
        """Replaces the clock.

        Args:
            passes: Seconds per look that finds these: "message" and "output".
            begins: Whether it advances. Asked before a look, so that the look finds what was sent before.
        """
        self._now_s, self._passes, self._begins = 0.0, passes, begins
        monkeypatch.setattr("runtime.training.trial.time", self)
        monkeypatch.setattr("runtime.training.trial.wait", self._wait)

    def monotonic(self) -> float:
        return self._now_s

    def _wait(self, sources: list[Any], timeout_s: float) -> list[Any]:
        is_running, ready = self._begins(), wait(sources, 0.05)
        if is_running:
            self._now_s += self._passes(
                {"output" if isinstance(one, int) else "message" for one in ready}
            )
        return ready


PLACES = {
    "make": "being imported and made",
    "reset": r"in reset\(seed=\d+\)",
    "step": "in step 3 of an episode",
}


@pytest.mark.parametrize("place", PLACES)
def test_an_environment_that_never_returns_is_told_of_and_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    marker = tmp_path / "stopped"
    clock = Time(
        monkeypatch,
        lambda kinds: 0.0 if kinds else 100.0,
        begins=lambda: marker.exists() and marker.read_text(),
    )
    with pytest.raises(
        ExperimentError, match=f"{__name__}:Stopping'.* it was still {PLACES[place]} after 600 s"
    ):
        tried(tmp_path, place=place, how="hang")
    assert re.search(
        f"^! environment.id = .* still {PLACES[place]} after 30 s; after 600 s it is refused\n$",
        capsys.readouterr().err,
    )
    assert 600.0 <= clock.monotonic() <= 610.0
    assert not is_alive(int(marker.read_text()))


def test_a_trial_that_goes_on_and_on_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """However short each step is."""
    clock = Time(monkeypatch, lambda kinds: 10.0 if "message" in kinds else 0.0)
    with pytest.raises(ExperimentError, match="CartPole-v1'.* it was still in step .* after 600 s"):
        try_environment("CartPole-v1")
    assert 600.0 <= clock.monotonic() <= 610.0


@pytest.mark.parametrize("place", PLACES)
def test_an_environment_that_ends_its_process_is_refused_with_what_it_was_doing(
    tmp_path: Path, place: str
) -> None:
    with pytest.raises(
        ExperimentError,
        match=r"it ended the process that it was tried in \(exit code 0\), while it "
        f"was {PLACES[place]}; the last line there: goodbye",
    ):
        tried(tmp_path, place=place, how="exit")


class Printing(Counter):
    """Prints endlessly in its first step."""

    def step(self, action):
        while True:
            print(f"still looking, {'.' * 1000}", flush=True)


def test_an_environment_that_prints_without_end_is_told_of_with_its_last_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Two looks read a line at least, so that more than 64 KiB come within 30 s.
    clock = Time(monkeypatch, lambda kinds: 0.125 if kinds == {"output"} else 0.0)
    with pytest.raises(
        ExperimentError,
        match="still in step 1 .* after 600 s, in .*, and prints without end, "
        r"[\d,]+ bytes so far; the last line there: ",
    ):
        try_environment(f"{__name__}:Printing")
    assert 600.0 <= clock.monotonic() <= 610.0
    assert re.search(
        r"^! environment.id = .* still in step 1 of an episode after 30 s, and prints without end, [\d,]+ "
        r"bytes so far; the last line there: .*\.\.\..*; after 600 s it is refused\n$",
        capsys.readouterr().err,
    )


def test_a_trial_ends_with_a_killed_trainer(tmp_path: Path) -> None:
    marker = tmp_path / "stopped"
    path = write(
        tmp_path / "one.yaml",
        f"{__name__}:Stopping",
        max_episode_steps=50,
        kwargs={"marker": str(marker), "place": "step", "how": "hang"},
    )
    trainer = subprocess.Popen(
        command("train", str(path), "--out", str(tmp_path / "run")), cwd=ROOT
    )
    wait_for(lambda: marker.exists() and marker.read_text(), "the trial")
    trainer.kill()
    trainer.wait()
    wait_for(lambda: not is_alive(int(marker.read_text())), "the trial's process to end")


def test_what_an_environment_is_like_is_told_as_it_is() -> None:
    for environment_id in ("Hopper-v5", "CartPole-v1", "tests.environments:make_signs", LIMITED):
        found, environment = try_environment(environment_id), make_environment(environment_id)
        assert found.spaces == environment.spaces
        assert (
            found.preprocessing,
            found.episode_steps_max,
            found.can_save_episode,
            found.cannot_save_reason,
        ) == (
            environment.preprocessing,
            environment.episode_steps_max,
            environment.can_save_episode,
            environment.cannot_save_reason,
        )


class Sharing(Counter):
    """Draws from a process-wide generator that it seeds: alone it is deterministic."""

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            np.random.seed(seed % 2**32)
        return super().reset(seed=seed)

    def _observation(self) -> np.ndarray:
        return np.array([self.count, np.random.random()], np.float32)


def make_sharing() -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(Sharing(episode_steps=None), 50)


def test_what_shares_something_within_a_process_is_not_played_in_lock_step(tmp_path: Path) -> None:
    """Otherwise its episodes would depend on how many are played at once."""
    path = write(tmp_path / "sharing.yaml", f"{__name__}:make_sharing", processes=1)
    tried, experiment = preflight(load_experiment(path).resolved())
    assert (tried.replay, tried.problem, tried.remark) == ("reset", "", "")
    assert (
        "one environment at a time, as two share something: the episode of seed"
        in tried.warnings["vector"]
    )
    assert experiment.environment.vector == 1
    alone, experiment = preflight(load_experiment(path, ["fleet.processes=2"]).resolved())
    assert alone.warnings == {}, "unused features are not tried"


class Single(StatefulCounter):
    """Allows only one instance per process."""

    made: ClassVar[list[Single]] = []

    def __init__(self, how: str) -> None:
        super().__init__(episode_steps=None)
        Single.made.append(self)
        if len(Single.made) == 2 and how == "exit":
            os._exit(7)
        if len(Single.made) == 2:
            raise RuntimeError("the port is taken")


def make_single(how: str) -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(Single(how), 50)


@pytest.mark.parametrize(
    ("how", "words"), [("exit", "exit code 7"), ("raise", "the port is taken")]
)
def test_what_cannot_be_twice_in_a_process_is_not_played_in_lock_step(
    tmp_path: Path, how: str, words: str
) -> None:
    path = write(
        tmp_path / "single.yaml", f"{__name__}:make_single", processes=1, kwargs={"how": how}
    )
    tried, experiment = preflight(load_experiment(path).resolved())
    assert words in tried.shared
    assert experiment.environment.vector == 1


@pytest.mark.parametrize(
    "environment_id", ["Hopper-v5", "CartPole-v1", LIMITED, f"{__name__}:make_remembering"]
)
def test_what_shares_nothing_is_played_in_lock_step(tmp_path: Path, environment_id: str) -> None:
    path = write(tmp_path / "mine.yaml", environment_id, processes=1)
    tried, experiment = preflight(load_experiment(path).resolved())
    assert (tried.shared, experiment.environment.vector) == ("", 2)


def test_nothing_that_an_environment_starts_holds_up_or_outlives_a_run(tmp_path: Path) -> None:
    path = write(
        tmp_path / "one.yaml",
        f"{__name__}:Starting",
        max_episode_steps=50,
        kwargs={"home": os.getpid(), "pids": str(tmp_path / "pids")},
    )
    finished = train(
        path,
        tmp_path / "run",
        "--set",
        "stop.max_rounds=1",
        "--set",
        "evaluation.every_rounds=1",
        "--set",
        "evaluation.episodes=1",
    )
    assert finished.returncode == 0, finished.stderr
    evaluated = subprocess.run(
        [sys.executable, "-m", "runtime", "evaluate", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert evaluated.returncode == 0, evaluated.stderr
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) >= 6, "here, replayed here and elsewhere, two actors, two evaluations"
    wait_for(lambda: not any(map(is_alive, pids)), "the environments' programs to end")


@pytest.mark.parametrize(
    ("environment_id", "told"),
    [
        (
            "tests.environments:make_stateless_counter",
            "no limit of steps that Gymnasium knows, and Counter offers no",
        ),
        (
            f"{__name__}:make_very_long",
            "can have 100,000 steps, .* fit a message up to 81,920 steps",
        ),
        (
            f"{__name__}:make_normalized",
            "wrapper NormalizeObservation keeps moments across episodes",
        ),
    ],
)
def test_what_cannot_be_replayed_is_refused(tmp_path: Path, environment_id: str, told: str) -> None:
    with pytest.raises(ExperimentError, match=told):
        fitted(write(tmp_path / "one.yaml", environment_id))
    cut = fitted(write(tmp_path / "two.yaml", environment_id, truncate_at_fragment=True))
    assert cut.environment.replay == ""


@pytest.mark.parametrize(
    ("environment_id", "fragment_steps", "replay"),
    [
        (LIMITED, 20, ("reset", 49)),
        (LIMITED, 50, ("reset", 49)),
        (LIMITED, 70, ("reset", 49)),
        ("Hopper-v5", 20, ("", 0)),
    ],
)
def test_what_cannot_be_saved_is_replayed_also_if_it_is_shorter_than_a_fragment(
    tmp_path: Path, environment_id: str, fragment_steps: int, replay: tuple[str, int]
) -> None:
    environment = fitted(write(tmp_path / "one.yaml", environment_id, fragment_steps)).environment
    assert (environment.replay, environment.replay_steps_max) == replay


# Trials of every environment, even if it can save its state or its episodes are short


class Old(Counter):
    """From the time when Gym's `reset` took no arguments."""

    def reset(self):
        return super().reset()


def make_old() -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(Old(episode_steps=None), 8)


def chance() -> float:
    """Draws from 0 to 1 with the system's generator."""
    return int.from_bytes(os.urandom(7), "little") / 2**56


class Random(StatefulCounter):
    """The system's randomness determines its rewards, or the starts of its episodes."""

    def __init__(self, what: str) -> None:
        super().__init__(episode_steps=None)
        self.what = what

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.what == "start":
            self.start = chance()
        return self._observation(), {}

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, reward + (chance() if self.what == "reward" else 0.0), *rest


class Large(StatefulCounter):
    """Its state exceeds a message."""

    def get_state(self):
        return super().get_state() | {"all": np.zeros(EPISODE_BYTES_MAX)}


def make_random(what: str, episode_steps: int = 50) -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(Random(what), episode_steps)


def make_large(episode_steps: int = 50) -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(Large(episode_steps=None), episode_steps)


@pytest.mark.parametrize(
    ("environment_id", "told"),
    [
        (f"{__name__}:make_old", r"Old.reset\(\) got an unexpected keyword argument 'seed'"),
        (f"{__name__}:Broken", "it raised when it was tried: RuntimeError: the motor is on fire"),
        (
            "tests.environments:make_raising",
            "it raised when it was tried: RuntimeError: the motor is on fire",
        ),
    ],
)
def test_what_raises_is_refused_also_if_its_episodes_are_short(
    tmp_path: Path, environment_id: str, told: str
) -> None:
    kwargs = {"kwargs": {"error": "RuntimeError"}} if environment_id.endswith("Broken") else {}
    for cut in (False, True):
        with pytest.raises(ExperimentError, match=told):
            fitted(
                write(
                    tmp_path / "one.yaml",
                    environment_id,
                    256,
                    max_episode_steps=8,
                    truncate_at_fragment=cut,
                    **kwargs,
                )
            )


def test_what_a_later_actor_could_not_continue_is_refused_or_if_it_is_short_dropped(
    tmp_path: Path,
) -> None:
    told = "at step 1 after its state was set: get_state.. leaves something out, or the environment is not"
    made, kwargs = f"{__name__}:make_random", {"what": "reward"}
    path = write(tmp_path / "one.yaml", made, kwargs=kwargs)
    with pytest.raises(
        ExperimentError, match=f"{told}.*; allowed: chance.*actor.fragment_steps from 50, which"
    ):
        fitted(path)
    assert fitted(write(tmp_path / "cut.yaml", made, kwargs=kwargs, truncate_at_fragment=True))
    short = write(tmp_path / "short.yaml", made, 70, kwargs=kwargs)
    assert re.search(told, fitted(short).environment.dropped_because)
    finished = train(short, tmp_path / "run", "--set", "stop.max_rounds=2")
    assert finished.returncode == 0, finished.stderr
    assert "\n! dropped: each fragment's last, unfinished episode, because " in finished.stdout


def test_a_run_replays_what_saves_too_much(tmp_path: Path) -> None:
    finished = train(write(tmp_path / "one.yaml", f"{__name__}:make_large"), tmp_path / "run")
    assert finished.returncode == 0, finished.stderr
    assert re.search(
        r"\nepisodes: its state has 8,\d+,\d+ bytes, and 1,048,576 can travel. If the end of a fragment "
        "cuts an episode, the next actor first replays it from its start. With episodes of 50 steps, that "
        "is about 125 steps for each 100 new ones, and about 50 with actor.fragment_steps=50\n",
        finished.stdout,
    )
    assert "dropped" not in finished.stdout
    assert [row["episodes_dropped"] for row in rounds(tmp_path / "run")] == [0, 0, 0, 0]
    assert sum(row["replayed_steps"] for row in rounds(tmp_path / "run")) > 0


def test_what_starts_by_chance_can_be_continued_and_is_told(tmp_path: Path) -> None:
    tried = try_environment(f"{__name__}:make_random", options={"kwargs": {"what": "start"}})
    assert tried.problem == ""
    assert re.search(
        r"episode of seed \d+ continued differently at step 1 of \d+ when it was replayed",
        tried.remark,
    )
    path = write(tmp_path / "one.yaml", f"{__name__}:make_random", kwargs={"what": "start"})
    finished = train(path, tmp_path / "run", "--set", "stop.max_rounds=1")
    assert finished.returncode == 0, finished.stderr
    assert "not deterministic, so that results cannot be reproduced" in " ".join(
        finished.stdout.split()
    )


class Noisy(Counter):
    """Prints forty mebibytes, from Python and below it, and the part of it that is in files."""

    def reset(self, *, seed=None, options=None):
        print("x" * 20 * 2**20, flush=True)
        for _ in range(20):
            os.write(2, b"y" * 2**20)
        written = os.fstat(1).st_size if stat.S_ISREG(os.fstat(1).st_mode) else 0
        if written:
            raise RuntimeError(f"{written} bytes of that lie in a file")
        return super().reset(seed=seed)


def test_what_an_environment_prints_fills_no_disk_and_fails_no_trial() -> None:
    tried = try_environment(f"{__name__}:Noisy", options={"max_episode_steps": 8}, fragment_steps=4)
    assert (tried.replay, tried.problem) == ("reset", "")


def test_a_run_replays_the_same_whoever_continues_an_episode_and_whenever_it_is_resumed(
    tmp_path: Path,
) -> None:
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
    # Two episodes of fifty steps, twenty per round. The third round ends them and leaves ten steps of the next ones.
    assert [row["replayed_steps"] for row in one] == [0, 40, 80, 20]
    assert [row["episodes_finished"] for row in one] == [0, 0, 2, 0]
    assert make_environment(LIMITED).episode_steps_max == 50
