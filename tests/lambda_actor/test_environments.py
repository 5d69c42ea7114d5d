"""Environments by name, and episodes that are cut in one environment and continue in another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.mujoco.hopper_v5 import HopperEnv

from lambda_actor.environments import ActorEnvironment, make_environment
from lambda_actor.errors import UnusableEnvironmentError
from lambda_actor.rollout import OpenEpisode
from lambda_actor.spaces import Spaces
from tests import environments as helpers

MUJOCO_IDS = ["Hopper-v5", "Walker2d-v5", "HalfCheetah-v5", "Ant-v5", "Humanoid-v5"]
OTHER_IDS = [
    "Pendulum-v1",
    "MountainCarContinuous-v0",
    "Swimmer-v5",
    "Reacher-v5",
    "Pusher-v5",
    "InvertedPendulum-v5",
    "InvertedDoublePendulum-v5",
    "HumanoidStandup-v5",
    "CartPole-v1",
    "MountainCar-v0",
    "Acrobot-v1",
]
OWN_IDS = [
    "tests.environments:make_short_hopper",
    "tests.environments:make_counter",
    "tests.environments:make_limited",
]
SEED, STEPS_MAX = 5, 40
GENTLE = {"InvertedPendulum-v5": 0.02, "InvertedDoublePendulum-v5": 0.02}
"""Scale of the actions in environments whose episodes end at once with lively ones."""


# Custom environments, found by ``tests.lambda_actor.test_environments:name``


class WindyHopper(HopperEnv):
    """A custom MuJoCo environment with Python state that MuJoCo does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.gust = 0.0

    def step(self, action):
        self.gust += 0.1
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward - self.gust, terminated, truncated, info


def make_windy_hopper() -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(WindyHopper(), 100)


# Cut and continued episodes


@dataclass(frozen=True)
class Step:
    observation: bytes
    reward: float
    terminated: bool
    truncated: bool


def actions_for(environment: ActorEnvironment, gain: float | None = None) -> np.ndarray:
    """Returns lively actions. Some continuous ones are outside the action space."""
    if environment.spaces.is_discrete:
        return np.random.default_rng(SEED).integers(environment.spaces.action_count, size=STEPS_MAX)
    gain = gain or GENTLE.get(environment.environment_id, 0.8)
    normal = np.random.default_rng(SEED).standard_normal(
        (STEPS_MAX, environment.spaces.action_size), dtype=np.float32
    )
    return np.float32(gain) * normal


def play(environment: ActorEnvironment, actions: Iterable[np.ndarray]) -> list[Step]:
    """Steps until the episode or the actions end."""
    steps = []
    for action in actions:
        observation, reward, terminated, truncated = environment.step(action)
        steps.append(Step(observation.tobytes(), reward, terminated, truncated))
        if terminated or truncated:
            break
    return steps


def sent(environment: ActorEnvironment, observation: bytes = b"\0\0\0\0") -> OpenEpisode:
    """Returns the open episode as the next actor receives it: through the bytes of a message."""
    episode = OpenEpisode(
        np.frombuffer(observation, np.float32), environment.get_state(), 0.0, 1, 0
    )
    return OpenEpisode.from_bytes(episode.to_bytes())


def dirty(environment: ActorEnvironment) -> ActorEnvironment:
    """Puts the same environment in the middle of a wild episode."""
    environment.reset(SEED + 100)
    play(environment, actions_for(environment, gain=3.0)[::-1])
    environment.reset(SEED + 101)
    play(environment, actions_for(environment, gain=2.0)[:3])
    return environment


def uncut_episode(environment_id: str) -> tuple[np.ndarray, list[Step]]:
    environment = make_environment(environment_id)
    actions = actions_for(environment)
    environment.reset(SEED)
    return actions, play(environment, actions)


