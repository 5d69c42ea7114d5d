"""A separate process evaluates policies as this one does, and its failures have names."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lambda_actor.environments import make_environment
from lambda_actor.errors import UnusableEnvironmentError
from runtime.errors import BudgetError
from runtime.training.evaluation import Evaluator
from runtime.training.evaluation_process import EvaluationProcess
from tests.environments import EPISODE_STEPS, Counter, StatefulCounter
from tests.helpers import PATIENCE_S, command_line, descendants, wait_for
from tests.training.test_evaluation import weights_for

HERE = __name__


class Dying(Counter):
    def step(self, action):
        os._exit(7)


class Hanging(Counter):
    def step(self, action):
        while True:
            pass


class Leaving(StatefulCounter):
    def reset(self, *, seed=None, options=None):
        raise SystemExit(3)


class Killed(Counter):
    """Its process is killed once per letter in a file, from which each kill removes one."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = Path(path)

    def step(self, action):
        if left := self._path.read_text():
            self._path.write_text(left[1:])
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(action)


def make_dying() -> Dying:
    return Dying()


def make_hanging() -> Hanging:
    return Hanging()


@pytest.fixture
def started() -> Iterator[list[EvaluationProcess]]:
    processes: list[EvaluationProcess] = []
    yield processes
    for process in processes:
        process.close()
    wait_for(
        lambda: not any(_evaluates(pid) for pid in descendants(os.getpid())), "the process to end"
    )


def _evaluates(pid: int) -> bool:
    return b"evaluation_process" in command_line(pid)


def begun(
    started: list[EvaluationProcess], environment_id: str, **options: Any
) -> EvaluationProcess:
    process = EvaluationProcess(
        environment_id, "none", **{"episodes": 3, "seed": 4, "target_return": None, **options}
    )
    started.append(process)
    process.begin(
        weights_for(
            make_environment("tests.environments:Counter")
            if environment_id.startswith(HERE)
            else make_environment(environment_id)
        ),
        7,
    )
    return process


def test_a_hit_is_told_by_fresh_episodes_and_a_miss_by_those_of_always(
    started: list[EvaluationProcess],
) -> None:
    environment = make_environment("CartPole-v1")
    evaluate, weights = Evaluator(environment, 3, seed=4), weights_for(environment)
    always, fresh, later = evaluate(weights), evaluate(weights, fresh=7), evaluate(weights, fresh=8)
    assert len({always.returns, fresh.returns, later.returns}) == 3
    for target, expected in ((always.return_mean + 1, always), (always.return_mean, fresh)):
        process = begun(started, "CartPole-v1", target_return=target)
        found = process.result(PATIENCE_S)
        assert found == expected
        assert found.seconds > 0.0
        process.begin(weights, 8)
        assert process.result(PATIENCE_S) == (always if expected is always else later)


def test_it_samples_actions_if_it_is_asked_to(started: list[EvaluationProcess]) -> None:
    environment = make_environment("CartPole-v1")
    sampled = Evaluator(environment, 3, seed=4, is_stochastic=True)(weights_for(environment))
    assert begun(started, "CartPole-v1", is_stochastic=True).result(PATIENCE_S) == sampled
    assert begun(started, "CartPole-v1").result(PATIENCE_S) != sampled


def test_it_tells_how_many_episodes_are_done_those_that_confirm_a_hit_included(
    started: list[EvaluationProcess],
) -> None:
    for target, total in ((None, 3), (-1.0, 6)):
        told: list[tuple[int, int, int]] = []
        begun(
            started,
            "CartPole-v1",
            target_return=target,
            tell=lambda *what, told=told: told.append(what),
        ).result(PATIENCE_S)
        assert told == [
            *((7, done, 3) for done in range(4)),
            *((7, done, 6) for done in range(4, total + 1)),
            (7, total, total),
        ]


def test_an_environment_that_wants_to_leave_is_told_with_its_line(
    started: list[EvaluationProcess],
) -> None:
    with pytest.raises(UnusableEnvironmentError, match=rf"SystemExit: 3, in {__file__}, line \d+$"):
        begun(started, f"{HERE}:Leaving").result(PATIENCE_S)


def test_if_its_process_is_killed_another_one_does_the_same_once(
    started: list[EvaluationProcess], tmp_path: Path
) -> None:
    (left := tmp_path / "left").touch()
    process = begun(started, f"{HERE}:Killed", options={"kwargs": {"path": str(left)}})
    undisturbed, weights = (
        process.result(PATIENCE_S),
        weights_for(make_environment("tests.environments:Counter")),
    )
    for round_index, is_idle in ((8, False), (9, False), (10, True)):
        if is_idle:
            for pid in filter(_evaluates, descendants(os.getpid())):
                os.kill(pid, signal.SIGKILL)
        left.write_text("" if is_idle else "x")
        process.begin(weights, round_index)
        assert process.result(PATIENCE_S) == undisturbed
        assert not left.read_text()
    left.write_text("xxx")
    process.begin(weights, 11)
    with pytest.raises(UnusableEnvironmentError, match="ended .SIGKILL"):
        process.result(PATIENCE_S)
    assert left.read_text() == "x"


def test_what_goes_wrong_has_a_name(started: list[EvaluationProcess]) -> None:
    with pytest.raises(UnusableEnvironmentError, match="motor"):
        begun(started, "tests.environments:make_raising").result(PATIENCE_S)
    with pytest.raises(UnusableEnvironmentError, match="ended .exit code 7"):
        begun(started, f"{HERE}:make_dying").result(PATIENCE_S)
    with pytest.raises(BudgetError, match=r"longer than the 0.1 s.*learner.update_timeout_s"):
        begun(started, f"{HERE}:make_hanging", episodes=EPISODE_STEPS).result(0.1)
