"""SAC and DQN of stable-baselines3 with the actors of a pool, against what they collect themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("stable_baselines3", reason="needs the extra sb3")

from stable_baselines3 import DQN, SAC  # noqa: E402
from stable_baselines3.common.vec_env import VecNormalize  # noqa: E402

from nitro_rl import ActorPool  # noqa: E402
from nitro_rl.integrations import sb3  # noqa: E402
from tests.integrations.conftest import ACTORS  # noqa: E402
from tests.integrations.replayed import Opens, Replayed, environments, joined, recorded  # noqa: E402

STEPS, STARTS = 20, 50
"""Steps of a call, and those of all actors before learning: 17 of each are random."""
BUFFER = ("observations", "next_observations", "actions", "rewards", "dones", "timeouts")


def model_of(environment_id: str, env: Any = None, **settings: Any) -> Any:
    kind, net = (SAC, [16, 16]) if environment_id == "Hopper-v5" else (DQN, [16])
    chosen = {
        "train_freq": STEPS,
        "gradient_steps": -1,
        "learning_starts": STARTS,
        "buffer_size": 1000,
        "policy_kwargs": {"net_arch": net},
        "seed": 1,
        "device": "cpu",
        **settings,
    }
    return kind("MlpPolicy", environments(environment_id) if env is None else env, **chosen)


def attached(environment_id: str, pool: ActorPool, **settings: Any) -> Any:
    return sb3.attach(model_of(environment_id, sb3.PoolEnv(pool, ACTORS), **settings), pool)


def ratio(model: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What ``train`` will have been asked for: steps so far, and gradient steps."""
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(
        model,
        "train",
        lambda gradient_steps, batch_size: asked.append((model.num_timesteps, gradient_steps)),
    )
    return asked


@pytest.mark.parametrize("environment_id", ["Hopper-v5", "CartPole-v1"])
def test_the_buffer_and_all_that_is_counted_are_as_its_own(
    opens: Opens, monkeypatch: pytest.MonkeyPatch, environment_id: str
) -> None:
    pool = opens(environment_id)
    calls = recorded(pool, monkeypatch)
    settings = {} if environment_id == "Hopper-v5" else {"target_update_interval": 60, "tau": 0.5}
    model = attached(environment_id, pool, **settings)
    asked = ratio(model, monkeypatch)
    model.learn(100, log_interval=1)

    other = model_of(environment_id, Replayed(environments(environment_id), calls), **settings)
    taken = iter(range(1000))

    def acts(*_: Any) -> tuple[np.ndarray, np.ndarray]:
        step = next(taken)
        actions = joined(calls, "actions")[step]
        kept = other.policy.scale_action(actions) if environment_id == "Hopper-v5" else actions
        return actions, kept

    monkeypatch.setattr(other, "_sample_action", acts)
    expected = ratio(other, monkeypatch)
    env = other.get_env()
    env.reset = lambda: joined(calls, "observations")[0]
    other.learn(100, log_interval=1)

    assert asked == expected == [(60, 60), (120, 60)]
    for name in BUFFER:
        mine, its = getattr(model.replay_buffer, name), getattr(other.replay_buffer, name)
        np.testing.assert_allclose(mine, its, rtol=1e-6, atol=1e-6, err_msg=name)
    assert model.replay_buffer.timeouts.any()
    for name in ("num_timesteps", "_episode_num", "_current_progress_remaining"):
        assert getattr(model, name) == getattr(other, name), name
    if environment_id == "CartPole-v1":
        assert model.exploration_rate == other.exploration_rate and model._n_calls == other._n_calls
        for name, value in model.q_net_target.state_dict().items():
            torch.testing.assert_close(value, other.q_net_target.state_dict()[name])
    assert model._episode_num == len(model.ep_info_buffer) > 0


def test_actors_are_first_uniform_and_then_the_actor_with_observations_normalised_as_before_the_call(
    opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = opens("Hopper-v5")
    calls = recorded(pool, monkeypatch)
    env = VecNormalize(sb3.PoolEnv(pool, ACTORS))
    model = sb3.attach(model_of("Hopper-v5", env), pool)
    ratio(model, monkeypatch)
    model.learn(150)
    assert [len(call[0]) for call in calls] == [17, 3, 20, 20]
    drawn = np.sort(joined(calls[:1], "actions").ravel())
    assert np.abs(drawn - np.linspace(-1, 1, len(drawn))).max() < 0.2, "evenly between −1 and 1"
    assert np.allclose(joined(calls[:1], "log_probs"), -3 * np.log(2))
    for name in ("observations", "rewards"):
        kept = getattr(model.replay_buffer, name)[:60]
        np.testing.assert_array_equal(kept, joined(calls, name).astype(np.float32))
    for index in range(1, 4):
        before = joined(calls[:index], "observations").reshape(-1, 11)
        seen, actions = (
            joined(calls[index : index + 1], name).reshape(-1, size)
            for name, size in (("observations", 11), ("actions", 3))
        )
        normalised = np.clip((seen - before.mean(0)) / np.sqrt(before.var(0) + 1e-8), -10, 10)
        mean, log_std, _ = model.actor.get_action_dist_params(
            torch.as_tensor(normalised, dtype=torch.float32)
        )
        expected = model.actor.action_dist.proba_distribution(mean, log_std).log_prob(
            torch.as_tensor(actions)
        )
        found = joined(calls[index : index + 1], "log_probs").ravel()
        np.testing.assert_allclose(found, expected.detach(), atol=0.05)
    assert env.obs_rms.count == pytest.approx(180, abs=1e-3) == env.ret_rms.count


def test_what_is_learned_reaches_the_actors(opens: Opens, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = opens("CartPole-v1")
    calls = recorded(pool, monkeypatch)
    model = attached(
        "CartPole-v1",
        pool,
        learning_starts=0,
        learning_rate=0.01,
        exploration_initial_eps=0.0,
        exploration_final_eps=0.0,
    )
    networks = []
    train = model.train

    def trains(**named: Any) -> None:
        networks.append({name: value.clone() for name, value in model.q_net.state_dict().items()})
        train(**named)

    monkeypatch.setattr(model, "train", trains)
    model.learn(180)
    assert len(calls) == len(networks) == 3
    for call, network in zip(calls, networks, strict=True):
        model.q_net.load_state_dict(network)
        best = model.q_net(torch.as_tensor(joined([call], "observations").reshape(-1, 4))).argmax(
            -1
        )
        np.testing.assert_array_equal(joined([call], "actions").ravel(), best)


def test_exploration_is_that_of_the_call_s_beginning(
    opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = opens("CartPole-v1")
    calls = recorded(pool, monkeypatch)
    model = attached("CartPole-v1", pool, exploration_fraction=1.0, exploration_final_eps=0.0)
    ratio(model, monkeypatch)
    model.learn(120)
    # After 60 of 120 steps half of the actions are random: of two, the best has 3/4.
    assert set(np.unique(joined(calls[2:], "log_probs"))) == {
        np.float32(np.log(0.75)),
        np.float32(np.log(0.25)),
    }
    assert set(np.unique(joined(calls[:1], "log_probs"))) == {np.float32(np.log(0.5))}
