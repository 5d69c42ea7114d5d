"""Tiny environments and policies for tests; environments by their import path, ``tests.environments:make_counter``."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from lambda_actor import wire
from lambda_actor.policy import parameter_shapes
from lambda_actor.spaces import Spaces

EPISODE_STEPS = 10
"""Length of an episode of `make_counter` and `make_stateless_counter`, which ends by terminating."""
LIMIT_STEPS = 7
"""Length of an episode of `make_limited` and `make_stateless_limited`, which ends by its time limit."""
FAULT_STEP = 4
"""Index, from 0, of the step that raises or returns NaN in `make_raising`, `make_nan_reward` and others."""


class Counter(gymnasium.Env):
    """Counts its steps: observation ``[count, start]``, reward ``10·count + start + action``; start is the seed's."""

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
    """Fails at step `FAULT_STEP` of each episode, as ``fault`` says."""

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
        return observation, reward, terminated, truncated, info


class StepShower(gymnasium.Env):
    """Observes the next step of its episode, one-hot, and cannot be saved. Rewards are 1, or random if ``is_random``.

    Running moments of the observations count how often each step was trained on.
    """

    EPISODE_STEPS = 12
    observation_space = spaces.Box(0.0, 1.0, (EPISODE_STEPS,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, is_random: bool = False) -> None:
        self.is_random, self.count = is_random, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self._observation(), {}

    def step(self, action):
        self.count += 1
        reward = int.from_bytes(os.urandom(4), "little") / 2**32 if self.is_random else 1.0
        return self._observation(), reward, False, False, {}

    def _observation(self) -> np.ndarray:
        return np.eye(self.EPISODE_STEPS, dtype=np.float32)[self.count % self.EPISODE_STEPS]


class Masked(gymnasium.Env):
    """Allows different actions at each step, raises at a forbidden one, and rewards the action's number.

    The mask is in ``info``, or part of the observation.
    """

    def __init__(
        self,
        *,
        is_observed: bool = False,
        counts: tuple[int, ...] = (5,),
        is_sometimes: bool = False,
        start: int = 3,
    ) -> None:
        self.counts, self.is_observed, self.is_sometimes = counts, is_observed, is_sometimes
        self.action_space = (
            spaces.Discrete(counts[0], start=start)
            if len(counts) == 1
            else spaces.MultiDiscrete(counts)
        )
        plain = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.observation_space: spaces.Space = (
            plain
            if not is_observed
            else spaces.Dict(
                {"action_mask": spaces.Box(0, 1, (sum(counts),), np.int8), "seen": plain}
            )
        )
        self.count, self.start = 0, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count, self.start = 0, int(self.np_random.integers(1000))
        return self._told()

    def step(self, action):
        chosen = np.atleast_1d(action) - getattr(self.action_space, "start", 0)
        for part, one in zip(self._masks(), chosen, strict=True):
            if not part[one]:
                raise RuntimeError(f"action {one} is forbidden")
        self.count += 1
        observation, info = self._told()
        return observation, float(chosen.sum()), self.count == EPISODE_STEPS, False, info

    def _masks(self) -> tuple[np.ndarray, ...]:
        draw = np.random.default_rng((self.start, self.count))
        masks = tuple((draw.random(count) < 0.4).astype(np.int8) for count in self.counts)
        for mask in masks:
            mask[draw.integers(len(mask))] = 1
        return masks

    def _told(self):
        observation, masks = np.array([self.count, self.start / 1000], np.float32), self._masks()
        if self.is_observed:
            return {"action_mask": np.concatenate(masks), "seen": observation}, {}
        is_told = not (self.is_sometimes and self.count == FAULT_STEP)
        return observation, {
            "action_mask": masks[0] if len(masks) == 1 else masks
        } if is_told else {}


class StatefulMasked(Masked):
    """A `Masked` whose episodes can be saved."""

    def get_state(self) -> dict[str, object]:
        return {"count": self.count, "start": self.start}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        self.count, self.start = int(state["count"]), int(state["start"])


class OtherSpaces(gymnasium.Env):
    """Has spaces that no policy here can act in; never stepped."""

    def __init__(self, observation_space: spaces.Space, action_space: spaces.Space) -> None:
        self.observation_space, self.action_space = observation_space, action_space


def make_counter() -> gymnasium.Env:
    return StatefulCounter()


def make_masked(**options: Any) -> gymnasium.Env:
    return StatefulMasked(**options)


def make_replayed_masked() -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(Masked(), EPISODE_STEPS)


def make_step_shower(is_random: bool = False) -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(StepShower(is_random), StepShower.EPISODE_STEPS)


def make_outside() -> gymnasium.Env:
    """Observes what its space does not allow."""
    made = StatefulCounter()
    made.observation_space = spaces.Box(-1e-3, 1e-3, (2,), np.float32)
    return made


def make_endless() -> gymnasium.Env:
    return StatefulCounter(episode_steps=None)


def make_limited() -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(StatefulCounter(episode_steps=None), LIMIT_STEPS)


def make_stateless_counter() -> gymnasium.Env:
    return Counter()


def make_stateless_limited() -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(Counter(episode_steps=None), LIMIT_STEPS)


def make_raising() -> gymnasium.Env:
    return FaultyCounter("raise")


class MarkedCounter(StatefulCounter):
    """Raises, while a file exists, in episodes that begin above one half."""

    def __init__(self, marker: str) -> None:
        super().__init__()
        self.marker = marker

    def step(self, action):
        if self.start > 0.5 and os.path.exists(self.marker):
            raise RuntimeError("the motor is on fire")
        return super().step(action)


def make_marked(marker: str) -> gymnasium.Env:
    return MarkedCounter(marker)


class FailingInActors(StatefulCounter):
    """Passes its trial, and fails in actors."""

    def step(self, action):
        if sys.argv[0].endswith("actor_process.py"):
            raise RuntimeError("the motor is on fire")
        return super().step(action)


def make_nan_reward() -> gymnasium.Env:
    return FaultyCounter("reward")


def make_nan_observation() -> gymnasium.Env:
    return FaultyCounter("observation")


class Pictures(gymnasium.Env):
    """Shows pictures that depend on the seed, the step and the actions. Its reward is the discrete action."""

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: type = np.uint8,
        *,
        start: int = 0,
        episode_steps: int = EPISODE_STEPS,
    ) -> None:
        self.shape, self.dtype, self.episode_steps = shape, dtype, episode_steps
        self.observation_space = spaces.Box(0, 255, shape, dtype)
        self.action_space = spaces.Discrete(3, start=start)
        self.number, self.count = 0, 0

    @staticmethod
    def picture(shape: tuple[int, ...], dtype: type, number: int) -> np.ndarray:
        return np.random.default_rng(number).integers(256, size=shape).astype(dtype)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number, self.count = seed, 0
        return self.picture(self.shape, self.dtype, self.number), {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.number, self.count = 7 * self.number % 2**31 + int(action) + 2, self.count + 1
        observation = self.picture(self.shape, self.dtype, self.number)
        return observation, float(action), self.count == self.episode_steps, False, {}

    def get_state(self) -> dict[str, object]:
        return {"number": self.number, "count": self.count}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        self.number, self.count = int(state["number"]), int(state["count"])


class Locks(gymnasium.Env):
    """Shows a combination as a Dict of parts. The reward is the share of an action's choices that match it."""

    def __init__(self, action_space: spaces.MultiDiscrete | spaces.MultiBinary) -> None:
        self.action_space, self.count = action_space, 0
        numbers = (
            spaces.MultiDiscrete(action_space.nvec)
            if isinstance(action_space, spaces.MultiDiscrete)
            else spaces.MultiBinary(action_space.shape)
        )
        self.observation_space = spaces.Dict(
            {"combination": numbers, "count": spaces.Box(0.0, 1.0)}
        )
        self.combination = np.zeros(action_space.shape, np.int64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self._observation(), {}

    def step(self, action):
        assert self.action_space.contains(action), (action, self.action_space)
        reward = float(np.mean(action - getattr(self.action_space, "start", 0) == self.combination))
        self.count += 1
        return self._observation(), reward, self.count == EPISODE_STEPS, False, {}

    def _observation(self) -> dict[str, object]:
        self.combination = self.np_random.integers(
            getattr(self.action_space, "nvec", 2), size=self.combination.shape
        )
        return {
            "combination": self.combination.astype(self.action_space.dtype),
            "count": np.array([self.count / EPISODE_STEPS], np.float32),
        }


class Signs(gymnasium.Env):
    """Shows a picture that is bright on one side, a sign and the count. Action 1 pays if side and sign agree, else 0.

    Neither the picture nor the numbers alone reveal which action pays. The numbers are small, so they only matter once
    normalized.
    """

    observation_space = spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (16, 20, 3), np.uint8),
            "count": spaces.Discrete(EPISODE_STEPS + 1),
            "odometer": spaces.Tuple((spaces.Box(-1.0, 1.0, (1, 2)),)),
        }
    )
    action_space = spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012  # as Gymnasium has it
    render_mode = None

    def __init__(self) -> None:
        self.number, self.count = 0, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number, self.count = int(self.np_random.integers(2**31)), 0
        return self._observation(), {}

    def step(self, action):
        reward = float(action == (self._side() == self._sign()))
        self.number, self.count = (self.number * 1_103_515_245 + 12_345) % 2**31, self.count + 1
        return self._observation(), reward, self.count == EPISODE_STEPS, False, {}

    def render(self) -> np.ndarray:
        return np.kron(self._observation()["camera"], np.ones((4, 4, 1), np.uint8))

    def _side(self) -> int:
        return self.number >> 20 & 1

    def _sign(self) -> int:
        return self.number >> 24 & 1

    def _observation(self) -> dict[str, object]:
        camera = np.full((16, 20, 3), 30, np.uint8)
        camera[:, 10 * self._side() :][:, :10] = 220
        odometer = np.array([[0.01 * (2 * self._sign() - 1), 1.0]], np.float32)
        return {"camera": camera, "count": self.count, "odometer": (odometer,)}


