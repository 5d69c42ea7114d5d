"""Lean steps equal Gymnasium's to the digit."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.mujoco.hopper_v5 import HopperEnv
from gymnasium.envs.mujoco.mujoco_env import MujocoEnv

from lambda_actor.environments import ActorEnvironment
from lambda_actor.fast.steps import PROVEN_VERSION

NEVER_OVER: dict[str, Any] = {"terminate_when_unhealthy": False}
HIDDEN = {
    f"include_{name}_in_observation": False
    for name in ("cinert", "cvel", "qfrc_actuator", "cfrc_ext")
}
CASES: list[tuple[str, dict[str, Any]]] = [
    *(
        (name, {})
        for name in (
            "Hopper-v5",
            "Walker2d-v5",
            "HalfCheetah-v5",
            "Ant-v5",
            "Humanoid-v5",
        )
    ),
    ("Hopper-v5", NEVER_OVER),
    (
        "Hopper-v5",
        {
            "healthy_state_range": (-2.0, 2.0),
            "healthy_z_range": (0.0, 9.0),
            "frame_skip": 3,
            "max_episode_steps": 7,
        },
    ),
    (
        "Walker2d-v5",
        {
            **NEVER_OVER,
            "ctrl_cost_weight": 0.3,
            "exclude_current_positions_from_observation": False,
        },
    ),
    ("HalfCheetah-v5", {"forward_reward_weight": 2, "ctrl_cost_weight": 1}),
    ("Ant-v5", {**NEVER_OVER, "include_cfrc_ext_in_observation": False, "contact_cost_weight": 1}),
    (
        "Ant-v5",
        {**NEVER_OVER, "contact_force_range": (-0.1, 5.0), "main_body": 2, "healthy_reward": 3},
    ),
    ("Humanoid-v5", {**NEVER_OVER, "contact_cost_weight": 1e-3, "contact_cost_range": (0.5, 2.0)}),
    ("Humanoid-v5", {**NEVER_OVER, **HIDDEN, "exclude_current_positions_from_observation": False}),
]


def made(environment_id: str, **options: Any) -> ActorEnvironment:
    return ActorEnvironment(
        gymnasium.make(environment_id, disable_env_checker=True, **options), environment_id
    )


def play(
    ours: ActorEnvironment, theirs: gymnasium.Env, scales: list[float], steps: int
) -> list[int]:
    """Plays the same episodes in both and compares all results; returns the episodes' lengths.

    Args:
        scales: Scale of each episode's actions.
        steps: Most steps per episode.
    """
    random, lengths = np.random.default_rng(7), []
    low, high = theirs.action_space.low, theirs.action_space.high
    for seed, scale in enumerate(scales):
        seen, expected = ours.reset(seed), theirs.reset(seed=seed)[0]
        for step in range(steps):
            action = (scale * random.standard_normal(low.shape)).astype(np.float32)
            seen, *rest = ours.step(action)
            expected, *others, _ = theirs.step(np.clip(action, low, high))
            np.testing.assert_array_equal(seen, expected.astype(np.float32), strict=True)
            assert rest == others, f"episode {seed}, step {step}"
            if rest[1] or rest[2]:
                break
        lengths.append(step + 1)
    return lengths


@pytest.fixture
def no_steps_of_gymnasium(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(*arguments: Any) -> None:
        raise AssertionError("a step of Gymnasium's own")

    monkeypatch.setattr(MujocoEnv, "do_simulation", step)


@pytest.mark.parametrize(("environment_id", "options"), CASES, ids=str)
def test_lean_steps_are_gymnasiums_own(environment_id: str, options: dict[str, Any]) -> None:
    theirs = gymnasium.make(environment_id, **options)
    lengths = play(made(environment_id, **options), theirs, [0.0, 0.1, 2.0, 0.5], 150)
    if options.get("terminate_when_unhealthy") is False:
        assert set(lengths) == {150}


@pytest.mark.usefixtures("no_steps_of_gymnasium")
@pytest.mark.parametrize("environment_id", sorted({name for name, _ in CASES}))
def test_they_are_taken_by_default(environment_id: str) -> None:
    environment = made(environment_id)
    environment.reset(0)
    environment.step(np.zeros(environment.spaces.action_size, np.float32))


class _Lazy(HopperEnv):
    """A user's own Hopper."""


@pytest.mark.usefixtures("no_steps_of_gymnasium")
@pytest.mark.parametrize(
    "make",
    [
        lambda: gymnasium.make("Reacher-v5"),
        lambda: gymnasium.make("Hopper-v5", disable_env_checker=False),
        HopperEnv,
        lambda: gymnasium.wrappers.ClipReward(gymnasium.make("Hopper-v5"), 0.0, 1.0),
        lambda: gymnasium.wrappers.TimeLimit(_Lazy(), 9),
        lambda: gymnasium.make("Hopper-v5", render_mode="rgb_array"),
    ],
    ids=["another", "checked", "bare", "wrapped", "subclass", "drawn"],
)
def test_any_other_environment_takes_its_own_steps(make: Any) -> None:
    with pytest.raises(AssertionError, match="a step of Gymnasium's own"):
        takes_a_step(make())


@pytest.mark.usefixtures("no_steps_of_gymnasium")
def test_another_version_of_gymnasium_takes_its_own_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gymnasium, "__version__", f"{PROVEN_VERSION}.post1")
    with pytest.raises(AssertionError, match="a step of Gymnasium's own"):
        takes_a_step(gymnasium.make("Hopper-v5", disable_env_checker=True))
    assert made("Hopper-v5").plain_because == (
        f"Gymnasium {PROVEN_VERSION}.post1 is installed, and the quick steps are for {PROVEN_VERSION}"
    )
    assert made("CartPole-v1").plain_because == "", "there are no quick steps for it in any version"


def takes_a_step(environment: gymnasium.Env) -> None:
    actor = ActorEnvironment(environment, "Hopper-v5")
    actor.reset(0)
    actor.step(np.zeros(actor.spaces.action_size, np.float32))


def test_whoever_changes_a_method_sees_each_step_from_the_next_episode_on() -> None:
    environment, seen = made("Hopper-v5"), []
    bare: Any = environment.gymnasium_environment.unwrapped
    own = bare.step
    bare.step = lambda action: seen.append(action) or own(action)
    environment.reset(0)
    environment.step(np.zeros(3, np.float32))
    assert len(seen) == 1
    bare.step = own
    environment.reset(0)
    environment.step(np.zeros(3, np.float32))
    assert len(seen) == 1
