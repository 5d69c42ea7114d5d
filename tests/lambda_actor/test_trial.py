"""The trial of an environment in one process."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest

from lambda_actor import trial
from lambda_actor.environments import ActorEnvironment, make_environment
from tests.environments import Counter


def test_of_a_slow_environment_little_is_played(monkeypatch: pytest.MonkeyPatch) -> None:
    """At three seconds a step, one episode of 24 steps, the same as each later replay."""
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


def test_facts_are_the_attributes_of_the_environment() -> None:
    facts = trial.facts(make_environment("Pendulum-v1", options={"rescale_actions": True}))
    assert facts["environment_id"] == "Pendulum-v1"
    assert facts["episode_steps_max"] == 200
    assert facts["rescales_actions"]
