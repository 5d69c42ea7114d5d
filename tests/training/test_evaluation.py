"""Evaluations see what actors see, here and in a process of their own; a policy is read from its file unchanged."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from lambda_actor import wire
from lambda_actor.environments import ActorEnvironment, make_environment
from lambda_actor.errors import UnusableEnvironmentError
from lambda_actor.policy import Policy, default_network
from lambda_actor.rollout import roll_out
from runtime.errors import BudgetError, RunDirectoryError, RunError
from runtime.records.observers import EventLog
from runtime.records.policy_file import read_policy, save_policy
from runtime.training.environment_process import EnvironmentProcess
from runtime.training.evaluation import UNLIMITED_EPISODE_STEPS_MAX, Evaluation, Evaluator
from runtime.training.evaluation_process import EvaluationProcess
from tests.environments import (
    EPISODE_STEPS,
    FAULT_STEP,
    LIMIT_STEPS,
    Counter,
    StatefulCounter,
    policy_arrays,
)
from tests.fleet.parts import read_events
from tests.helpers import PATIENCE_S, command_line, descendants, wait_for

TASKS = "runtime.training.environment_tasks:EnvironmentTasks"
HERE, COUNTER = __name__, "tests.environments:Counter"


def weights_for(environment: ActorEnvironment, **options: object) -> bytes:
    network = default_network(environment.spaces)
    return wire.encode(
        wire.Kind.WEIGHTS, policy_arrays(spaces=environment.spaces, network=network, **options)
    )


def made(name: str) -> ActorEnvironment:
    return make_environment(f"tests.environments:make_{name}")


class Blinded(Counter):
    """Observes nothing after five steps."""

    def _observation(self) -> np.ndarray:
        return super()._observation() * (np.nan if self.count == 5 else 1.0)


class Unrewarded(Counter):
    """Its rewards are no numbers."""

    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, np.nan, *rest


class Failing(StatefulCounter):
    """Ends its process, hangs, or wants to leave."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def step(self, action):
        if self.how == "leave":
            raise SystemExit(3)
        print("goodbye", flush=True)
        if self.how == "exit":
            os._exit(7)
        while True:
            pass


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


# Evaluations


@pytest.mark.parametrize(
    ("name", "length"),
    [
        ("counter", EPISODE_STEPS),
        ("limited_pictures", LIMIT_STEPS),
        ("endless", UNLIMITED_EPISODE_STEPS_MAX),
    ],
)
def test_episodes_are_whole_and_the_same_each_time(name: str, length: int) -> None:
    evaluate = Evaluator(made(name), 2, seed=4)
    weights = weights_for(made(name))
    first = evaluate(weights)
    assert first.lengths == (length, length)
    assert first == evaluate(weights)


def test_the_best_action_is_taken_on_stacked_frames() -> None:
    """In a game, actions equal those of an actor with a practically deterministic policy."""
    taken: list[int] = []

    class Noting(gymnasium.Wrapper):
        def step(self, action):
            taken.append(int(action))
            return super().step(action)

    atari = make_environment("QbertNoFrameskip-v4").gymnasium_environment
    game = Noting(gymnasium.wrappers.TimeLimit(atari, 60))
    environment = ActorEnvironment(game, "short", "atari")
    fields = policy_arrays(spaces=environment.spaces, network="conv", gain=1e6)
    # Its logits are a picture's differences from the episode's first one, so actions vary.
    fields["layer.3.bias"] = fields["layer.3.bias"] - Policy(fields).outputs(
        np.tile(game.reset(seed=1)[0], (3, 1, 1))
    )
    weights = wire.encode(wire.Kind.WEIGHTS, fields)
    evaluated = Evaluator(environment, 1, seed=4)(weights)
    start = int(np.random.default_rng((0xE7A1, 4)).integers(2**31, size=1)[0])

    class Started(ActorEnvironment):
        def reset(self, seed: int) -> np.ndarray:
            return super().reset(start)

    fragment = roll_out(
        Started(game, "short", "atari"),
        Policy.from_bytes(weights),
        fragment_steps=60,
        seed=0,
        round_index=0,
        slot=0,
    )
    assert taken[:60] == taken[60:] == fragment.actions.tolist()
    assert len(set(taken)) > 1
    assert evaluated.returns == tuple(fragment.episode_returns.tolist())
    assert evaluated.lengths == (60,)


def test_sampled_actions_follow_from_the_seed_and_differ_from_the_best_ones() -> None:
    environment = make_environment("CartPole-v1")
    weights, certain = weights_for(environment), weights_for(environment, gain=1e6)

    def evaluated(weights: bytes, seed: int, is_stochastic: bool) -> Evaluation:
        return Evaluator(environment, 4, seed=seed, is_stochastic=is_stochastic)(weights)

    sampled = [evaluated(weights, seed, True) for seed in (4, 4, 5)]
    assert sampled[0] == sampled[1] != sampled[2]
    assert sampled[0] != evaluated(weights, 4, False)
    assert evaluated(certain, 4, True) == evaluated(certain, 4, False), "the same start states"


