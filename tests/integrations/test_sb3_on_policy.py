"""PPO of stable-baselines3 with the actors of a pool, against what it collects itself of the same transitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("stable_baselines3", reason="needs the extra sb3")

from stable_baselines3 import PPO  # noqa: E402
from stable_baselines3.common.callbacks import BaseCallback  # noqa: E402
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm  # noqa: E402
from stable_baselines3.common.running_mean_std import RunningMeanStd  # noqa: E402
from stable_baselines3.common.utils import set_random_seed  # noqa: E402
from stable_baselines3.common.vec_env import VecNormalize  # noqa: E402
from torch import nn  # noqa: E402

import nitro_rl  # noqa: E402
from nitro_rl import ActorPool, BudgetError, RunError, Trajectory  # noqa: E402
from nitro_rl.integrations import sb3  # noqa: E402
from tests.integrations.conftest import ACTORS, STEPS  # noqa: E402
from tests.integrations.replayed import (  # noqa: E402
    Opens,
    Replayed,
    environments,
    joined,
    recorded,
)  # noqa: E402

BUFFER = (
    "observations",
    "actions",
    "rewards",
    "returns",
    "values",
    "log_probs",
    "advantages",
    "episode_starts",
)


def ppo(env: Any, **settings: Any) -> PPO:
    return PPO(
        "MlpPolicy", env, n_steps=STEPS, batch_size=30, n_epochs=2, seed=1, device="cpu", **settings
    )


def attached(pool: ActorPool, **settings: Any) -> PPO:
    return sb3.attach(ppo(sb3.PoolEnv(pool, ACTORS), **settings), pool)


def filled(model: PPO) -> dict[str, np.ndarray]:
    return {name: getattr(model.rollout_buffer, name).copy() for name in BUFFER}


def by_sb3(
    model: PPO, env: Any, trajectories: list[Trajectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Has stable-baselines3 itself collect these trajectories' steps."""
    policy, step = model.policy, iter(range(STEPS))

    def acts(observations: torch.Tensor) -> Any:
        index = next(step)
        actions = torch.as_tensor(np.stack([one.actions[index] for one in trajectories]))
        values, log_probs, _ = policy.evaluate_actions(observations, actions)
        return actions, values, log_probs

    monkeypatch.setattr(policy, "forward", acts)
    _, callback = model._setup_learn(ACTORS * STEPS)
    model._last_obs = (
        env.normalize_obs(np.stack([one.observations[0] for one in trajectories]))
        if isinstance(env, VecNormalize)
        else np.stack([one.observations[0] for one in trajectories])
    )
    assert OnPolicyAlgorithm.collect_rollouts(model, env, callback, model.rollout_buffer, STEPS)


@pytest.mark.parametrize(
    ("environment_id", "activation"),
    [("CartPole-v1", nn.Tanh), ("Hopper-v5", nn.ReLU), ("Hopper-v5", nn.ELU)],
)
def test_the_buffer_is_as_its_own_of_the_same_transitions(
    opens: Opens, monkeypatch: pytest.MonkeyPatch, environment_id: str, activation: type[nn.Module]
) -> None:
    pool = opens(environment_id)
    calls = recorded(pool, monkeypatch)
    settings = {
        "policy_kwargs": {"activation_fn": activation, "net_arch": {"pi": [16, 8], "vf": [16]}}
    }
    model = attached(pool, **settings)
    monkeypatch.setattr(model, "train", lambda: None)
    model.learn(ACTORS * STEPS)
    (trajectories,) = calls
    assert all(joined(calls, name).any() for name in ("truncated", "terminated"))
    other = ppo(environments(environment_id), **settings)
    by_sb3(other, Replayed(environments(environment_id), [trajectories]), trajectories, monkeypatch)
    found, expected = filled(model), filled(other)
    for name in BUFFER:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(found["log_probs"], joined(calls, "log_probs"), atol=1e-5)
    np.testing.assert_array_equal(model._last_episode_starts, other._last_episode_starts)
    np.testing.assert_allclose(model._last_obs, other._last_obs, rtol=1e-6)


def test_rewards_are_normalised_as_its_own_and_observations_by_what_was_known_before(
    opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = opens("Hopper-v5")
    calls = recorded(pool, monkeypatch)
    env = VecNormalize(sb3.PoolEnv(pool, ACTORS))
    model = sb3.attach(ppo(env), pool)
    monkeypatch.setattr(model, "train", lambda: None)
    model.learn(2 * ACTORS * STEPS)
    seen = joined(calls, "observations").reshape(-1, 11)
    assert env.obs_rms.count == pytest.approx(len(seen), abs=1e-3), (
        "what a reset showed is not among it"
    )
    np.testing.assert_allclose(env.obs_rms.mean, seen.mean(0), atol=1e-5)
    np.testing.assert_allclose(env.obs_rms.var, seen.var(0), rtol=1e-3, atol=2e-6)

    # Its own of the same steps, but that statistics of observations stand still for a call, as the actors' do.
    other, replayed = (
        ppo(VecNormalize(environments("Hopper-v5"))),
        VecNormalize(environments("Hopper-v5")),
    )
    known = RunningMeanStd(shape=(11,))
    monkeypatch.setattr(replayed.obs_rms, "update", lambda _: None)
    for call in calls:
        replayed.venv = Replayed(environments("Hopper-v5"), [call])
        replayed.obs_rms.mean, replayed.obs_rms.var = known.mean, known.var
        by_sb3(other, replayed, call, monkeypatch)
        known.update(np.concatenate([one.observations for one in call]))
    found, expected = filled(model), filled(other)
    for name in set(BUFFER) - {"episode_starts"}:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-3, atol=1e-4, err_msg=name)


