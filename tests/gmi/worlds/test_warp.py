"""MuJoCo Warp's worlds against Gymnasium's environments, and training in them, on the GPU if there is one.

A machine's first run compiles.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lambda_actor.environments import make_environment
from runtime.gmi.worlds.mujoco import TASKS, MujocoWorlds
from tests.gmi.worlds.side_by_side import steps_of_both
from tests.helpers import overrides, rounds, train

pytest.importorskip("mujoco_warp", reason="needs the extra warp")

from runtime.gmi.worlds.warp import WarpPhysics, make_warp  # noqa: E402

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EXPERIMENT = """\
environment: {id: InvertedPendulum-v5, backend: warp}
network: {hidden_sizes: [16]}
algorithm: {kind: ppo, epochs: 1, minibatch_steps: 64}
scaler: {kind: fixed, actors_fixed: 6}
actor: {fragment_steps: 16, timeout_s: 300}
learner: {device: DEVICE, kind: gmi}
budget: {usd: 1.0}
stop: {max_rounds: 4}
evaluation: {every_rounds: 2, episodes: 1}
seed: 3
""".replace("DEVICE", DEVICE.type)
MADE = {"id": "InvertedPendulum-v5", "max_episode_steps": 30, "rescale_actions": True}
FORCES = {"Ant-v5": 13, "Humanoid-v5": 13, "HumanoidStandup-v5": 13}
"""Bodies whose forces end the observation; they are its least exact part."""


@pytest.mark.parametrize("environment_id", sorted(TASKS))
def test_each_step_is_gymnasiums(environment_id: str) -> None:
    """Friction uses cones and both solve contacts by Newton's method."""
    options = {"rescale_actions": True}
    environments = [make_environment(environment_id, "none", options) for _ in range(2)]
    for one in environments:
        model: Any = one.gymnasium_environment.unwrapped.model
        model.opt.cone, model.opt.solver = 1, 2
    physics = WarpPhysics(environments[0], 2, DEVICE)
    worlds = MujocoWorlds(environments[0], physics, count=2, device=DEVICE, seed=5)
    for expected, found in steps_of_both(worlds, physics.arrays, environments[1], 60):
        frame, reward, terminated, _ = expected
        assert found[1] == pytest.approx(reward, rel=1e-3, abs=2e-2)
        assert found[2] == terminated
        exact = len(frame) - 6 * FORCES.get(environment_id, 0)
        np.testing.assert_allclose(found[0][:exact], frame[:exact], rtol=1e-3, atol=2e-3)
        scale = np.abs(frame).max()
        np.testing.assert_allclose(found[0][exact:], frame[exact:], atol=2e-2 + 2e-3 * scale)


def test_a_state_continues_in_other_worlds() -> None:
    first, second = (make_warp(MADE, 3, DEVICE, seed) for seed in (1, 2))
    for step in range(60):
        if step == 25:
            second.set_state(first.state())
        action = torch.full((3, 1), 0.1 * (step % 3), device=DEVICE)
        one, other = first.step(action), second.step(action)
        if step >= 25:
            torch.testing.assert_close(
                one[0], other[0], atol=0.0 if DEVICE.type == "cpu" else 1e-3, rtol=0.0
            )


def test_it_trains_is_resumed_and_is_evaluated_by_gymnasium(tmp_path: Path) -> None:
    (file := tmp_path / "small.yaml").write_text(EXPERIMENT)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    finished = train(file, whole)
    assert finished.returncode == 0, finished.stderr + finished.stdout
    assert rounds(whole)[-1]["evaluation_return_mean"] is not None
    assert train(file, parts, *overrides(stop__max_rounds=2)).returncode == 0
    assert train(file, parts, "--resume").returncode == 0
    assert len(rounds(parts)) == 4
    if DEVICE.type == "cpu":
        policies = [(out / "policy.safetensors").read_bytes() for out in (whole, parts)]
        assert policies[0] == policies[1]
