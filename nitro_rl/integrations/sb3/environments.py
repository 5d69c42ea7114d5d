"""Environments of a model whose steps actors take: spaces, last observations, and normalization."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import (
    VecEnv,
    VecMonitor,
    VecNormalize,
    VecTransposeImage,
    unwrap_vec_normalize,
)
from stable_baselines3.common.vec_env.base_vec_env import VecEnvWrapper

from nitro_rl import ActorPool, RunError

Array = np.ndarray[Any, Any]


class PoolEnv(VecEnv):
    """Represents the actors' environments. A model reads its spaces and never steps it.

    No environment is made in the trainer's process. Observations come from the actors: a Dict, a Tuple or a Discrete
    is one vector.
    """

    def __init__(self, pool: ActorPool, actors: int) -> None:
        """Takes the spaces from a pool.

        Args:
            pool: The pool whose actors will play.
            actors: Number of actors per call; the model's ``n_envs``.

        Raises:
            RunError: stable-baselines3 has no policy for these spaces, or the pool allows fewer actors.
        """
        if not 1 <= actors <= pool.actors_max:
            raise RunError(
                f"actors = {actors!r} is not allowed; allowed: 1 to {pool.actors_max}, the scaler's most "
                "actors of the pool's experiment"
            )
        observation_space, action_space = _gymnasium_spaces(pool)
        super().__init__(actors, observation_space, action_space)
        self.pool = pool
        self.observations = np.zeros((actors, *observation_space.shape), observation_space.dtype)

    def reset(self) -> Array:
        """Returns the actors' last observations, at first zeros. Their episodes continue from call to call."""
        return self.observations

    def step_async(self, actions: Array) -> None:
        raise RunError(
            "a PoolEnv takes no steps: its actors do, for a model that is attached to the pool; "
            "evaluate in an environment of your own"
        )

    def step_wait(self) -> Any:
        raise NotImplementedError

    def close(self) -> None:
        """Does nothing. The pool's owner closes it."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self, attr_name, None)] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError

    def env_method(
        self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any
    ) -> list[Any]:
        raise NotImplementedError

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs


def _gymnasium_spaces(pool: ActorPool) -> tuple[spaces.Box, spaces.Space[Any]]:
    seen = pool.spaces
    if seen.is_combined:
        raise RunError(
            "a picture beside a vector is for no policy of stable-baselines3; a wrapper can leave out one"
        )
    observation_space = (
        spaces.Box(0, 255, seen.observation_shape, np.uint8)
        if seen.is_pixels
        else spaces.Box(-np.inf, np.inf, seen.observation_shape, np.float32)
    )
    if any(seen.action_starts):
        raise RunError(
            f"the actions begin at {list(seen.action_starts)}, which stable-baselines3 ignores: your own environment "
            "would get others; allowed: actions from 0, by a gymnasium.ActionWrapper there and in environment.wrappers"
        )
    if seen.action_count:
        return observation_space, spaces.Discrete(seen.action_count)
    if seen.action_counts:
        return observation_space, spaces.MultiDiscrete(list(seen.action_counts))
    if not seen.action_bounds:
        raise RunError(
            "the actions have no finite bounds, which stable-baselines3 asks for; a wrapper can set some"
        )
    low, high = np.array(seen.action_bounds, np.float32).T
    return observation_space, spaces.Box(low, high)


def check_environments(env: VecEnv, pool: ActorPool) -> PoolEnv:
    """Returns the `PoolEnv` of a model's environments.

    Raises:
        RunError: They differ from the pool's actors.
    """
    below = env
    while isinstance(below, VecEnvWrapper):
        if type(below) not in (VecNormalize, VecTransposeImage, VecMonitor):
            raise RunError(
                f"actors know nothing of {type(below).__name__}; allowed: VecNormalize, and wrappers of "
                "Gymnasium in environment.wrappers of the experiment"
            )
        below = below.venv
    if not isinstance(below, PoolEnv) or below.pool is not pool:
        raise RunError(
            f"the model's environments are {type(below).__name__}; allowed: PoolEnv(pool, actors) of the same pool"
        )
    return below


class Normalizer:
    """Normalizes observations and rewards like the model's `VecNormalize`; leaves them unchanged without one.

    Departure: actors normalize a whole fragment with the statistics from before it. stable-baselines3 updates these at
    each step.
    """

    def __init__(self, env: VecEnv) -> None:
        """Reads the wrapper, and keeps its statistics, because a reset before the next call adds no actor's data."""
        self._venv = unwrap_vec_normalize(env)
        self._statistics_before = copy.deepcopy(self._statistics)

    @property
    def _statistics(self) -> Any:
        return self._venv.obs_rms if self._venv is not None and self._venv.norm_obs else None

    def for_policy(self) -> dict[str, Any]:
        """Returns mean, standard deviation and clip of observations for `numpy_policy`; may be empty."""
        if self._venv is None or self._statistics is None:
            return {}
        if 0 < self._statistics.count - self._statistics_before.count <= self._venv.num_envs:
            self._venv.obs_rms = copy.deepcopy(self._statistics_before)
        return {
            "observation_mean": self._statistics.mean.ravel(),
            "observation_clip": self._venv.clip_obs,
            "observation_std": np.sqrt(self._statistics.var + self._venv.epsilon).ravel(),
        }

    def observations(self, raw: Array) -> Array:
        """Returns observations as the actors' policy sees them."""
        if self._venv is None:
            return raw
        normalized = self._venv.normalize_obs(raw)
        assert isinstance(normalized, np.ndarray), "only of a Dict is it a dict"
        return normalized

    def rewards(self, raw: Array, dones: Array) -> Array:
        """Returns a step's rewards, float32 ``[N]``, and updates the statistics like the wrapper's step."""
        venv = self._venv
        if venv is None:
            return raw
        if venv.training:
            venv._update_reward(raw)
        normalized: Array = venv.normalize_reward(raw)
        venv.returns[dones] = 0
        return normalized

    def observed(self, raw: Array) -> None:
        """Updates the statistics with a call's observations, ``[…, *shape]``."""
        if self._venv is not None and self._statistics is not None:
            if self._venv.training:
                self._statistics.update(raw.reshape(-1, *self._statistics.mean.shape))
            self._statistics_before = copy.deepcopy(self._statistics)
