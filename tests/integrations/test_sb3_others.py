"""Masks, pictures, and the guide's example."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("stable_baselines3", reason="needs the extra sb3")

from stable_baselines3 import DQN, PPO  # noqa: E402

from nitro_rl import ActorPool, RunError  # noqa: E402
from nitro_rl.integrations import sb3  # noqa: E402
from tests.helpers import PATIENCE_S, ROOT  # noqa: E402
from tests.integrations.replayed import recorded  # noqa: E402

MASKED = "tests.environments:make_masked"


def open_pool(
    out: Path, environment: dict[str, Any], actors: int = 2, steps: int = 24
) -> ActorPool:
    return ActorPool(
        {
            "environment": environment,
            "actor": {"fragment_steps": steps, "timeout_s": 30},
            "seed": 3,
            "scaler": {"kind": "fixed", "actors_fixed": actors},
            "fleet": {"processes": 1},
        },
        budget_usd=1.0,
        out=out,
        is_quiet=True,
    )


@pytest.mark.parametrize("counts", [[5], [3, 4]])
def test_masks_reach_maskable_ppo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counts: list[int]
) -> None:
    contrib = pytest.importorskip("sb3_contrib", reason="needs the extra sb3")
    with open_pool(tmp_path / "pool", {"id": MASKED, "kwargs": {"counts": counts}}) as pool:
        calls = recorded(pool, monkeypatch)
        model = contrib.MaskablePPO(
            "MlpPolicy",
            sb3.PoolEnv(pool, 2),
            n_steps=24,
            batch_size=12,
            n_epochs=1,
            seed=0,
            device="cpu",
        )
        monkeypatch.setattr(sb3.attach(model, pool), "train", lambda: None)
        model.learn(48)
        (call,) = calls
        buffer, masks = model.rollout_buffer, np.stack([one.action_masks for one in call], 1)
        np.testing.assert_array_equal(buffer.action_masks.astype(bool), masks)
        assert not masks.all()
        np.testing.assert_allclose(
            buffer.log_probs, np.stack([one.log_probs for one in call], 1), atol=1e-5
        )
        observations = torch.as_tensor(buffer.observations.reshape(48, -1))
        _, log_probs, _ = model.policy.evaluate_actions(
            observations,
            torch.as_tensor(buffer.actions.reshape(48, -1).squeeze()),
            masks.reshape(48, -1),
        )
        np.testing.assert_allclose(buffer.log_probs.ravel(), log_probs.detach(), atol=1e-5)
        with pytest.raises(RunError, match="use_masking = False"):
            model.learn(48, use_masking=False)
        for other in (
            PPO("MlpPolicy", sb3.PoolEnv(pool, 2)),
            *([DQN("MlpPolicy", sb3.PoolEnv(pool, 2))] if len(counts) == 1 else []),
        ):
            with pytest.raises(RunError, match="knows nothing of action masks"):
                sb3.attach(other, pool)


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    contrib = pytest.importorskip("sb3_contrib", reason="needs the extra sb3")
    with open_pool(tmp_path / "pool", {"id": "CartPole-v1"}) as pool:
        model = contrib.MaskablePPO("MlpPolicy", sb3.PoolEnv(pool, 2), device="cpu")
        with pytest.raises(RunError, match="needs an environment that gives action masks"):
            sb3.attach(model, pool)

        model = contrib.ARS("LinearPolicy", sb3.PoolEnv(pool, 2), device="cpu")
        with pytest.raises(RunError, match="ARS collects its steps in a way of its own"):
            sb3.attach(model, pool)


def test_pictures_go_through_its_own_convolutions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures = {"id": "tests.environments:Pictures", "kwargs": {"shape": [40, 44, 1]}}
    with open_pool(tmp_path / "pool", pictures, steps=12) as pool:
        calls = recorded(pool, monkeypatch)
        model = PPO(
            "CnnPolicy",
            sb3.PoolEnv(pool, 2),
            n_steps=12,
            batch_size=12,
            n_epochs=1,
            device="cpu",
            policy_kwargs={"features_extractor_kwargs": {"features_dim": 16}},
        )
        sb3.attach(model, pool).learn(48)
        assert [call[0].policy_version for call in calls] == [0, 1]
        assert model.rollout_buffer.observations.dtype == np.uint8


def test_the_example_of_the_guide_runs(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "guides" / "stable-baselines3.md").read_text()
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    short = code.replace("100_000", "2_048").replace("n_epochs=10", "n_epochs=1")
    assert short != code
    done = subprocess.run(
        [sys.executable, "-c", short],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"},
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    assert "2,048 steps" in done.stdout
    assert (tmp_path / "hopper.zip").exists() and (
        tmp_path / "runs" / "hopper" / "rounds.jsonl"
    ).exists()


def test_the_public_package_loads_it_only_when_asked() -> None:
    code = "import sys, nitro_rl, nitro_rl.integrations\nprint([n for n in sys.modules if 'baselines' in n])"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout
        == "[]\n"
    )
