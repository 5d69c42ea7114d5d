"""Collects steps of SAC and DQN into the replay buffer: train_freq from each of n_envs actors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import RolloutReturn, TrainFrequencyUnit
from stable_baselines3.dqn import DQN

from nitro_rl import RunError
from nitro_rl.integrations.sb3.calls import ALLOWED, Calls
from nitro_rl.integrations.sb3.policies import epsilon_greedy, squashed_gaussian


def policies(model: OffPolicyAlgorithm) -> Callable[..., Any]:
    """Returns a function that makes the model's policy for actors.

    Raises:
        RunError: Actors cannot play for this model.
    """
    for is_other, refusal in (
        (
            model.train_freq.unit is not TrainFrequencyUnit.STEP,  # type: ignore[union-attr]
            "train_freq is in episodes; actors play a number of steps",
        ),
        (model.action_noise is not None, "actors cannot add action_noise"),
        (model.use_sde, "actors cannot act with use_sde: its noise lasts for several steps"),
        (
            type(model.replay_buffer) is not ReplayBuffer or model.optimize_memory_usage,
            "the replay buffer relies on the order of steps, which come from actors in fragments; allowed: "
            "ReplayBuffer, without n_steps and optimize_memory_usage",
        ),
    ):
        if is_other:
            raise RunError(refusal)
    if isinstance(model, DQN):
        return epsilon_greedy(model)
    if hasattr(getattr(model.policy, "actor", None), "get_action_dist_params"):
        return squashed_gaussian(model)
    raise RunError(f"actors cannot act as {type(model).__name__} does; allowed: {ALLOWED}")


def collect(
    model: OffPolicyAlgorithm,
    calls: Calls,
    policy: Callable[..., Any],
    callback: BaseCallback,
    buffer: ReplayBuffer,
    *,
    steps: int,
    learning_starts: int,
    log_interval: int | None,
) -> RolloutReturn:
    """Collects like `OffPolicyAlgorithm.collect_rollouts`: first random actions, then with a fixed policy."""
    model.policy.set_training_mode(False)
    callback.on_rollout_start()
    taken = 0
    episodes = 0
    while taken < steps:
        count = steps - taken
        warming_steps = math.ceil((learning_starts - model.num_timesteps) / model.n_envs)
        if warming_steps > 0:
            count = min(count, warming_steps)
        fragments = calls.sample(
            policy(calls.normalizer.for_policy(), is_random=warming_steps > 0), steps=count
        )
        if fragments is None:
            return RolloutReturn(taken * model.n_envs, episodes, continue_training=False)
        actions = fragments.actions
        if isinstance(model.action_space, spaces.Box):
            actions = model.policy.scale_action(actions)
        for step in range(count):
            taken += 1
            calls.normalizer.rewards(fragments.rewards[step], fragments.dones[step])
            if not calls.step(
                callback, fragments, step, rewards=fragments.rewards[step], replay_buffer=buffer
            ):
                return RolloutReturn(taken * model.n_envs, episodes, continue_training=False)
            buffer.add(
                fragments.observations[step],
                fragments.next_observations[step],
                actions[step],
                fragments.rewards[step],
                fragments.dones[step],
                fragments.infos[step],
            )
            model._update_current_progress_remaining(model.num_timesteps, model._total_timesteps)
            model._on_step()
            for _ in range(fragments.dones[step].sum()):
                episodes += 1
                model._episode_num += 1
                if log_interval is not None and model._episode_num % log_interval == 0:
                    model.dump_logs()
        calls.normalizer.observed(fragments.observations)
    callback.on_rollout_end()
    return RolloutReturn(taken * model.n_envs, episodes, continue_training=True)
