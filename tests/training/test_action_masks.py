"""A run in an environment that says which actions are allowed, from its trial to its exported policy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import nitro_rl
from lambda_actor.environments import make_environment

MASKED = "tests.environments:make_masked"
FIRST = 3
"""The number of the first action."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("masked") / "run"
    result = nitro_rl.train(
        {
            "environment": {"id": MASKED},
            "algorithm": {"kind": "ppo", "epochs": 2, "minibatch_steps": 64},
            "detector": {"subset_size": 64, "lanczos_steps": 4},
            "scaler": {"kind": "nitro", "actors_min": 2, "actors_max": 3},
            "fleet": {"processes": 1},
            "actor": {"fragment_steps": 32, "timeout_s": 30, "provisioned": 0},
            "budget": {"usd": 1.0},
            "learner": {"device": "cpu", "threads": 1},
            "stop": {"max_rounds": 2},
            "evaluation": {"every_rounds": 1, "episodes": 2},
            "seed": 3,
        },
        out=directory,
        is_quiet=True,
    )
    # The environment raises at a forbidden action, in actors and in evaluations.
    assert (result.summary["rounds"], result.summary["actors_failed"]) == (2, 0)
    assert result.summary["evaluation_return_mean"] > 0.0
    return directory


def test_a_loaded_policy_takes_no_forbidden_action(run: Path) -> None:
    policy, environment = (
        nitro_rl.load_policy(run, seed=1),
        make_environment(MASKED).gymnasium_environment,
    )
    observation, info = environment.reset(seed=5)
    for _ in range(10):
        mask = info["action_mask"]
        chosen = {
            policy.predict(observation, action_mask=mask, deterministic=False) - FIRST
            for _ in range(40)
        }
        assert all(mask[one] for one in chosen)
        batch = policy.predict(np.stack([observation] * 2), action_mask=np.stack([mask] * 2))
        action = policy.predict(observation, action_mask=mask)
        assert batch.tolist() == [action] * 2
        observation, _, terminated, _, info = environment.step(action)
    assert terminated
