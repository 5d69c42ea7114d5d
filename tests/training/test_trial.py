"""Trials of an environment before a run, and runs that replay."""

from __future__ import annotations

import fcntl
import os
import re
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest

from lambda_actor.rollout import EPISODE_BYTES_MAX
from lambda_actor.trial import TriedEnvironment
from runtime.errors import BudgetTooSmallError, EnvironmentNotHereError, ExperimentError
from runtime.experiment.loading import load_experiment
from runtime.experiment.resolved import ResolvedExperiment
from runtime.money.prices import PRICES
from runtime.training.backends import make_backend
from runtime.training.preflight import preflight
from runtime.training.trial import try_environment
from tests.cases.simulators import CROWDED_S
from tests.environments import Counter, StatefulCounter
from tests.helpers import (
    is_alive,
    results_only,
    rounds,
    train,
)

LIMITED = f"{__name__}:make_long"


def make_long(kind: str = "Counter", episode_steps: int = 50, **kwargs: Any) -> gymnasium.Env:
    """A class of this module, whose episodes are cut after so many steps."""
    return gymnasium.wrappers.TimeLimit(
        globals()[kind](episode_steps=None, **kwargs), episode_steps
    )


class Local(Counter):
    """Shows the process in which it runs."""

    def _observation(self) -> np.ndarray:
        return np.array([self.count, os.getpid()], np.float32)


class Remembering(Counter):
    """Shows the number of episodes begun."""

    begun = 0

    def reset(self, *, seed=None, options=None):
        self.begun += 1
        return super().reset(seed=seed)

    def _observation(self) -> np.ndarray:
        return np.array([self.count, self.begun], np.float32)


