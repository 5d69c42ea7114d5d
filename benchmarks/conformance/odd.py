"""Environments with one oddity each: ``benchmarks.conformance.odd:make`` with the oddity's name."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

EPISODE_STEPS = 60
_VECTOR, _CHOICE = spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Discrete(3)

OBSERVATIONS: dict[str, spaces.Space[Any]] = {
    "dict": spaces.Dict(
        {
            "at": spaces.Box(-1.0, 1.0, (2, 2)),
            "is": spaces.MultiBinary(3),
            "of": spaces.Tuple([spaces.Discrete(4, start=-1), spaces.MultiDiscrete([2, 3])]),
        }
    ),
    "tuple": spaces.Tuple([spaces.Discrete(4), spaces.Box(0, 9, (2,), np.int16)]),
    "float64": spaces.Box(-1.0, 1.0, (3,), np.float64),
    "float16": spaces.Box(-1.0, 1.0, (3,), np.float16),
    "unbounded": spaces.Box(-np.inf, np.inf, (2, 3, 4, 5), np.float32),
    "one_number": spaces.Box(-1.0, 1.0, (), np.float32),
    "flags": spaces.Box(0, 1, (4, 4), np.bool_),
    "small_picture": spaces.Box(0, 255, (15, 15, 3), np.uint8),
    "picture": spaces.Box(0, 255, (24, 32, 3), np.uint8),
    "float_picture": spaces.Box(0.0, 1.0, (24, 24, 3), np.float32),
    "picture_and_vector": spaces.Dict(
        {"camera": spaces.Box(0, 255, (24, 24, 3), np.uint8), "speed": _VECTOR}
    ),
    "two_pictures": spaces.Dict(
        {
            "left": spaces.Box(0, 255, (24, 24, 3), np.uint8),
            "right": spaces.Box(0, 255, (24, 24, 3), np.uint8),
        }
    ),
    "text": spaces.Text(5),
    "sequence": spaces.Sequence(spaces.Box(-1.0, 1.0, (2,))),
    "graph": spaces.Graph(spaces.Box(-1.0, 1.0, (2,)), None),
    "one_of": spaces.OneOf([spaces.Discrete(2), _VECTOR]),
    "nothing": spaces.Box(-1.0, 1.0, (0,), np.float32),
}
ACTIONS: dict[str, spaces.Space[Any]] = {
    "unbounded_actions": spaces.Box(-np.inf, np.inf, (2,), np.float32),
    "float64_actions": spaces.Box(-1.0, 1.0, (2, 2), np.float64),
    "choices_from_minus_two": spaces.Discrete(3, start=-2),
    "several_choices": spaces.MultiDiscrete([[2, 3], [1, 4]]),
    "switches": spaces.MultiBinary((2, 2)),
    "whole_number_actions": spaces.Box(0, 9, (2,), np.int64),
    "tuple_actions": spaces.Tuple([_CHOICE, _VECTOR]),
    "dict_actions": spaces.Dict({"turn": _CHOICE, "push": _VECTOR}),
}


class Odd(gymnasium.Env):
    """Returns samples of its observation space, determined by the seed. An episode has 60 steps.

    Args:
        fault_step: Step at which a faulty environment fails.
    """

    def __init__(self, oddity: str, fault_step: int = 20) -> None:
        self.oddity, self.fault_step, self.count = oddity, fault_step, 0
        self.observation_space = OBSERVATIONS.get(oddity, _VECTOR)
        self.action_space = ACTIONS.get(oddity, _CHOICE)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.count = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        self.count += 1
        observation, reward = self.observation_space.sample(), float(self.np_random.random())
        is_fault = self.count == self.fault_step
        match self.oddity:
            case "huge_rewards":
                reward *= 1e30
            case "reward_array":
                reward = np.array([reward])
            case "several_rewards":
                reward = np.array([reward, 1.0])
            case "nondeterministic":
                observation = np.float32(np.random.default_rng().random(3))
            case "clock":
                observation = np.full(3, time.perf_counter() % 1.0, np.float32)
            case "list_observations":
                observation = observation.tolist()
            case "outside_its_space":
                observation = observation * 1e6
            case "prints":
                print("step", self.count, "x" * 1000)
            case "another_shape" if is_fault:
                observation = observation[:2]
            case "raises" if is_fault:
                raise RuntimeError("the motor is on fire")
            case "exits" if is_fault:
                raise SystemExit(3)
            case "nan_reward" if is_fault:
                reward = float("nan")
            case "nan_observation" if is_fault:
                observation = observation * np.nan
        return observation, reward, self.count == EPISODE_STEPS, False, {}


def make(oddity: str, limit: int | None = EPISODE_STEPS, **options: int) -> gymnasium.Env:
    """Returns an environment with that oddity, and a step limit that Gymnasium knows."""
    environment = Odd(oddity, **options)
    return environment if limit is None else gymnasium.wrappers.TimeLimit(environment, limit)
