"""The trial of an environment in one process."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest

from lambda_actor import trial
from lambda_actor.environments import ActorEnvironment
from lambda_actor.errors import UnusableEnvironmentError
from lambda_actor.spaces import Spaces
from lambda_actor.trial import TriedEnvironment
from tests.environments import Counter


def test_a_fragment_as_long_as_an_episode_drops_it_and_a_shorter_one_cannot() -> None:
    """Matches the refusal's advice: ``actor.fragment_steps from`` the step limit."""
    tried = TriedEnvironment(
        "it",
        Spaces((1,), action_count=2),
        "none",
        50,
        cannot_save_reason="it has no get_state",
        plain_because="",
        difference="it differs",
    )
    assert tried.dropped_because(50) == "no later actor can continue its episodes: it differs"
    with pytest.raises(
        UnusableEnvironmentError, match=r"it differs; allowed: .*actor\.fragment_steps from 50, "
    ):
        tried.dropped_because(49)


def test_of_a_slow_environment_little_is_played(monkeypatch: pytest.MonkeyPatch) -> None:
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
        return ActorEnvironment(
            gymnasium.wrappers.TimeLimit(Slow(Counter(episode_steps=None)), 200), "mine"
        )

    played = trial.play(made(), made, steps=150)
    assert played["steps"] == 24 and played["episode"]
    assert len(taken) <= 3 * 24