class Exclusive(Counter):
    """Locks a file that other processes with the environment need."""

    files: ClassVar[list[Any]] = []

    def __init__(self, path: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not self.files:
            self.files.append(open(path, "w"))  # noqa: SIM115
            fcntl.flock(self.files[0], fcntl.LOCK_EX | fcntl.LOCK_NB)


class Random(StatefulCounter):
    """The system's randomness determines its rewards, or the starts of its episodes."""

    def __init__(self, what: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.what = what

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if self.what == "start":
            self.start = self._chance()
        return self._observation(), {}

    def step(self, action):
        observation, reward, *rest = super().step(action)
        return observation, reward + (self._chance() if self.what == "reward" else 0.0), *rest

    def _chance(self) -> float:
        return int.from_bytes(os.urandom(7), "little") / 2**56


class Large(StatefulCounter):
    """Its state exceeds a message."""

    def get_state(self):
        return super().get_state() | {"all": np.zeros(EPISODE_BYTES_MAX)}


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


class Stopping(Counter):
    """Hangs, prints for ever, raises, exits or forks and dies at a given place."""

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
        if place != self.place:
            return
        print("goodbye", flush=True)
        if self.how == "exit":
            os._exit(0)
        if self.how == "raise":
            raise RuntimeError("the motor is on fire")
        if self.how == "fork" and os.fork() > 0:
            os.kill(os.getpid(), 9)
        self.marker.write_text(str(os.getpid()))
        while True:
            if self.how == "print":
                print("still looking", flush=True)


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


def long(kind: str, **kwargs: Any) -> dict[str, Any]:
    return {"kwargs": {"kind": kind, **kwargs}}


def fitted(path: Path) -> tuple[TriedEnvironment, ResolvedExperiment]:
    experiment = load_experiment(path).resolved()
    return preflight(experiment, make_backend(experiment))


# What a trial finds out


@pytest.mark.parametrize(
    ("environment_id", "options", "steps", "way"),
    [
        ("Hopper-v5", {}, 256, ""),
        (LIMITED, {}, 20, "reset"),
        (LIMITED, long("Remembering", episode_steps=8), 5, "anew"),
        (LIMITED, long("Noisy", episode_steps=8), 4, "reset"),
    ],
)
def test_how_episodes_are_continued_is_found_out(
    environment_id: str, options: dict[str, Any], steps: int, way: str
) -> None:
    tried = try_environment(environment_id, options=options, fragment_steps=steps)
    assert (tried.replay, tried.problem, tried.difference) == (way, "", "")


def test_the_first_process_has_ended_before_another_one_makes_the_environment(
    tmp_path: Path,
) -> None:
    options = long("Exclusive", path=str(tmp_path / "port"))
    assert try_environment(LIMITED, options=options, fragment_steps=20).replay == "reset"


@pytest.mark.parametrize(
    ("options", "problem", "warning"),
    [
        (
            long("Local"),
            "at step 1 of 20 when it was replayed; the environment is not deterministic",
            "",
        ),
        (long("Random", what="start"), "", r"continued differently at step 1 of .* replayed"),
        (long("Random", what="reward"), "at step 1 after its state was set", ""),
    ],
    ids=["process", "start", "reward"],
)
def test_an_environment_that_is_not_deterministic_is_found_out(
    options: dict[str, Any], problem: str, warning: str
) -> None:
    tried = try_environment(LIMITED, options=options, fragment_steps=20)
    found = tried.warnings.get("environment", "")
    assert (bool(tried.problem), bool(found)) == (bool(problem), bool(warning))
    assert re.search(problem, tried.problem) and re.search(warning, found)


def test_a_step_takes_what_is_billed_whatever_else_the_machine_does() -> None:
    options = {"kwargs": {"kind": "Crowded"}}
    tried = try_environment("tests.cases.simulators:make", options=options, fragment_steps=8)
    assert CROWDED_S <= tried.step_s < 1.6 * CROWDED_S
    assert tried.wait_s < 0.2 * CROWDED_S


# Environments that fail, hang, or end their process

PLACES = {
    "make": "being imported and made",
    "reset": r"in reset\(seed=\d+\)",
    "step": "in step 3 of an episode",
}


@pytest.mark.parametrize(
    ("place", "how"), [("make", "hang"), ("reset", "print"), ("step", "hang"), ("step", "print")]
)
def test_an_environment_that_never_returns_is_reported_and_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str, how: str
) -> None:
    marker, now_s = tmp_path / "stopped", 0.0

    def clock() -> float:
        """Stands still until it hangs: the verdict does not depend on this machine's speed."""
        nonlocal now_s
        now_s += 60.0 * (marker.exists() and marker.read_text() != "")
        return now_s

    said = "still looking" if how == "print" else "goodbye"
    with pytest.raises(
        ExperimentError,
        match=f"Stopping'.* it was still {PLACES[place]} after 600 s.* last line there: {said}$",
    ):
        try_environment(
            f"{__name__}:Stopping",
            options={"kwargs": {"marker": str(marker), "place": place, "how": how}},
            clock=clock,
        )
    assert re.search(
        f"^! environment.id = .* still {PLACES[place]} after 30 s; .*; after 600 s the trial no longer waits\n$",
        capsys.readouterr().err,
    )
    assert not is_alive(int(marker.read_text()))


class Waiting(Counter):
    """Waits in its constructor until no other one exists."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._file = open(path, "a")  # noqa: SIM115
        if self._file.tell():
            Path(f"{path}.waits").touch()
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self._file.write("made ")
        self._file.flush()


def test_a_second_environment_that_waits_for_the_first_ones_end_counts_as_one_that_cannot_be(
    tmp_path: Path,
) -> None:
    path = tmp_path / "licence"
    tried = try_environment(
        f"{__name__}:Waiting",
        options={"kwargs": {"path": str(path)}},
        clock=lambda: 60.0 * Path(f"{path}.waits").exists(),
    )
    assert re.search(r"still being imported and made after 30 s", tried.single_because)
    assert path.read_text() == "made made "


@pytest.mark.parametrize(
    ("place", "how", "words"),
    [
        (
            "step",
            "exit",
            "it ended its process (exit code 0), while it was {}; the last line there: goodbye",
        ),
        (
            "reset",
            "fork",
            "it ended its process (SIGKILL), while it was {}; the last line there: goodbye",
        ),
        *((place, "raise", "the motor is on fire, in {file}, line {line}") for place in PLACES),
    ],
)
def test_an_environment_that_fails_is_refused_with_its_reason_and_place(
    tmp_path: Path, place: str, how: str, words: str
) -> None:
    lines = Path(__file__).read_text().splitlines()
    line = 1 + next(at for at, text in enumerate(lines) if "the motor is on fire" in text)
    kwargs = {"marker": str(tmp_path / "stopped"), "place": place, "how": how}
    with pytest.raises(ExperimentError) as caught:
        fitted(write(tmp_path / "one.yaml", f"{__name__}:Stopping", kwargs=kwargs))
    assert isinstance(caught.value, EnvironmentNotHereError) == (place == "make"), (
        "for a deployment"
    )
    expected = words.format("(PLACE)", file=__file__, line=line)
    assert re.search(re.escape(expected).replace(r"\(PLACE\)", PLACES[place]), str(caught.value))


# Consequences for a run


def test_a_budget_must_hold_all_waves_of_the_first_round(tmp_path: Path) -> None:
    billed: Any = SimpleNamespace(is_billed=True, is_deployed=False, prices=PRICES)

    def needed_usd(processes: int) -> float:
        path = write(tmp_path / "one.yaml", "CartPole-v1", processes=processes)
        experiment = load_experiment(path, ["budget.usd=1e-6"]).resolved()
        with pytest.raises(BudgetTooSmallError) as caught:
            preflight(experiment, billed)
        return float(re.findall(r"worst case is ([\d.]+) USD", str(caught.value))[0])

    assert needed_usd(1) > needed_usd(2) == needed_usd(4)


@pytest.mark.parametrize(
    ("environment_id", "kwargs", "words"),
    [
        (
            "tests.environments:make_stateless_counter",
            {},
            "no limit of steps that Gymnasium knows, and Counter offers no",
        ),
        (
            LIMITED,
            {"episode_steps": 100_000},
            "can have 100,000 steps, .*; allowed: environment.max_episode_steps up to 81,920",
        ),
        (LIMITED, {"kind": "Large"}, "exceeds the limit of 1048576; allowed: a complete get_state"),
        (
            LIMITED,
            {"kind": "Random", "what": "reward"},
            "get_state.. leaves something out.*; allowed: chance.*actor.fragment_steps from 50, which",
        ),
    ],
)
def test_episodes_that_cannot_be_continued_are_refused_unless_they_are_cut(
    tmp_path: Path, environment_id: str, kwargs: dict[str, Any], words: str
) -> None:
    with pytest.raises(ExperimentError, match=words):
        fitted(write(tmp_path / "one.yaml", environment_id, kwargs=kwargs))
    path = write(tmp_path / "cut.yaml", environment_id, kwargs=kwargs, truncate_at_fragment=True)
    assert fitted(path)[1].trial.replay == ""


def test_a_run_replays_the_same_whichever_process_continues_and_however_often_it_is_resumed(
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
    assert "first replays it: 20 steps on average, if all last until" in finished.stdout
    one, two = (rounds(out) for out in runs.values())
    assert results_only(one) == results_only(two)
    # Two episodes of fifty steps, twenty per round. At first, one environment has played both; then there are two,
    # which hold them. A resumed run's processes hold none.
    assert [row["replayed_steps"] for row in one] == [0, 40, 0, 0]
    assert two[2]["replayed_steps"] == 80
    assert [row["episodes_finished"] for row in one] == [0, 0, 2, 0]
