"""Environments by name, and episodes that are cut in one environment and continue in another."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.mujoco.hopper_v5 import HopperEnv

from lambda_actor.environments import ActorEnvironment, make_environment
from lambda_actor.errors import UnusableEnvironmentError
from lambda_actor.spaces import Spaces
from tests import environments as helpers

SEED, STEPS_MAX = 5, 40


class WindyHopper(HopperEnv):
    """A custom MuJoCo environment with Python state that MuJoCo does not know."""


def make_windy_hopper() -> gymnasium.Env:
    return gymnasium.wrappers.TimeLimit(WindyHopper(), 100)


# Cut and continued episodes


def played(environment: ActorEnvironment, steps: range, gain: float = 0.8) -> list[object]:
    """Returns the results of steps with lively actions, some outside the space, until the episode ends."""
    results = []
    for step in steps:
        drawn = gain * np.random.default_rng(step).standard_normal(environment.spaces.action_size)
        action = step % 2 if environment.spaces.is_discrete else np.float32(drawn)
        observation, *rest = environment.step(action)
        results.append([observation.tobytes(), *rest])
        if rest[1] or rest[2]:
            break
    return results


@pytest.mark.parametrize(
    "environment_id",
    [
        "Hopper-v5",
        "Humanoid-v5",
        "Reacher-v5",
        "Pendulum-v1",
        "CartPole-v1",
        "Acrobot-v1",
        "tests.environments:make_short_hopper",
        "tests.environments:make_counter",
        "tests.environments:make_limited",
    ],
)
def test_a_cut_episode_continues_bit_for_bit_in_another_environment(environment_id: str) -> None:
    first, second = make_environment(environment_id), make_environment(environment_id)
    first.reset(SEED)
    uncut = played(first, range(STEPS_MAX))
    assert len(uncut) > 4
    for cut in sorted({1, 2, len(uncut) // 2, len(uncut) - 1}):
        first.reset(SEED)
        head = played(first, range(cut))
        state = first.get_state()
        for used in (first, second):
            # In the middle of a wild episode.
            used.reset(SEED + 101)
            played(used, range(3), gain=3.0)
        second.set_state(state)
        assert head + played(second, range(cut, STEPS_MAX)) == uncut, f"cut after step {cut}"


@pytest.mark.parametrize(
    ("environment_id", "named"),
    [
        ("tests.environments:make_stateless_counter", "Counter"),
        (f"{__name__}:make_windy_hopper", "WindyHopper"),
    ],
)
def test_these_cannot_save_their_episodes_and_say_why(environment_id: str, named: str) -> None:
    assert named in make_environment(environment_id).cannot_save_reason


@pytest.mark.parametrize(
    ("environment_id", "named"),
    [
        ("Hoper-v5", "Did you mean: `Hopper`?; if another package or a script registers it"),
        ("tests.environments:make_failing", "no licence for this simulator"),
    ],
)
def test_unusable_environments_are_named(environment_id: str, named: str) -> None:
    with pytest.raises(UnusableEnvironmentError) as caught:
        make_environment(environment_id)
    assert f"environment.id = {environment_id!r}" in str(caught.value)
    assert named in str(caught.value)


# Actions


@pytest.mark.parametrize("environment_id", ["Humanoid-v5", "Pendulum-v1", "Pusher-v5"])
def test_rescaled_actions_are_those_of_gymnasiums_wrapper(environment_id: str) -> None:
    """Humanoid and Pusher also have fast steps."""
    rescaled = make_environment(environment_id, options={"rescale_actions": True})
    bare = make_environment(environment_id).gymnasium_environment
    wrapped = gymnasium.wrappers.RescaleAction(bare, np.float32(-1), np.float32(1))
    rescaled.reset(SEED)
    wrapped.reset(seed=SEED)
    for step in range(STEPS_MAX):
        drawn = np.random.default_rng(step).standard_normal(rescaled.spaces.action_size)
        frame, reward, *_ = rescaled.step(np.float32(drawn))
        # The wrapper leaves the action space where a policy leaves its range.
        observation, expected, *_ = wrapped.step(np.clip(np.float32(drawn), -1, 1))
        np.testing.assert_allclose(frame, observation, rtol=1e-3, atol=1e-3)
        assert reward == pytest.approx(expected, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize(
    ("low", "high", "is_rescaled"),
    [
        (-1.0, 1.0, False),
        (-np.inf, np.inf, False),
        (0.0, np.inf, False),
        (-3.4e38, 3.4e38, False),
        (0.0, 1000.0, True),
        ([-1.0, -2.0], [1.0, 2.0], True),
    ],
)
def test_a_box_is_rescaled_if_it_is_bounded(low: Any, high: Any, is_rescaled: bool) -> None:
    numbers = gymnasium.spaces.Box(-9.0, 9.0, (2,))
    box = gymnasium.spaces.Box(*(np.broadcast_to(np.float32(bound), (2,)) for bound in (low, high)))
    environment = ActorEnvironment(helpers.OtherSpaces(numbers, box), "boxes", rescale_actions=True)
    assert environment.rescales_actions == is_rescaled
    lowest = environment.to_environment(np.full(2, -1.0, np.float32))
    np.testing.assert_array_equal(lowest, box.low if is_rescaled else np.maximum(box.low, -1.0))


@pytest.mark.parametrize("ended", [None, "no", float("nan"), [False, True]])
def test_an_episodes_end_is_yes_or_no(ended: object, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = make_environment("CartPole-v1")
    environment.reset(SEED)
    step = environment.gymnasium_environment.step
    monkeypatch.setattr(
        environment.gymnasium_environment,
        "step",
        lambda action: (*step(action)[:2], ended, False, {}),
    )
    with pytest.raises(
        UnusableEnvironmentError, match=r"CartPole-v1 returned terminated = .*True \| False"
    ):
        environment.step(0)


# Spaces


@pytest.mark.parametrize(
    ("shape", "dtype", "frame_shape"),
    [
        ((), np.float32, ()),
        ((8, 8, 3), np.uint8, ()),
        ((16, 24), np.uint8, (1, 16, 24)),
        ((32, 48, 3), np.uint8, (3, 32, 48)),
        ((3, 32, 48), np.uint8, (3, 32, 48)),
        ((4, 8, 48), np.uint8, ()),
    ],
    ids=str,
)
def test_what_a_policy_sees_of_a_box(
    shape: tuple[int, ...], dtype: type, frame_shape: tuple[int, ...]
) -> None:
    environment = ActorEnvironment(helpers.Pictures(shape, dtype), "pictures")
    seen_shape = frame_shape or (int(np.prod(shape)),)
    assert environment.spaces == Spaces(seen_shape, frame_shape, 1, action_count=3)
    raw, frame = helpers.Pictures.picture(shape, dtype, SEED), environment.reset(SEED)
    assert (frame.shape, frame.dtype) == (seen_shape, np.uint8 if frame_shape else np.float32)
    is_channels_last = len(shape) == 3 and frame_shape and shape != frame_shape
    np.testing.assert_array_equal(
        frame, (np.moveaxis(raw, -1, 0) if is_channels_last else raw).reshape(frame.shape)
    )


class Reusing(gymnasium.Env):
    """Writes each observation to the same array, as some environments do; its reward is not one number."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.buffer = np.zeros(2, np.float32)
        return self.buffer, {}

    def step(self, action):
        self.buffer += 1
        return self.buffer, np.zeros(1 + action), False, False, {}


def test_observations_are_copies_and_a_reward_is_one_number() -> None:
    environment = ActorEnvironment(Reusing(), "reusing")
    first = environment.reset(0)
    second, *_ = environment.step(0)
    with pytest.raises(UnusableEnvironmentError, match="returned a reward .*LinearReward"):
        environment.step(1)
    assert (first.tolist(), second.tolist()) == ([0, 0], [1, 1])