class StatefulSigns(Signs):
    """`Signs` whose episodes can be saved."""

    def get_state(self) -> dict[str, object]:
        return {"number": self.number, "count": self.count}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        self.number, self.count = int(state["number"]), int(state["count"])


class FaultySigns(StatefulSigns):
    """`Signs` whose numbers are not finite at step `FAULT_STEP` of each episode."""

    def _observation(self) -> dict[str, object]:
        observation = super()._observation()
        if self.count == FAULT_STEP + 1:
            observation["odometer"][0][0, 1] = np.nan
        return observation


def make_signs() -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(StatefulSigns(), EPISODE_STEPS)


def make_replayed_signs() -> gymnasium.Env:
    """`Signs` whose episodes cannot be saved."""
    return gymnasium.wrappers.TimeLimit(Signs(), EPISODE_STEPS)


def make_nan_signs() -> gymnasium.Env:
    return FaultySigns()


def make_locks() -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(
        Locks(spaces.MultiDiscrete([[2, 3], [1, 4]], start=[[5, 0], [-1, 2]])), 10
    )


def make_switches() -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(Locks(spaces.MultiBinary(4)), 10)


def make_pictures() -> gymnasium.Env:
    return Pictures((16, 20, 2))


def make_limited_pictures() -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(Pictures((16, 20, 2), episode_steps=10**9), LIMIT_STEPS)


