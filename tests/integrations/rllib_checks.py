"""Checks of nitro_rl.integrations.rllib, which run in RLlib's interpreter: see test_rllib.py.

    python -m tests.integrations.rllib_checks POOL_PYTHON DIRECTORY [CHECK ...]

Prints how checks failed; their number is the exit code.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import sys
import tempfile
import traceback
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import ray
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.appo.torch.default_appo_torch_rl_module import DefaultAPPOTorchRLModule
from ray.rllib.algorithms.ppo import PPO, PPOConfig
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.connectors.env_to_module import MeanStdFilter
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from lambda_actor.policy import Policy
from nitro_rl.integrations.rllib import ModulePolicy, ServerlessEnvRunner
from runtime.errors import BudgetError, RunError

POOL_PYTHON, DIRECTORY = sys.argv[1], Path(sys.argv[2])
ACTORS, STEPS = 3, 40
SMALL: dict[str, Any] = {"fcnet_hiddens": [16, 12]}
OBSERVED = Box(-1, 1, (5,), np.float64)
CHECKS: dict[str, Callable[[], None]] = {}
numbers = iter(range(1000))


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS[function.__name__] = function
    return function


def refuses(told: str, function: Callable[[], Any]) -> None:
    try:
        function()
    except RunError as error:
        assert told in str(error), error
    else:
        raise AssertionError(f"it is not refused: {told}")


def near(one: Any, other: Any, within: float = 1e-5) -> None:
    np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=0, atol=within)


def module_of(
    action_space: gymnasium.Space, kind: Any = DefaultPPOTorchRLModule, **model: Any
) -> Any:
    module = RLModuleSpec(
        module_class=kind,
        observation_space=OBSERVED,
        action_space=action_space,
        inference_only=True,
        model_config=DefaultModelConfig(**{**SMALL, **model}),
    ).build()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.4)
    return module


def runner_class(
    environment_id: str, budget_usd: float = 1.0, **more: Any
) -> type[ServerlessEnvRunner]:
    class Runner(ServerlessEnvRunner):
        actors = ACTORS
        pool = {
            "python": POOL_PYTHON,
            "budget_usd": budget_usd,
            "out": DIRECTORY / f"pool{next(numbers)}",
            "experiment": {
                "environment": {"id": environment_id},
                "seed": 3,
                "fleet": {"processes": 1},
                "scaler": {"kind": "fixed", "actors_fixed": 8},
                "actor": {"fragment_steps": 128, "timeout_s": 30},
                **more,
            },
        }

    return Runner


def configured(environment_id: str, kind: Any = PPOConfig, **runners: Any) -> Any:
    is_continuous = environment_id.startswith("Pendulum")
    return (
        kind()
        .environment(environment_id)
        .env_runners(num_env_runners=0, rollout_fragment_length=ACTORS * STEPS, **runners)
        .learners(num_learners=0)
        .training(
            train_batch_size_per_learner=ACTORS * STEPS,
            **({"minibatch_size": 60} if kind is PPOConfig else {}),
        )
        .rl_module(model_config=DefaultModelConfig(free_log_std=is_continuous, **SMALL))
        .debugging(seed=1, log_level="ERROR")
    )


class Opened:
    """A runner, which is stopped at the end."""

    def __init__(self, environment_id: str, config: Any = None, **more: Any) -> None:
        self._runner = runner_class(environment_id, **more)(
            config=config or configured(environment_id), worker_index=0
        )

    def __enter__(self) -> ServerlessEnvRunner:
        return self._runner

    def __exit__(self, *_: object) -> None:
        self._runner.stop()


# The policy


@check
def policies_equal_the_module() -> None:
    """In logits, or mean and log_std, and what actors run in what they sample."""
    observations = np.random.default_rng(0).normal(size=(50, 5)).astype(np.float32)
    low, high = np.array([-2, 0, 1], np.float32), np.array([2, 5, 1.5], np.float32)
    free: dict[str, Any] = {"free_log_std": True}
    apart = {"vf_share_layers": False, "fcnet_activation": "relu"}
    headed = {"head_fcnet_hiddens": [7], "head_fcnet_activation": "tanh"}
    for space, model, begin, half in (
        (Discrete(4), {}, 0.0, 0.0),
        (Discrete(4), apart, 0.0, 0.0),
        (MultiDiscrete([2, 3]), {"fcnet_hiddens": [8]}, 0.0, 0.0),
        (Box(-1, 1, (3,)), free | headed, -1.0, 1.0),
        (Box(low, high), free | apart, low, (high - low) / 2),
        (Box(low, high), {**free, "log_std_clip_param": 0.1}, low, (high - low) / 2),
        (Box(-np.inf, np.inf, (3,)), free, -1.0, 1.0),
    ):
        for kind in (DefaultPPOTorchRLModule, DefaultAPPOTorchRLModule):
            module = module_of(space, kind, **model)
            policy = ModulePolicy.of(module, space, is_unsquashed=True)
            batch = {"obs": torch.from_numpy(observations)}
            expected = module.forward_inference(batch)["action_dist_inputs"].detach().numpy()
            near(policy.outputs(observations), expected)
            run = Policy.from_bytes(policy.message())
            outputs = np.array([run.outputs(one) for one in observations])
            if isinstance(space, Box):
                mean, log_std = np.split(expected, 2, axis=1)
                expected = begin + (mean + 1) * half
                near(run._distribution._std, np.exp(log_std[0]) * half)
            near(outputs, expected)


@check
def other_modules_are_refused() -> None:
    box = Box(-1, 1, (3,))

    class Custom(DefaultPPOTorchRLModule):
        pass

    for told, space, model, kind in (
        ("free_log_std=True", box, {}, DefaultPPOTorchRLModule),
        ("SiLU", Discrete(2), {"fcnet_activation": "silu"}, DefaultPPOTorchRLModule),
        ("LayerNorm", Discrete(2), {"fcnet_use_layernorm": True}, DefaultPPOTorchRLModule),
        ("without LSTM", Discrete(2), {"use_lstm": True}, DefaultPPOTorchRLModule),
        ("of the head", Discrete(2), {"head_fcnet_hiddens": [4]}, DefaultPPOTorchRLModule),
        ("Custom", Discrete(2), {}, Custom),
    ):
        module = module_of(space, kind, **model)
        refuses(told, lambda m=module, s=space: ModulePolicy.of(m, s, is_unsquashed=True))


@check
def other_configurations_are_refused() -> None:
    """Before a pool is opened."""

    class Watching(RLlibCallback):
        def on_episode_step(self, **_: Any) -> None:
            pass

    def normalising(env: Any, spaces: Any, device: Any) -> Any:
        return MeanStdFilter()

    cart_pole, pendulum = (configured(name) for name in ("CartPole-v1", "Pendulum-v1"))
    for told, config in (
        ("batch_mode", cart_pole.copy().env_runners(batch_mode="complete_episodes")),
        ("num_env_runners = 2", cart_pole.copy().env_runners(num_env_runners=2)),
        ("connector", cart_pole.copy().env_runners(env_to_module_connector=normalising)),
        ("callbacks", cart_pole.copy().callbacks(Watching)),
        ("callbacks", cart_pole.copy().callbacks(on_episode_end=lambda **_: None)),
        (
            "clip_actions = False",
            pendulum.copy().environment(normalize_actions=False, clip_actions=False),
        ),
        ("free_log_std", pendulum.copy().rl_module(model_config=DefaultModelConfig())),
    ):
        refuses(told, lambda c=config: runner_class("CartPole-v1")(config=c, worker_index=0))
    assert not servers()


@check
def another_environment_in_the_pool_is_refused_before_anything_is_spent() -> None:
    with Opened("Acrobot-v1", configured("CartPole-v1")) as runner:
        refuses("the policy cannot act in this environment", runner.sample)
        assert runner._remote.spent_usd == 0.0
    rescaled = {
        "id": "Pendulum-v1",
        "wrappers": [{"gymnasium.wrappers:RescaleAction": {"min_action": -1.0, "max_action": 1.0}}],
    }
    runner = runner_class("Pendulum-v1", environment=rescaled)
    refuses("must be the same", lambda: runner(config=configured("Pendulum-v1"), worker_index=0))
    assert not servers()


# What it samples


def whole(samples: list[list[Any]]) -> list[list[Any]]:
    """Chunks of each episode in their order."""
    chunks = defaultdict(list)
    for episodes in samples:
        for episode in episodes:
            chunks[episode.id_].append(episode)
    return list(chunks.values())


def replayed(environment_id: str, chunks: list[Any]) -> None:
    """Plays an episode's actions from its first observation, as RLlib's connectors give them to the environment."""
    environment = gymnasium.make(environment_id)
    environment.reset(seed=0)
    inner: Any = environment.unwrapped
    first = chunks[0].get_observations(0)
    inner.state = (
        np.array([math.atan2(first[1], first[0]), first[2]])
        if environment_id.startswith("Pendulum")
        else np.array(first, np.float64)
    )
    step = 0
    for chunk in chunks:
        assert chunk.t_started == step
        actions, rewards = chunk.get_actions(), chunk.get_rewards()
        for index in range(len(chunk)):
            action = actions[index]
            if environment_id.startswith("Pendulum"):
                action = np.clip(2 * action, -2, 2)
            observation, reward, terminated, truncated, _ = environment.step(action)
            step += 1
            is_last = index == len(chunk) - 1
            near(rewards[index], reward, 1e-3)
            assert bool(terminated) == (is_last and chunk.is_terminated), step
            assert bool(truncated) == (is_last and chunk.is_truncated), step
            # After a terminal step nothing is learned: the one before it is there again.
            near(
                chunk.get_observations(index + 1),
                chunk.get_observations(index) if terminated else observation,
                1e-3,
            )
    environment.close()


def samples_equal(environment_id: str, sampled: int) -> None:
    with Opened(environment_id) as runner:
        runner.set_state({"rl_module": runner.module.get_state(), "weights_seq_no": 7})
        samples = [runner.sample(num_timesteps=ACTORS * STEPS) for _ in range(sampled)]
        samples += [runner.sample(), runner.sample(num_timesteps=10)]
        steps = [sum(map(len, one)) for one in samples]
        assert steps == [ACTORS * STEPS] * (sampled + 1) + [12], "as many for each"
        distribution = runner.module.get_exploration_action_dist_cls()
        for episode in (episode for one in samples for episode in one):
            episode.validate()
            observations = episode.get_observations(slice(0, len(episode)))
            assert observations.dtype == runner.env.single_observation_space.dtype
            batch = {"obs": torch.from_numpy(observations.astype(np.float32))}
            expected = runner.module.forward_exploration(batch)["action_dist_inputs"].detach()
            near(episode.get_extra_model_outputs("action_dist_inputs"), expected)
            near(
                episode.get_extra_model_outputs("action_logp"),
                distribution.from_logits(expected).logp(torch.from_numpy(episode.get_actions())),
            )
            assert set(episode.get_extra_model_outputs("weights_seq_no")) == {7}
        episodes = whole(samples)
        ended = [one for one in episodes if one[-1].is_done]
        assert any(len(one) > 1 for one in ended), "some are cut and go on"
        for one in ended:
            replayed(environment_id, one)
            for before, after in itertools.pairwise(one):
                seen = after.get_actions(-1, neg_index_as_lookback=True)
                assert np.array_equal(seen, before.get_actions(-1))
        metrics = runner.get_metrics()
        returns = [sum(chunk.get_return() for chunk in one) for one in ended]
        near(float(metrics["episode_return_mean"]), np.mean(returns), 1e-2)
        assert int(metrics["num_episodes"]) == len(ended)
        assert int(metrics["num_env_steps_sampled"]) == sum(steps)
        assert float(metrics["pool_spent_usd"]) > 0


@check
def cart_poles_are_as_rllib_plays_them() -> None:
    samples_equal("CartPole-v1", 3)


@check
def pendulums_are_as_rllib_plays_them() -> None:
    """With actions that are unsquashed, and episodes that are cut off."""
    samples_equal("Pendulum-v1", 6)


@check
def evaluation_is_local() -> None:
    with Opened("CartPole-v1") as runner:
        runner.sample()
        spent_usd = runner._remote.spent_usd
        for arguments in ({"explore": False}, {"random_actions": True, "force_reset": True}):
            assert sum(map(len, runner.sample(num_timesteps=20, **arguments))) == 20
        assert len(runner.sample(num_episodes=1)) == 1
        assert runner._remote.spent_usd == spent_usd
        refuses("force_reset", lambda: runner.sample(num_timesteps=20, force_reset=True))


@check
def a_state_goes_on_bit_for_bit() -> None:
    with Opened("CartPole-v1") as runner, Opened("CartPole-v1") as other:
        runner.sample()
        other.set_state(runner.get_state())
        found, expected = other.sample(), runner.sample()
        for one, two in zip(found, expected, strict=True):
            assert np.array_equal(one.get_observations(), two.get_observations())
            assert np.array_equal(one.get_actions(), two.get_actions())
        assert "nitro_pool" not in runner.get_state(components=["env_to_module_connector"])


# Trainings


def servers() -> list[str]:
    """This process' servers that live, by their ids."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
            line = (status.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if int(fields[1]) == os.getpid() and fields[0] != "Z" and b"runtime.pool.server" in line:
            found.append(status.parent.name)
    return found


@check
def ppo_trains_within_the_budget() -> None:
    config = configured(
        "CartPole-v1", env_runner_cls=runner_class("CartPole-v1", 0.004)
    ).evaluation(evaluation_interval=1, evaluation_duration=1, evaluation_num_env_runners=1)
    algorithm = config.build_algo()
    assert len(servers()) == 1, "none for the evaluation"
    try:
        # Whose worst case is more than the budget, while no call has shown how short they are.
        algorithm.env_runner.actors = 8
        try:
            algorithm.train()
            raise AssertionError("the budget held it")
        except BudgetError as error:
            assert "nothing was started" in str(error)
        algorithm.env_runner.actors = ACTORS
        found = [algorithm.train() for _ in range(2)][-1]
        assert found["env_runners"]["num_env_steps_sampled_lifetime"] == 2 * ACTORS * STEPS
        assert np.isfinite(found["learners"]["default_policy"]["policy_loss"])
        assert found["evaluation"]["env_runners"]["episode_return_mean"] > 0
        with tempfile.TemporaryDirectory() as directory:
            algorithm.save_to_path(directory)
            algorithm.stop()
            assert not servers()
            restored = PPO.from_checkpoint(directory)
            assert restored.env_runner._weights_seq_no > 0
            restored.stop()
    finally:
        algorithm.stop()
    assert not servers()


@check
def appo_trains_while_actors_play() -> None:
    config = configured("CartPole-v1", APPOConfig, env_runner_cls=runner_class("CartPole-v1"))
    algorithm = config.reporting(
        min_time_s_per_iteration=0, min_sample_timesteps_per_iteration=3
    ).build_algo()
    try:
        versions = []
        taken = type(algorithm.env_runner)._episodes

        def noting(self: Any, trajectory: Any, policy: Any, version: int) -> Any:
            versions.append((trajectory.call, version, self._weights_seq_no))
            return taken(self, trajectory, policy, version)

        type(algorithm.env_runner)._episodes = noting
        for _ in range(5):
            result = algorithm.train()
        assert result["env_runners"]["num_env_steps_sampled_lifetime"] >= 5 * ACTORS * STEPS
        assert algorithm.env_runner._ahead is not None
        calls = sorted({call for call, _, _ in versions})
        assert calls == list(range(1, len(calls) + 1)), "each once"
        assert all(version <= newest for _, version, newest in versions)
        assert any(version < newest for _, version, newest in versions), (
            "they played while the learner learned"
        )
        state = algorithm.env_runner.get_state()
        held = algorithm.env_runner._held
        assert "nitro_pool" in state and held
        assert sum(map(len, algorithm.env_runner.sample())) == sum(map(len, held)) == ACTORS * STEPS
    finally:
        algorithm.stop()
    assert not servers()


@check
def the_guides_example_runs() -> None:
    code = Path("docs/guides/rllib.md").read_text().partition("```python\n")[2].partition("```")[0]
    for written, here in (
        (".venv/bin/python", POOL_PYTHON),
        ("runs/rllib", str(DIRECTORY / "example")),
        ("/tmp/rllib-hopper", str(DIRECTORY / "saved")),
        ("range(25)", "range(1)"),
        ("num_epochs=10", "num_epochs=1"),
    ):
        assert written in code, written
        code = code.replace(written, here)
    exec(compile(code, "rllib.md", "exec"), {"__name__": "example"})
    assert (DIRECTORY / "saved" / "rllib_checkpoint.json").exists() and not servers()
    assert len((DIRECTORY / "example" / "rounds.jsonl").read_text().splitlines()) == 1


def main() -> int:
    logging.disable(logging.WARNING)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=100 * 2**20,
        logging_level=logging.ERROR,
    )
    failed = 0
    for name in sys.argv[3:] or CHECKS:
        try:
            CHECKS[name]()
        except Exception:
            failed += 1
            print(name, traceback.format_exc())
    ray.shutdown()
    return failed


if __name__ == "__main__":
    sys.exit(main())
