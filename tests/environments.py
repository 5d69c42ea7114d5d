"""Tiny environments and policies for tests; environments by their import path, ``tests.environments:make_counter``."""

from __future__ import annotations

from collections.abc import Mapping

import gymnasium
import numpy as np
from gymnasium import spaces

EPISODE_STEPS = 10
"""Length of an episode of `make_counter` and `make_stateless_counter`, which end by terminating."""
LIMIT_STEPS = 7
"""Length of an episode of `make_limited` and `make_stateless_limited`, which end by their time limit."""
FAULT_STEP = 4
"""Index of the step (from 0) that raises, or returns NaN, in `make_raising`, `make_nan_reward` and so on."""
NOT_CALLABLE = 42
flaky_built: list[Counter] = []
"""Every environment that `make_flaky` made; only the one that finds this empty is faulty."""


class Counter(gymnasium.Env):
    """Counts its steps: observation ``[count, start]``, reward ``10·count + start + action``, start from the seed."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, episode_steps: int | None = EPISODE_STEPS) -> None:
        self.episode_steps = episode_steps
        self.count, self.start = 0, 0.0
        self.actions_seen: list[np.ndarray] = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count, self.start = 0, float(self.np_random.random())
        return self._observation(), {}

    def step(self, action):
        self.actions_seen.append(np.array(action))
        self.count += 1
        reward = 10.0 * self.count + self.start + float(action[0])
        return self._observation(), reward, self.count == self.episode_steps, False, {}

    def _observation(self) -> np.ndarray:
        return np.array([self.count, self.start], np.float32)


class StatefulCounter(Counter):
    """A `Counter` whose episodes can be saved."""

    def get_state(self) -> dict[str, object]:
        return {"count": self.count, "start": np.float64(self.start)}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        self.count, self.start = int(state["count"]), float(state["start"])


class FaultyCounter(StatefulCounter):
    """Goes wrong at step `FAULT_STEP` of each episode, as ``fault`` says."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        if self.count == FAULT_STEP + 1:
            if self.fault == "raise":
                raise RuntimeError("the motor is on fire")
            if self.fault == "reward":
                reward = float("nan")
            if self.fault == "observation":
                observation[1] = np.nan
            if self.fault == "infinity":
                observation[1] = np.inf
        return observation, reward, terminated, truncated, info


class OtherSpaces(gymnasium.Env):
    """Never stepped: it has other spaces than a policy here can act in."""

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        self.observation_space, self.action_space = observation_space, action_space


def make_counter() -> gymnasium.Env:
    return StatefulCounter()


def make_endless() -> gymnasium.Env:
    return StatefulCounter(episode_steps=None)


def make_limited() -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(StatefulCounter(episode_steps=None), LIMIT_STEPS)


def make_terminating_at_limit() -> gymnasium.Env:
    """Terminates at the very step at which its time limit is reached."""
    return gymnasium.wrappers.TimeLimit(StatefulCounter(episode_steps=LIMIT_STEPS), LIMIT_STEPS)


def make_stateless_counter() -> gymnasium.Env:
    return Counter()


def make_stateless_limited() -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(Counter(episode_steps=None), LIMIT_STEPS)


def make_raising() -> gymnasium.Env:
    return FaultyCounter("raise")


def make_flaky() -> gymnasium.Env:
    """Raises if it is the first that was made since `flaky_built` was cleared, else behaves."""
    environment = StatefulCounter() if flaky_built else FaultyCounter("raise")
    flaky_built.append(environment)
    return environment


def make_nan_reward() -> gymnasium.Env:
    return FaultyCounter("reward")


def make_nan_observation() -> gymnasium.Env:
    return FaultyCounter("observation")


def make_infinite_observation() -> gymnasium.Env:
    return FaultyCounter("infinity")


def make_dict_observation() -> gymnasium.Env:
    return OtherSpaces(spaces.Dict({"a": spaces.Box(-1.0, 1.0, (2,))}), spaces.Box(-1.0, 1.0, (1,)))


def make_image_observation() -> gymnasium.Env:
    return OtherSpaces(spaces.Box(0, 255, (8, 8, 3), np.uint8), spaces.Box(-1.0, 1.0, (1,)))


def make_scalar_action() -> gymnasium.Env:
    return OtherSpaces(spaces.Box(-1.0, 1.0, (2,)), spaces.Box(-1.0, 1.0, ()))


def make_nothing() -> None:
    return None


def make_failing() -> gymnasium.Env:
    raise RuntimeError("no licence for this simulator")


def make_short_hopper() -> gymnasium.Env:
    return gymnasium.make("Hopper-v5", max_episode_steps=12, disable_env_checker=True)


gymnasium.register("TestCounter-v0", entry_point=StatefulCounter, max_episode_steps=LIMIT_STEPS)


def policy_arrays(
    observation_size: int,
    action_size: int,
    *,
    policy_version: int = 0,
    hidden: int = 8,
    gain: float = 1.0,
    log_std: float = -1.0,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """The fields of a GAUSSIAN_WEIGHTS message of a random policy.

    Args:
        gain: Scale of the last layer; mean actions are of about this size.
        log_std: −100 makes the policy deterministic: σ is then far below the resolution of float32.
    """
    random = np.random.default_rng(seed)

    def layer(outputs: int, inputs: int, scale: float) -> np.ndarray:
        return (scale / np.sqrt(inputs) * random.standard_normal((outputs, inputs))).astype(np.float32)

    return {
        "policy_version": np.int64(policy_version),
        "weight_0": layer(hidden, observation_size, 1.0),
        "bias_0": random.standard_normal(hidden, dtype=np.float32),
        "weight_1": layer(hidden, hidden, 1.0),
        "bias_1": random.standard_normal(hidden, dtype=np.float32),
        "weight_2": layer(action_size, hidden, gain),
        "bias_2": np.float32(0.1 * gain) * random.standard_normal(action_size, dtype=np.float32),
        "log_std": np.full(action_size, log_std, np.float32),
        "observation_mean": np.zeros(observation_size, np.float32),
        "observation_std": np.ones(observation_size, np.float32),
        "observation_clip": np.float32(10.0),
    }
