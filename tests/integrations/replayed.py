"""Transitions that actors of a pool made, for stable-baselines3 to collect once more by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv

from nitro_rl import ActorPool, BudgetError, Trajectory
from tests.integrations.conftest import ACTORS, LIMITS

Opens = Callable[..., ActorPool]


def environments(environment_id: str) -> DummyVecEnv:
    return make_vec_env(
        environment_id, ACTORS, seed=0, env_kwargs={"max_episode_steps": LIMITS[environment_id]}
    )


class Replayed(DummyVecEnv):
    """Takes the recorded steps of calls, whatever it is asked to do."""

    def __init__(self, env: DummyVecEnv, calls: list[list[Trajectory]]) -> None:
        self.__dict__.update(env.__dict__)
        self.recorded = [(call, step) for call in calls for step in range(len(call[0]))]
        self.taken = 0

    def step_async(self, actions: Any) -> None:
        call, step = self.recorded[self.taken]
        expected, space = np.stack([one.actions[step] for one in call]), self.action_space
        if isinstance(space, spaces.Box):
            expected = np.clip(expected, space.low, space.high)
        np.testing.assert_allclose(actions, expected, atol=1e-6)

    def step_wait(self) -> Any:
        call, step = self.recorded[self.taken]
        self.taken += 1
        infos: list[dict[str, Any]] = []
        for one in call:
            is_cut = bool(one.truncated[step] and not one.terminated[step])
            infos.append(
                {"TimeLimit.truncated": is_cut, "terminal_observation": one.next_observations[step]}
            )
        dones = np.array([one.terminated[step] or one.truncated[step] for one in call])
        after = np.stack(
            [
                one.observations[step + 1] if step + 1 < len(one) else one.next_observations[step]
                for one in call
            ]
        )
        return after, np.array([one.rewards[step] for one in call], np.float32), dones, infos


def recorded(
    pool: ActorPool, monkeypatch: pytest.MonkeyPatch, most: float = np.inf
) -> list[list[Trajectory]]:
    """The trajectories of each call to come; after the last one the budget is used up."""
    calls: list[list[Trajectory]] = []
    sample = pool.sample

    def noting(*args: Any, **named: Any) -> list[Trajectory]:
        if len(calls) >= most:
            raise BudgetError("the budget does not hold another call")
        calls.append(sample(*args, **named))
        return calls[-1]

    monkeypatch.setattr(pool, "sample", noting)
    return calls


def joined(calls: list[list[Trajectory]], name: str) -> np.ndarray:
    """An array of trajectories, ``[T, N, …]``, one call after the other."""
    return np.concatenate([np.stack([getattr(one, name) for one in call], 1) for call in calls])
