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
HIDDEN = dict.fromkeys(
    [f"include_{name}_in_observation" for name in "cinert cvel qfrc_actuator cfrc_ext".split()],
    False,
)
SEEN: dict[str, Any] = {"exclude_current_positions_from_observation": False}
CASES: list[tuple[str, dict[str, Any]]] = [
    ("Hopper-v5", {}),
    ("Walker2d-v5", {}),
    ("HalfCheetah-v5", {"forward_reward_weight": 2, "ctrl_cost_weight": 1}),
    ("Ant-v5", {}),
    ("Humanoid-v5", {}),
    (
        "Hopper-v5",
        {
            "healthy_state_range": (-2.0, 2.0),
            "healthy_z_range": (0.0, 9.0),
            "frame_skip": 3,
            "max_episode_steps": 7,
        },
    ),
    ("Walker2d-v5", {**NEVER_OVER, **SEEN, "ctrl_cost_weight": 0.3}),
    ("Ant-v5", {**NEVER_OVER, "contact_force_range": (-0.1, 5.0), "main_body": 2}),
    ("Humanoid-v5", {**NEVER_OVER, **HIDDEN, **SEEN, "contact_cost_range": (0.5, 2.0)}),
]


def made(environment_id: str, **options: Any) -> gymnasium.Env:
    return gymnasium.make(environment_id, disable_env_checker=True, **options)


@pytest.mark.parametrize(("environment_id", "options"), CASES, ids=str)
def test_lean_steps_are_gymnasiums_own(environment_id: str, options: dict[str, Any]) -> None:
    ours = ActorEnvironment(made(environment_id, **options), environment_id)
    theirs, random = made(environment_id, **options), np.random.default_rng(7)
    low, high = theirs.action_space.low, theirs.action_space.high
    for seed, scale in enumerate([0.1, 2.0, 0.5]):
        seen, expected = ours.reset(seed), theirs.reset(seed=seed)[0]
        for step in range(100):
            action = (scale * random.standard_normal(low.shape)).astype(np.float32)
            seen, *rest = ours.step(action)
            expected, *others, _ = theirs.step(np.clip(action, low, high))
            np.testing.assert_array_equal(seen, expected.astype(np.float32), strict=True)
            assert rest == others, f"episode {seed}, step {step}"
            if rest[1] or rest[2]:
                break


class _Lazy(HopperEnv):
    """A user's own Hopper."""


def takes_a_lean_step(environment: gymnasium.Env, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Returns whether a step after a reset is not one of Gymnasium's own."""
    taken: list[object] = []
    monkeypatch.setattr(MujocoEnv, "do_simulation", lambda *arguments: taken.append(arguments))
    actor = ActorEnvironment(environment, "Hopper-v5")
    actor.reset(0)
    actor.step(np.zeros(actor.spaces.action_size, np.float32))
    return not taken


@pytest.mark.parametrize(
    "make",
    [
        lambda: made("Reacher-v5"),
        lambda: gymnasium.make("Hopper-v5", disable_env_checker=False),
        HopperEnv,
        lambda: gymnasium.wrappers.ClipReward(made("Hopper-v5"), 0.0, 1.0),
        lambda: gymnasium.wrappers.TimeLimit(_Lazy(), 9),
        lambda: made("Hopper-v5", render_mode="rgb_array"),
    ],
    ids=["another", "checked", "bare", "wrapped", "subclass", "drawn"],
)
def test_any_other_environment_takes_its_own_steps(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not takes_a_lean_step(make(), monkeypatch)


@pytest.mark.parametrize("environment_id", sorted({name for name, _ in CASES}))
def test_they_are_taken_by_default_and_not_with_another_version_of_gymnasium(
    environment_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert takes_a_lean_step(made(environment_id), monkeypatch)
    monkeypatch.setattr(gymnasium, "__version__", f"{PROVEN_VERSION}.post1")
    assert not takes_a_lean_step(made(environment_id), monkeypatch)
    assert ActorEnvironment(made(environment_id), "mine").plain_because.startswith(
        f"Gymnasium {PROVEN_VERSION}.post1 is installed"
    )


def test_whoever_changes_a_method_sees_each_step_from_the_next_episode_on() -> None:
    environment, seen = ActorEnvironment(made("Hopper-v5"), "Hopper-v5"), []
    bare: Any = environment.gymnasium_environment.unwrapped
    own = bare.step
    for step in (lambda action: seen.append(action) or own(action), own):
        bare.step = step
        environment.reset(0)
        environment.step(np.zeros(3, np.float32))
        assert len(seen) == 1