def make_failing() -> gymnasium.Env:
    raise RuntimeError("no licence for this simulator")


def make_short_hopper() -> gymnasium.Env:
    return gymnasium.make("Hopper-v5", max_episode_steps=12, disable_env_checker=True)


gymnasium.register("TestCounter-v0", entry_point=StatefulCounter, max_episode_steps=LIMIT_STEPS)


def policy_arrays(
    observation_size: int = 2,
    action_size: int = 1,
    *,
    spaces: Spaces | None = None,
    network: str = "mlp",
    policy_version: int = 0,
    hidden: int = 8,
    gain: float = 1.0,
    log_std: float = -1.0,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Returns the fields of a WEIGHTS message of a random policy.

    Args:
        observation_size, action_size: Sizes of vectors and continuous actions, used without ``spaces``.
        hidden: Units of the two hidden layers of ``mlp``.
        gain: Scale of the last layer; mean actions are of about this size.
        log_std: −100 makes the policy deterministic: σ is then far below the resolution of float32.
    """
    spaces = spaces or Spaces((observation_size,), action_size=action_size)
    if network == "mlp":
        network = f"mlp tanh {hidden} {hidden}"
    shapes = parameter_shapes(spaces, network)
    last = f"layer.{len(shapes) // 2 - 1}."
    random = np.random.default_rng(seed)
    layers = {}
    for name, shape in shapes.items():
        scale = gain if name.startswith(last) else 1.0
        if name.endswith("weight"):
            weight = random.standard_normal(shape) * scale / np.sqrt(np.prod(shape[1:]))
            layers[name] = weight.astype(np.float32)
        else:
            bias = random.standard_normal(shape, dtype=np.float32)
            layers[name] = np.float32(0.1 * gain if name.startswith(last) else 1.0) * bias
    moments = spaces.vector_size
    return {
        "policy_version": np.int64(policy_version),
        "network": wire.text_field(network),
        "distribution": wire.text_field(spaces.distribution),
        **layers,
        "log_std": np.full(spaces.action_size, log_std, np.float32),
        "observation_mean": np.zeros(moments, np.float32),
        "observation_std": np.ones(moments, np.float32),
        "observation_clip": np.float32(10.0),
    }
