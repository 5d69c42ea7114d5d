"""Converts actors' trajectories to a model's steps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nitro_rl import RunError, Trajectory

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Fragments:
    """A call's trajectories: ``T`` steps of ``N`` actors, in the shapes of the model's environments.

    Attributes:
        observations, next_observations: ``[T, N, *shape]``; the latter are zeros after a terminated step.
        actions: ``[T, N, …]``.
        log_probs: Float32 ``[T, N]``.
        rewards: Float32 ``[T, N]``, the type of stable-baselines3.
        dones: Bool ``[T, N]``.
        infos: A dict for each step of each actor: ``episode``, as in Monitor; for truncated steps also
            ``TimeLimit.truncated`` and ``terminal_observation``.
        action_masks: Bool ``[T, N, M]``; None if the environment has no masks.
        bootstraps: Step and actor of each observation from which a return continues, int ``[K, 2]``.
        bootstrap_observations: ``[K, *shape]``.
    """

    observations: Array
    next_observations: Array
    actions: Array
    log_probs: Array
    rewards: Array
    dones: Array
    infos: list[list[dict[str, Any]]]
    action_masks: Array | None
    bootstraps: Array
    bootstrap_observations: Array

    @classmethod
    def of(
        cls,
        trajectories: Sequence[Trajectory],
        *,
        steps: int,
        started_s: float,
    ) -> Fragments:
        """Puts trajectories side by side.

        Args:
            steps: Required steps of each.
            started_s: Start of learning, in Unix time.

        Raises:
            RunError: Some have fewer steps.
        """
        if shorter := [len(trajectory) for trajectory in trajectories if len(trajectory) != steps]:
            raise RunError(
                f"a trajectory has {shorter[0]} steps instead of {steps}: the environment's episodes cannot "
                "be left open, and the model needs as many steps of each actor"
            )

        def side_by_side(name: str) -> Array:
            return np.stack([getattr(trajectory, name) for trajectory in trajectories], 1)

        infos: list[list[dict[str, Any]]] = [[{} for _ in trajectories] for _ in range(steps)]
        for actor, trajectory in enumerate(trajectories):
            ends = np.flatnonzero(trajectory.terminated | trajectory.truncated)
            for step, episode_return, length in zip(
                ends, trajectory.episode_returns, trajectory.episode_lengths, strict=True
            ):
                infos[step][actor]["episode"] = {
                    "r": float(episode_return),
                    "l": int(length),
                    "t": round(time.time() - started_s, 6),
                }
            for step, observation in zip(
                trajectory.bootstrap_steps, trajectory.bootstrap_observations, strict=True
            ):
                if trajectory.truncated[step]:
                    infos[step][actor] |= {
                        "TimeLimit.truncated": True,
                        "terminal_observation": observation,
                    }
        return cls(
            side_by_side("observations"),
            side_by_side("next_observations"),
            side_by_side("actions"),
            side_by_side("log_probs"),
            side_by_side("rewards").astype(np.float32),
            side_by_side("terminated") | side_by_side("truncated"),
            infos,
            None if trajectories[0].action_masks is None else side_by_side("action_masks"),
            np.array(
                [
                    (step, actor)
                    for actor, trajectory in enumerate(trajectories)
                    for step in trajectory.bootstrap_steps
                ],
                np.int64,
            ).reshape(-1, 2),
            np.concatenate([trajectory.bootstrap_observations for trajectory in trajectories]),
        )

    def seen_after(self, step: int) -> Array:
        """Returns a vector environment's observations after a step, ``[N, *shape]``; at an end, the next episode's."""
        observations: Array = (
            self.observations[step + 1]
            if step + 1 < len(self.dones)
            else self.next_observations[step]
        )
        return observations
