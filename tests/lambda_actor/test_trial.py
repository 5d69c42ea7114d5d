"""The trial of an environment in one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest

from lambda_actor import trial
from lambda_actor.environments import ActorEnvironment
from lambda_actor.errors import UnusableEnvironmentError
from lambda_actor.rollout import EPISODE_BYTES_MAX
from lambda_actor.spaces import Spaces
from lambda_actor.trial import TriedEnvironment
from tests.environments import Counter
from tests.training.test_trial import Large, Random, chance


class Chance(Random):
    """A `Random` whose state is also too large."""

    def get_state(self) -> dict[str, Any]:
        return super().get_state() | {"all": np.zeros(EPISODE_BYTES_MAX, np.uint8)}


class Unsaved(Counter):
    """Has random rewards and cannot be saved."""

    def step(self, action: Any) -> Any:
        observation, reward, *rest = super().step(action)
        return observation, reward + chance(), *rest


def tried(
    make: Callable[[], gymnasium.Env], limit: int | None = 50, steps: int = 20
) -> TriedEnvironment:
    def made() -> ActorEnvironment:
        environment = make()
        return ActorEnvironment(
            environment if limit is None else gymnasium.wrappers.TimeLimit(environment, limit),
            "mine",
        )

    environment = made()
    known = trial.facts(environment)
    played = trial.play(environment, made, steps=steps)
    return trial.conclude(
        known, played, trial.go_on(made(), **played) if played["episode"] else trial.NOTHING_DIFFERS
    )


def test_what_saves_too_much_is_replayed_as_if_it_saved_nothing() -> None:
    found = tried(lambda: Large(episode_steps=None))
    assert (found.can_save_episode, found.replay, found.problem, found.obstacle()) == (
        False,
        "reset",
        "",
        ("", ""),
    )
    size = found.state_bytes
    assert 8 * EPISODE_BYTES_MAX < size < 8 * EPISODE_BYTES_MAX + 1000
    assert found.cannot_save_reason == f"its state has {size:,} bytes, and 1,048,576 can travel"


@pytest.mark.parametrize(
    ("make", "limit", "problem", "remedies"),
    [
        (
            lambda: Large(episode_steps=None),
            None,
            "its episodes have no limit of steps",
            ["environment.max_episode_steps", "a get_state() of 1,048,576 bytes at most"],
        ),
        (
            lambda: Chance("reward"),
            50,
            "the environment is not deterministic",
            ["a get_state() of 1,048,576 bytes at most", "chance from self.np_random alone"],
        ),
    ],
)
def test_what_saves_too_much_and_cannot_be_replayed_has_both_remedies(
    make: Callable[[], gymnasium.Env], limit: int | None, problem: str, remedies: list[str]
) -> None:
    why, allowed = tried(make, limit).obstacle()
    assert problem in why
    assert all(one in allowed for one in remedies)


@pytest.mark.parametrize("make", [lambda: Unsaved(episode_steps=None), lambda: Random("reward")])
def test_no_state_helps_where_chance_decides(make: Callable[[], gymnasium.Env]) -> None:
    why, allowed = tried(make).obstacle()
    assert "the environment is not deterministic" in why
    assert allowed.startswith(
        "chance from self.np_random alone, which super().reset(seed=seed) seeds, "
    )
    assert "get_state" not in allowed


def test_a_fragment_as_long_as_an_episode_drops_it_and_a_shorter_one_cannot() -> None:
    """Matches the refusal's advice: ``actor.fragment_steps from`` the step limit."""
    tried = TriedEnvironment(
        "it",
        Spaces((1,), action_count=2),
        "none",
        50,
        can_save_episode=False,
        cannot_save_reason="it has no get_state",
        spanning_wrapper="",
        plain_because="",
        problem="it differs",
    )
    assert tried.dropped_because(50) == "no later actor can continue its episodes: it differs"
    with pytest.raises(
        UnusableEnvironmentError, match=r"it differs; allowed: .*actor\.fragment_steps from 50, "
    ):
        tried.dropped_because(49)


@pytest.mark.parametrize("make", [lambda: Counter(episode_steps=None), Unsaved])
def test_of_a_slow_environment_little_is_played(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], Any]
) -> None:
    """At three seconds a step, one episode of 24 steps, which is what each later replay takes, too."""
    taken: list[int] = []

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return 3.0 * len(taken)

    class Slow(gymnasium.Wrapper):
        def step(self, action: Any) -> Any:
            taken.append(1)
            return super().step(action)

    monkeypatch.setattr(trial, "time", Clock)

    def made() -> ActorEnvironment:
        return ActorEnvironment(gymnasium.wrappers.TimeLimit(Slow(make()), 200), "mine")

    played = trial.play(made(), made, steps=150)
    assert played["steps"] == 24 and played["episode"]
    assert len(taken) <= 3 * 24