@pytest.mark.parametrize(
    ("environment_id", "words"),
    [
        ("tests.environments:make_raising", "failed while the policy was evaluated.*motor"),
        (f"{HERE}:Unrewarded", "an evaluation's return is not finite"),
        (f"{HERE}:Blinded", "its observation is not finite after step 5 of an"),
        (
            "tests.environments:make_nan_signs",
            f"its observation is not finite after step {FAULT_STEP + 1} of an",
        ),
    ],
)
def test_an_environment_that_fails_is_named(environment_id: str, words: str) -> None:
    environment = make_environment(environment_id)
    with pytest.raises(UnusableEnvironmentError, match=f"{environment_id}:? {words}"):
        Evaluator(environment, 1, seed=0)(weights_for(environment))


# In another process

Begin = Callable[..., EvaluationProcess]


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Begin]:
    processes: list[EvaluationProcess] = []

    def begun(
        environment_id: str = "CartPole-v1", kwargs: Any = None, **options: Any
    ) -> EvaluationProcess:
        settings = {"episodes": 3, "seed": 4, "target_return": None} | options
        start = partial(EnvironmentProcess, environment_id, TASKS, environment_id, "none", kwargs)
        processes.append(EvaluationProcess(start, EventLog(tmp_path / "events.jsonl"), **settings))
        known = COUNTER if environment_id.startswith(HERE) else environment_id
        processes[-1].begin(weights_for(make_environment(known)), 7)
        return processes[-1]

    yield begun
    for process in processes:
        process.close()
    wait_for(lambda: not any(map(_evaluates, descendants(os.getpid()))), "the processes to end")


def _evaluates(pid: int) -> bool:
    return b"environment_process" in command_line(pid)


def test_a_hit_is_confirmed_on_fresh_episodes_of_its_round(begin: Begin) -> None:
    environment = make_environment("CartPole-v1")
    evaluate, weights = Evaluator(environment, 3, seed=4), weights_for(environment)
    usual, fresh, later = evaluate(weights), evaluate(weights, fresh=7), evaluate(weights, fresh=8)
    assert len({usual.returns, fresh.returns, later.returns}) == 3
    for target, expected in ((usual.return_mean + 1, usual), (usual.return_mean, fresh)):
        process = begin(target_return=target)
        found = process.result(PATIENCE_S)
        assert found == expected
        assert found.seconds > 0.0
        assert found.steps_before == (0 if expected is usual else sum(usual.lengths))
        process.begin(weights, 8)
        assert process.result(PATIENCE_S) == (usual if expected is usual else later)


def test_if_its_process_is_killed_another_one_repeats_the_evaluation_once(
    begin: Begin, tmp_path: Path
) -> None:
    (left := tmp_path / "left").touch()
    process = begin(f"{HERE}:Killed", {"kwargs": {"path": str(left)}})
    undisturbed, weights = process.result(PATIENCE_S), weights_for(make_environment(COUNTER))
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
    with pytest.raises(RunError, match="was killed .SIGKILL.*memory"):
        process.result(PATIENCE_S)
    assert left.read_text() == "x"
    repeated = read_events(tmp_path / "events.jsonl", "evaluation_repeated")
    assert [event["policy_round"] for event in repeated] == [8, 9, 10, 11]


@pytest.mark.parametrize(
    ("environment_id", "how", "patience_s", "error", "words"),
    [
        (
            f"{HERE}:Failing",
            "leave",
            PATIENCE_S,
            UnusableEnvironmentError,
            rf"SystemExit: 3, in {__file__}, line \d+, at step 1 of its episode$",
        ),
        (
            f"{HERE}:Failing",
            "exit",
            PATIENCE_S,
            UnusableEnvironmentError,
            "ended its process .exit code 7., while it was being evaluated; .* there: goodbye",
        ),
        (
            f"{HERE}:Failing",
            "hang",
            0.1,
            BudgetError,
            "longer than the 0.1 s.*learner.update_timeout_s",
        ),
    ],
)
def test_a_failure_there_is_named(
    begin: Begin,
    environment_id: str,
    how: str,
    patience_s: float,
    error: type[Exception],
    words: str,
) -> None:
    with pytest.raises(error, match=words):
        begin(environment_id, {"kwargs": {"how": how}}).result(patience_s)


# The policy's file


@pytest.mark.parametrize("name", ["counter", "pictures"])
def test_a_policy_is_read_from_its_file_unchanged_and_a_damaged_file_is_refused(
    name: str, tmp_path: Path
) -> None:
    path, weights = tmp_path / "policy.safetensors", weights_for(made(name))
    with pytest.raises(RunDirectoryError, match="is not there"):
        read_policy(path)
    save_policy(path, weights, environment_id=name)
    data = path.read_bytes()
    save_policy(path, weights, environment_id=name)
    assert path.read_bytes() == data, "equal policies make equal files"
    again = wire.decode(read_policy(path)[0], wire.Kind.WEIGHTS)
    expected = wire.decode(weights, wire.Kind.WEIGHTS)
    assert again.keys() == expected.keys()
    for key, array in again.items():
        np.testing.assert_array_equal(array, expected[key], strict=True)
    for damaged in (b"nothing of the kind", data[:-1]):
        path.write_bytes(damaged)
        with pytest.raises(RunDirectoryError, match="cannot be read"):
            read_policy(path)
