"""Transitions that actors of a pool made, for stable-baselines3 to collect once more by itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv

from nitro_rl import ActorPool, Trajectory

ACTORS, STEPS = 3, 40
LIMITS = {"CartPole-v1": 18, "Hopper-v5": 12}
"""Steps of an episode: some of a fragment end there, others fall before; none at the end of a call."""


def tree(environment_id: str, **actor: Any) -> dict[str, Any]:
    return {
        "environment": {"id": environment_id, "max_episode_steps": LIMITS[environment_id]},
        "actor": {"fragment_steps": STEPS, "timeout_s": 30, **actor},
        "fleet": {"processes": 1},
        "scaler": {"kind": "fixed", "actors_fixed": ACTORS},
        "seed": 5,
    }


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


def recorded(pool: ActorPool, monkeypatch: pytest.MonkeyPatch) -> list[list[Trajectory]]:
    """The trajectories of each call to come."""
    calls: list[list[Trajectory]] = []
    sample = pool.sample
    monkeypatch.setattr(
        pool, "sample", lambda *args, **named: calls.append(sample(*args, **named)) or calls[-1]
    )
    return calls
