"""Batched MuJoCo tasks against Gymnasium's, step by step, with MuJoCo itself as their physics."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lambda_actor.environments import make_environment
from runtime.experiment.schema import _SIMULATED
from runtime.gmi.worlds import mujoco as tasks
from runtime.gmi.worlds.mujoco import TASKS, MujocoWorlds
from tests.gmi.worlds.host_physics import HostPhysics
from tests.gmi.worlds.side_by_side import steps_of_both

STEPS = 130
ALWAYS_TIMED = {"HalfCheetah-v5", "HumanoidStandup-v5", "Pusher-v5", "Reacher-v5", "Swimmer-v5"}
DEVICE = torch.device("cpu")


@pytest.fixture(autouse=True)
def _few_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "START_STATES", 4)


def make(environment_id: str, count: int, **options: Any) -> tuple[MujocoWorlds, HostPhysics, Any]:
    """Returns worlds, their physics, and Gymnasium's environment of the same model and time limit."""
    environments = [make_environment(environment_id, "none", options) for _ in range(2)]
    bare: Any = environments[0].gymnasium_environment.unwrapped
    physics = HostPhysics(bare, count)
    worlds = MujocoWorlds(environments[0], physics, count=count, device=DEVICE, seed=5)
    return worlds, physics, environments[1]


def test_every_mujoco_task_is_one_that_the_experiment_file_allows() -> None:
    assert set(_SIMULATED) == set(TASKS)


@pytest.mark.parametrize("environment_id", sorted(TASKS))
def test_each_step_is_gymnasiums(environment_id: str) -> None:
    """Before each step both have the same state. Observations, rewards and ends are then the same."""
    worlds, physics, environment = make(environment_id, 2, max_episode_steps=STEPS)
    ends = set()
    for step, (expected, found) in enumerate(
        steps_of_both(worlds, physics.arrays, environment, 2 * STEPS)
    ):
        frame, reward, terminated, truncated = expected
        np.testing.assert_allclose(found[0], frame, rtol=1e-4, atol=1e-4, err_msg=f"step {step}")
        assert found[1] == pytest.approx(reward, rel=1e-4, abs=1e-4)
        assert found[2:] == (terminated, truncated and not terminated)
        ends |= {"fall"} if terminated else {"limit"} if truncated else set()
    assert ends == {"limit"} if environment_id in ALWAYS_TIMED else ends


def test_an_episode_begins_in_one_of_gymnasiums_start_states_and_only_where_one_ended() -> None:
    worlds, _, environment = make("Hopper-v5", 3)
    starts = [environment.reset(seed) for seed in range(4)]
    fall = torch.tensor([[1.0, -1.0, 1.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    ended = 0
    for _ in range(200):
        observations, _, dones, extras = worlds.step(fall)
        for world in range(3):
            begins = any(np.allclose(observations[world], start, atol=1e-6) for start in starts)
            assert begins == bool(dones[world])
            if not dones[world]:
                assert torch.equal(observations[world], extras["final_observations"][world])
            assert (worlds.episode_length_buf[world] == 0) == bool(dones[world])
        ended += int(dones.sum())
    assert ended > 3


def test_a_state_continues_to_the_bit_in_other_worlds() -> None:
    random = torch.Generator().manual_seed(1)
    actions = [torch.randn((3, 3), generator=random) for _ in range(120)]
    worlds, *_ = make("Hopper-v5", 3)
    for action in actions[:60]:
        worlds.step(action)
    state = worlds.state()
    there, *_ = make("Hopper-v5", 3)
    there.set_state(state)
    ended = 0
    for action in actions[60:]:
        found = worlds.step(action)
        for one, other in zip(found[:3], there.step(action)[:3], strict=True):
            assert torch.equal(one, other)
        ended += int(found[2].sum())
    assert ended > 0


def test_a_world_that_is_not_finite_ends_alone_with_reward_0() -> None:
    """At the time limit too, where the other one is only out of time."""
    worlds, physics, _ = make("HalfCheetah-v5", 2, max_episode_steps=3)
    physics.broken = (0,)
    _, _, dones, extras = worlds.step(torch.zeros(2, 6))
    assert dones.tolist() == [True, False] and not extras["time_outs"].any()
    worlds, physics, _ = make("HalfCheetah-v5", 2, max_episode_steps=3)
    for _ in range(2):
        assert not worlds.step(torch.zeros(2, 6))[2].any()
    physics.broken = (0,)
    observations, rewards, dones, extras = worlds.step(torch.zeros(2, 6))
    assert dones.tolist() == [True, True] and extras["time_outs"].tolist() == [False, True]
    assert rewards[0] == 0.0 and observations.isfinite().all()
    physics.broken = ()
    observations, rewards, dones, _ = worlds.step(torch.zeros(2, 6))
    assert not dones.any() and observations.isfinite().all() and rewards.isfinite().all()
