"""Masks, pictures, what is refused, and the guide's example."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("stable_baselines3", reason="needs the extra sb3")
contrib = pytest.importorskip("sb3_contrib", reason="needs the extra sb3")

from stable_baselines3 import DQN, PPO, SAC, TD3  # noqa: E402
from stable_baselines3.common.noise import NormalActionNoise  # noqa: E402
from stable_baselines3.common.vec_env import VecFrameStack  # noqa: E402

from nitro_rl import RunError  # noqa: E402
from nitro_rl.integrations import sb3  # noqa: E402
from tests.helpers import PATIENCE_S, ROOT  # noqa: E402
from tests.integrations.replayed import Opens, environments, joined, recorded  # noqa: E402

MASKED = "tests.environments:make_masked"


@pytest.mark.parametrize("counts", [[5], [3, 4]])
def test_masks_reach_maskable_ppo(
    opens: Opens, monkeypatch: pytest.MonkeyPatch, counts: list[int]
) -> None:
    pool = opens(environment={"id": MASKED, "kwargs": {"counts": counts, "start": 0}})
    calls = recorded(pool, monkeypatch)
    model = contrib.MaskablePPO("MlpPolicy", sb3.PoolEnv(pool, 2), n_steps=24, device="cpu")
    monkeypatch.setattr(sb3.attach(model, pool), "train", lambda: None)
    model.learn(48)
    masks, buffer = joined(calls, "action_masks"), model.rollout_buffer
    np.testing.assert_array_equal(buffer.action_masks.astype(bool), masks)
    assert not masks.all()
    # `attach` compares these with what the model itself makes of them under the masks.
    np.testing.assert_allclose(buffer.log_probs, joined(calls, "log_probs"), atol=1e-5)
    with pytest.raises(RunError, match="use_masking = False"):
        model.learn(48, use_masking=False)
    for kind in (PPO, DQN)[: 3 - len(counts)]:
        with pytest.raises(RunError, match="knows nothing of action masks"):
            sb3.attach(kind("MlpPolicy", sb3.PoolEnv(pool, 2)), pool)


def test_what_actors_cannot_play_is_refused(opens: Opens) -> None:
    pool, hopper = opens(), opens("Hopper-v5", "hopper")
    env, its = sb3.PoolEnv(pool, 2), sb3.PoolEnv(hopper, 2)

    def sac(**settings: Any) -> SAC:
        return SAC("MlpPolicy", its, **{"train_freq": 20, "buffer_size": 100} | settings)

    by_order = "relies on the order of steps"
    refused: list[tuple[str, Any]] = [
        ("environments are DummyVecEnv", PPO("MlpPolicy", environments("CartPole-v1"))),
        ("environments are PoolEnv; allowed: .* of the same pool", PPO("MlpPolicy", its)),
        ("know nothing of VecFrameStack", PPO("MlpPolicy", VecFrameStack(env, 2))),
        ("model = 'ppo.zip' is not allowed; allowed: a model of PPO", "ppo.zip"),
        ("needs an environment that gives action masks", contrib.MaskablePPO("MlpPolicy", env)),
        ("ARS collects its steps in a way of its own", contrib.ARS("LinearPolicy", env)),
    ]
    refused_by_hopper: list[tuple[str, Any]] = [
        ("with use_sde: its noise lasts", PPO("MlpPolicy", its, use_sde=True)),
        ("with use_sde", sac(use_sde=True)),
        ("cannot add action_noise", sac(action_noise=NormalActionNoise(np.zeros(3), np.ones(3)))),
        (by_order, sac(n_steps=3)),
        (
            by_order,
            sac(
                optimize_memory_usage=True,
                replay_buffer_kwargs={"handle_timeout_termination": False},
            ),
        ),
        ("cannot act as TD3 does; allowed: PPO", TD3("MlpPolicy", its, train_freq=20)),
        (
            "train_freq is in episodes",
            SAC("MlpPolicy", sb3.PoolEnv(hopper, 1), train_freq=(1, "episode")),
        ),
    ]
    for of, models in ((pool, refused), (hopper, refused_by_hopper)):
        for words, model in models:
            with pytest.raises(RunError, match=words):
                sb3.attach(model, of)
    with pytest.raises(RunError, match="actors = 4 is not allowed; allowed: 1 to 3"):
        sb3.PoolEnv(pool, 4)
    # stable-baselines3 #2241: its models would give the user's own environment 0 to 4 instead of 3 to 7.
    with pytest.raises(RunError, match=r"begin at \[3\], which stable-baselines3 ignores"):
        sb3.PoolEnv(opens(out="masked", environment={"id": MASKED}), 2)
    with pytest.raises(RunError, match="takes no steps"):
        env.step(np.zeros(2))


def test_pictures_go_through_its_own_convolutions(
    opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = opens(
        environment={"id": "tests.environments:Pictures", "kwargs": {"shape": [40, 44, 1]}}
    )
    calls = recorded(pool, monkeypatch)
    extractor = {"features_extractor_kwargs": {"features_dim": 16}}
    settings: dict[str, Any] = {"n_steps": 12, "batch_size": 12, "n_epochs": 1, "device": "cpu"}
    model = PPO("CnnPolicy", sb3.PoolEnv(pool, 2), policy_kwargs=extractor, **settings)
    sb3.attach(model, pool).learn(48)
    assert [call[0].policy_version for call in calls] == [0, 1]
    assert model.rollout_buffer.observations.dtype == np.uint8


def test_the_example_of_the_guide_runs(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "guides" / "stable-baselines3.md").read_text()
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    short = code.replace("100_000", "2_048").replace("n_epochs=10", "n_epochs=1")
    done = subprocess.run(
        [sys.executable, "-c", short],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    assert "2,048 steps" in done.stdout
    assert (tmp_path / "hopper.zip").exists()