@pytest.mark.parametrize("environment_id", MUJOCO_IDS + OTHER_IDS + OWN_IDS)
def test_a_cut_episode_continues_bit_for_bit_in_another_environment(environment_id: str) -> None:
    actions, uncut = uncut_episode(environment_id)
    assert len(uncut) > 4
    first, second = make_environment(environment_id), dirty(make_environment(environment_id))
    for cut in sorted({1, 2, len(uncut) // 2, len(uncut) - 1}):
        first.reset(SEED)
        head = play(first, actions[:cut])
        episode = sent(first, head[-1].observation)
        dirty(first)
        second.set_state(episode.state)
        assert head + play(second, actions[cut:]) == uncut, f"cut after step {cut}"
        assert episode.observation.tobytes() == uncut[cut - 1].observation


# Environments that can save an episode


@pytest.mark.parametrize(
    ("environment_id", "named"),
    [
        ("tests.environments:make_stateless_counter", "Counter"),
        (f"{__name__}:make_windy_hopper", "WindyHopper"),
    ],
)
def test_these_cannot_save_their_episodes_and_say_why(environment_id: str, named: str) -> None:
    environment = make_environment(environment_id)
    assert not environment.can_save_episode
    assert named in environment.cannot_save_reason


# Environments by name


@pytest.mark.parametrize(
    ("environment_id", "named"),
    [
        ("Hoper-v5", "Did you mean: `Hopper`?; if another package registers it"),
        ("tests.environments:make_failing", "no licence for this simulator"),
    ],
)
def test_unusable_environments_are_named(environment_id: str, named: str) -> None:
    with pytest.raises(UnusableEnvironmentError) as caught:
        make_environment(environment_id)
    assert f"environment.id = {environment_id!r}" in str(caught.value)
    assert named in str(caught.value)


# Spaces


@pytest.mark.parametrize(
    ("shape", "dtype", "observation_shape", "frame_shape"),
    [
        ((), np.float32, (1,), ()),
        ((8, 8, 3), np.uint8, (192,), ()),
        ((16, 24), np.uint8, (1, 16, 24), (1, 16, 24)),
        ((32, 48, 3), np.uint8, (3, 32, 48), (3, 32, 48)),
        ((3, 32, 48), np.uint8, (3, 32, 48), (3, 32, 48)),
        ((4, 8, 48), np.uint8, (1536,), ()),
    ],
    ids=str,
)
def test_what_a_policy_sees_of_a_box(
    shape: tuple[int, ...],
    dtype: type,
    observation_shape: tuple[int, ...],
    frame_shape: tuple[int, ...],
) -> None:
    environment = ActorEnvironment(helpers.Pictures(shape, dtype), "pictures")
    assert environment.spaces == Spaces(observation_shape, frame_shape, 1, action_count=3)
    raw, frame = helpers.Pictures.picture(shape, dtype, SEED), environment.reset(SEED)
    assert (frame.shape, frame.dtype) == (
        observation_shape,
        np.uint8 if frame_shape else np.float32,
    )
    assert frame.flags["C_CONTIGUOUS"]
    is_channels_last = len(shape) == 3 and frame_shape and shape != frame_shape
    np.testing.assert_array_equal(
        frame, (np.moveaxis(raw, -1, 0) if is_channels_last else raw).reshape(frame.shape)
    )


class Rewarding(helpers.Counter):
    """Returns the reward with which it was made."""

    def __init__(self, reward: object) -> None:
        super().__init__()
        self.reward = reward

    def step(self, action):
        observation, _, *ends = super().step(action)
        return observation, self.reward, *ends


@pytest.mark.parametrize("reward", [np.array([1.0, 2.0]), None], ids=repr)
def test_a_reward_that_is_not_one_number_is_refused_with_the_wrapper_that_helps(
    reward: object,
) -> None:
    environment = ActorEnvironment(Rewarding(reward), "odd")
    environment.reset(0)
    with pytest.raises(
        UnusableEnvironmentError,
        match=r"odd returned a reward .*allowed: one number; .*LinearReward",
    ):
        environment.step(np.zeros(1))


def test_observations_are_copies_of_what_the_environment_reuses() -> None:
    """Some environments write each observation to the same float32 array."""

    class Reusing(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
        action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

        def reset(self, *, seed=None, options=None):
            self.buffer = np.zeros(2, np.float32)
            return self.buffer, {}

        def step(self, action):
            self.buffer += 1
            return self.buffer, 0.0, False, False, {}

    environment = ActorEnvironment(Reusing(), "reusing")
    first = environment.reset(0)
    second, *_ = environment.step(np.zeros(1, np.float32))
    environment.step(np.zeros(1, np.float32))
    assert (first.tolist(), second.tolist()) == ([0, 0], [1, 1])
