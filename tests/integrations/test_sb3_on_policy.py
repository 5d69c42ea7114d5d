"""PPO of stable-baselines3 with the actors of a pool, against what it collects itself of the same transitions."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("stable_baselines3", reason="needs the extra sb3")

from stable_baselines3 import A2C, PPO  # noqa: E402
from stable_baselines3.common.callbacks import BaseCallback, EveryNTimesteps  # noqa: E402
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm  # noqa: E402
from stable_baselines3.common.running_mean_std import RunningMeanStd  # noqa: E402
from stable_baselines3.common.utils import set_random_seed  # noqa: E402
from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize  # noqa: E402
from torch import nn  # noqa: E402

import nitro_rl  # noqa: E402
from nitro_rl import ActorPool, BudgetError, RunError, Trajectory  # noqa: E402
from nitro_rl.integrations import sb3  # noqa: E402
from tests.integrations.replayed import (
    ACTORS,
    STEPS,
    Replayed,
    environments,
    recorded,
    tree,
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


Opens = Callable[..., ActorPool]


@pytest.fixture
def opens(tmp_path: Path) -> Iterator[Opens]:
    with ExitStack() as stack:
        yield (
            lambda environment_id="CartPole-v1", out="pool", budget_usd=1.0, **actor: (
                stack.enter_context(
                    ActorPool(
                        tree(environment_id, **actor),
                        budget_usd=budget_usd,
                        out=tmp_path / out,
                        is_quiet=True,
                    )
                )
            )
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
    ends = np.stack([one.truncated & ~one.terminated for one in trajectories])
    assert ends.any() and np.stack([one.terminated for one in trajectories]).any()
    other = ppo(environments(environment_id), **settings)
    by_sb3(other, Replayed(environments(environment_id), [trajectories]), trajectories, monkeypatch)
    found, expected = filled(model), filled(other)
    for name in BUFFER:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(
        found["log_probs"], np.stack([one.log_probs for one in trajectories], 1), atol=1e-5
    )
    assert model.num_timesteps == other.num_timesteps == ACTORS * STEPS
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
    seen = np.concatenate([np.concatenate([one.observations for one in call]) for call in calls])
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


class Heard(BaseCallback):
    """Remembers what it is told, and ends learning after a number of steps."""

    def __init__(self, ends_at: float = np.inf) -> None:
        super().__init__()
        self.heard: list[str] = []
        self.steps: list[int] = []
        self.ends_at = ends_at

    def _on_rollout_start(self) -> None:
        self.heard.append("start")

    def _on_step(self) -> bool:
        self.steps.append(self.num_timesteps)
        assert {"infos", "dones", "rewards", "new_obs", "actions"} <= self.locals.keys()
        return self.num_timesteps < self.ends_at

    def _on_rollout_end(self) -> None:
        self.heard.append("end")

    def _on_training_end(self) -> None:
        self.heard.append("training end")


def test_learn_goes_on_as_usual(opens: Opens, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = opens()
    calls = recorded(pool, monkeypatch)
    model, heard = attached(pool), Heard()
    often = EveryNTimesteps(60, Heard())
    before = {name: value.clone() for name, value in model.policy.state_dict().items()}
    model.learn(2 * ACTORS * STEPS, callback=[heard, often])
    assert heard.heard == ["start", "end", "start", "end", "training end"]
    assert heard.steps == list(range(ACTORS, 2 * ACTORS * STEPS + 1, ACTORS))
    assert often.callback.steps == [60, 120, 180, 240]
    assert any(
        not torch.equal(before[name], value) for name, value in model.policy.state_dict().items()
    )
    ended = [
        (float(r), int(n))
        for call in calls
        for one in call
        for r, n in zip(one.episode_returns, one.episode_lengths, strict=True)
    ]
    assert sorted((one["r"], one["l"]) for one in model.ep_info_buffer) == sorted(ended) and ended
    assert {"train/approx_kl", "train/value_loss"} <= model.logger.name_to_value.keys()
    first, second = calls
    assert all(
        np.array_equal(one.next_observations[-1], two.observations[0])
        for one, two in zip(first, second, strict=True)
        if not (one.terminated | one.truncated)[-1]
    )
    assert isinstance(model, PPO) and type(model).__name__ == "PPO"


def test_a_callback_can_end_it(opens: Opens) -> None:
    model, heard = attached(opens()), Heard(ends_at=ACTORS * 7)
    model.learn(1000, callback=heard)
    assert model.num_timesteps == ACTORS * 7
    assert heard.heard == ["start", "training end"]


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
    assert loaded.num_timesteps == 2 * ACTORS * STEPS
    sb3.attach(loaded, again)
    set_random_seed(7)
    loaded.learn(2 * ACTORS * STEPS, reset_num_timesteps=False)
    assert same(model, loaded)
    assert loaded.num_timesteps == model.num_timesteps == 4 * ACTORS * STEPS


class Spends(BaseCallback):
    """Promises the rest of the budget to a call of its own after the second rollout."""

    def __init__(self, pool: ActorPool) -> None:
        super().__init__()
        self.pool, self.rollouts = pool, 0

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self.rollouts += 1
        if self.rollouts == 2:
            self.pool.submit(
                nitro_rl.numpy_policy(
                    [(np.ones((8, 4)), np.zeros(8)), (np.ones((2, 8)), np.zeros(2))]
                ),
                actors=ACTORS,
            )


def test_a_budget_that_ends_keeps_what_was_learned(opens: Opens) -> None:
    # The worst case of three actors is $0.46.
    pool = opens(budget_usd=0.7, timeout_s=900, memory_mib=10_240)
    model, heard = attached(pool), Heard()
    with pytest.warns(
        UserWarning, match=r"learning ends after 240 steps: the budget does not hold another call"
    ):
        model.learn(10**6, callback=[heard, Spends(pool)])
    assert model.num_timesteps == 2 * ACTORS * STEPS
    assert heard.heard == ["start", "end", "start", "end", "start", "training end"]
    other_pool = opens(out="other")
    other = attached(other_pool).learn(2 * ACTORS * STEPS)
    assert same(model, other), "it learned from all that was collected"
    with pytest.raises(BudgetError):
        model.learn(100)
    assert same(model, other)


def test_what_actors_cannot_play_is_refused(opens: Opens) -> None:
    pool, other, hopper = opens(), opens(out="other"), opens("Hopper-v5", "hopper")
    envs = [sb3.PoolEnv(one, ACTORS) for one in (pool, other, hopper)]
    refused: dict[str, Callable[[], Any]] = {
        "environments are DummyVecEnv": lambda: ppo(environments("CartPole-v1")),
        "environments are PoolEnv; allowed: .* of the same pool": lambda: ppo(envs[1]),
        "know nothing of VecFrameStack": lambda: ppo(VecFrameStack(envs[0], 2)),
        "model = 'ppo.zip' is not allowed; allowed: a model of PPO": lambda: "ppo.zip",
    }
    for told, make in refused.items():
        with pytest.raises(RunError, match=told):
            sb3.attach(make(), pool)
    with pytest.raises(RunError, match="with use_sde: its noise lasts"):
        sb3.attach(ppo(envs[2], use_sde=True), hopper)
    with pytest.raises(
        RunError, match=f"actors = {pool.actors_max + 1} is not allowed; allowed: 1"
    ):
        sb3.PoolEnv(pool, pool.actors_max + 1)
    with pytest.raises(RunError, match="takes no steps"):
        envs[0].step(np.zeros(ACTORS))


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
    other = copy.copy(model)
    model.set_env(sb3.PoolEnv(pool, ACTORS))
    for one in (model, other):
        with pytest.raises(RunError, match="were replaced after attach; allowed: attach it again"):
            one.learn(100)
    model.policy = ppo(sb3.PoolEnv(pool, ACTORS)).policy
    sb3.attach(model, pool)
    torch.nn.init.constant_(model.policy.action_net.weight, float("nan"))
    with pytest.raises(RunError, match=r"layer\.2\.weight is not finite"):
        model.learn(100)
    assert pool.spent_usd == 0.0
    torch.nn.init.constant_(model.policy.action_net.weight, 0.0)
    assert model.learn(100).num_timesteps == ACTORS * STEPS


def test_a2c_collects_the_same_way(opens: Opens) -> None:
    pool = opens()
    model = A2C("MlpPolicy", sb3.PoolEnv(pool, ACTORS), n_steps=STEPS, device="cpu")
    assert sb3.attach(model, pool).learn(100).num_timesteps == ACTORS * STEPS
