"""Calls of a pool for a model: samples them, and notifies its callbacks step by step."""

from __future__ import annotations

import warnings
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback

from nitro_rl import ActorPool, BudgetError, RunError
from nitro_rl.integrations.sb3.environments import Normalizer, check_environments
from nitro_rl.integrations.sb3.fragments import Fragments

ALLOWED = "PPO | MaskablePPO | A2C | TRPO | SAC | DQN | TQC | CrossQ"


class Calls:
    """The pool of a model."""

    def __init__(self, model: BaseAlgorithm, pool: ActorPool) -> None:
        """Takes the pool of a model whose environments are a `PoolEnv` of it.

        Raises:
            RunError: They are not.
        """
        env = model.get_env()
        assert env is not None
        self._played = check_environments(env, pool)
        self._model = model
        self._pool = pool
        self._env = env
        self._policy = model.policy
        self.normalizer = Normalizer(env)

    def check(self, model: BaseAlgorithm) -> None:
        """Makes sure that it is the model that was attached, as it was.

        Raises:
            RunError: It is not.
        """
        if (
            model is not self._model
            or model.get_env() is not self._env
            or model.policy is not self._policy
        ):
            raise RunError(
                "the model is a copy, or its environments or policy were replaced after attach; allowed: "
                "attach it again"
            )

    def sample(self, policy: Any, *, steps: int) -> Fragments | None:
        """Makes each of the model's ``n_envs`` actors play a fragment.

        Returns:
            The fragments; None if the budget does not hold the call. That ends learning if an earlier call succeeded.

        Raises:
            BudgetError: The budget does not hold the first call of ``learn``.
        """
        model = self._model
        try:
            trajectories = self._pool.sample(policy, actors=model.n_envs, steps=steps)
        except BudgetError as error:
            if model.num_timesteps == model._num_timesteps_at_start:
                raise
            warnings.warn(f"learning ends after {model.num_timesteps} steps: {error}", stacklevel=2)
            return None
        return Fragments.of(trajectories, steps=steps, started_s=model.start_time / 1e9)

    def step(self, callback: BaseCallback, fragments: Fragments, step: int, **named: Any) -> bool:
        """Counts a step of each actor and notifies callbacks. Returns whether they want more."""
        model = self._model
        infos = fragments.infos[step]
        dones = fragments.dones[step]
        model.num_timesteps += model.n_envs
        callback.update_locals(
            {
                "self": model,
                "env": self._env,
                "callback": callback,
                "n_steps": step,
                "actions": fragments.actions[step],
                "new_obs": fragments.seen_after(step),
                "dones": dones,
                "infos": infos,
                **named,
            }
        )
        if not callback.on_step():
            return False
        model._update_info_buffer(infos, dones)
        if step + 1 == len(fragments.dones):
            model._last_obs = self._played.observations = fragments.seen_after(step)
        return True
