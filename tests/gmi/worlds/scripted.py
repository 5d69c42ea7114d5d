"""Batched environments whose results are known beforehand."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


class Scripted:
    """Plays scripts that ignore the actions. The observation is [world, episode, step of the episode].

    Args:
        rewards: float32 ``[T, W]``.
        ends: 0 = the episode continues, 1 = it terminates, 2 = it times out; ``[T, W]``.
        has_finals: Whether observations from before a reset are among the extras.
    """

    num_actions = 2

    def __init__(self, rewards: np.ndarray, ends: np.ndarray, *, has_finals: bool = True) -> None:
        self.num_envs, self.device = rewards.shape[1], "cpu"
        self.max_episode_length = 10**6
        self._rewards, self._ends, self._has_finals = rewards, ends, has_finals
        self._step = 0
        self._at = np.zeros((self.num_envs, 2), np.float32)
        self.actions: list[torch.Tensor] = []

    def get_observations(self) -> dict[str, torch.Tensor]:
        worlds = np.arange(self.num_envs, dtype=np.float32)[:, None]
        return {"policy": torch.from_numpy(np.concatenate([worlds, self._at], 1))}

    def step(self, actions: torch.Tensor) -> tuple[Any, ...]:
        self.actions.append(actions.clone())
        rewards, ends = self._rewards[self._step], self._ends[self._step]
        self._step += 1
        self._at[:, 1] += 1
        finals = self.get_observations()["policy"]
        self._at[ends > 0, 0] += 1
        self._at[ends > 0, 1] = 0
        # Some environments leave it set where nothing has ended.
        extras = {"time_outs": torch.from_numpy(ends != 1)}
        if self._has_finals:
            extras["final_observations"] = finals
        dones = torch.from_numpy((ends > 0).astype(np.int64))
        return self.get_observations(), torch.from_numpy(rewards), dones, extras