class Watching(BaseCallback):
    """Remembers its calls, and ends learning after a number of steps."""

    def __init__(self, ends_at: float = np.inf) -> None:
        super().__init__()
        self.events: list[str] = []
        self.steps: list[int] = []
        self.ends_at = ends_at

    def _on_rollout_start(self) -> None:
        self.events.append("start")

    def _on_step(self) -> bool:
        self.steps.append(self.num_timesteps)
        assert {"infos", "dones", "rewards", "new_obs", "actions"} <= self.locals.keys()
        return self.num_timesteps < self.ends_at

    def _on_rollout_end(self) -> None:
        self.events.append("end")

    def _on_training_end(self) -> None:
        self.events.append("training end")


def test_learn_goes_on_as_usual(opens: Opens, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = opens()
    calls = recorded(pool, monkeypatch)
    model, watching = attached(pool), Watching()
    model.learn(2 * ACTORS * STEPS, callback=watching)
    assert watching.events == ["start", "end", "start", "end", "training end"]
    assert watching.steps == list(range(ACTORS, 2 * ACTORS * STEPS + 1, ACTORS))
    ended = [
        pair
        for call in calls
        for one in call
        for pair in zip(one.episode_returns, one.episode_lengths, strict=True)
    ]
    assert sorted((one["r"], one["l"]) for one in model.ep_info_buffer) == sorted(ended) and ended
    ending = Watching(ends_at=2 * ACTORS * STEPS + ACTORS * 7)
    model.learn(1000, callback=ending, reset_num_timesteps=False)
    assert model.num_timesteps == ending.ends_at
    assert ending.events == ["start", "training end"]


def same(one: Any, other: Any) -> bool:
    states = [model.policy.state_dict() for model in (one, other)]
    return all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def test_a_saved_model_goes_on_bit_for_bit(opens: Opens, tmp_path: Path) -> None:
    pool = opens()
    model = attached(pool).learn(2 * ACTORS * STEPS)
    model.save(tmp_path / "model")
    state = pool.state()
    set_random_seed(7)
    model.learn(2 * ACTORS * STEPS, reset_num_timesteps=False)

    again = opens(out="again")
    again.load_state(state)
    loaded = PPO.load(tmp_path / "model", env=sb3.PoolEnv(again, ACTORS), device="cpu")
    sb3.attach(loaded, again)
    set_random_seed(7)
    loaded.learn(2 * ACTORS * STEPS, reset_num_timesteps=False)
    assert same(model, loaded)


def test_a_budget_that_ends_keeps_what_was_learned(
    opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, watching = opens(), Watching()
    recorded(pool, monkeypatch, most=2)
    model = attached(pool)
    with pytest.warns(
        UserWarning, match=r"learning ends after 240 steps: the budget does not hold another call"
    ):
        model.learn(10**6, callback=watching)
    assert model.num_timesteps == 2 * ACTORS * STEPS
    assert watching.events == ["start", "end", "start", "end", "start", "training end"]
    other = attached(opens(out="other")).learn(2 * ACTORS * STEPS)
    with pytest.raises(BudgetError):
        model.learn(100)
    assert same(model, other), "it learned from all that was collected"


def test_a_policy_that_actors_run_otherwise_is_noticed(
    opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = nitro_rl.numpy_policy(
        [(np.ones((8, 4)), np.zeros(8)), (np.ones((2, 8)), np.array([0.0, 1.0]))]
    )
    monkeypatch.setattr(
        "nitro_rl.integrations.sb3.attaching.actor_critic", lambda _: lambda _: other
    )
    model = attached(opens())
    with pytest.raises(RunError, match="log-probabilities are other than its actors'"):
        model.learn(100)


def test_a_model_that_was_changed_since_is_refused_and_one_without_numbers_costs_nothing(
    opens: Opens,
) -> None:
    pool = opens()
    model = attached(pool)
    model.set_env(sb3.PoolEnv(pool, ACTORS))
    with pytest.raises(RunError, match="were replaced after attach; allowed: attach it again"):
        model.learn(100)
    sb3.attach(model, pool)
    torch.nn.init.constant_(model.policy.action_net.weight, float("nan"))
    with pytest.raises(RunError, match=r"layer\.2\.weight is not finite"):
        model.learn(100)
    assert pool.spent_usd == 0.0
    torch.nn.init.constant_(model.policy.action_net.weight, 0.0)
    assert model.learn(100).num_timesteps == ACTORS * STEPS
