"""Collects PPO's rollouts into the rollout buffer: n_steps from each of n_envs actors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.buffers import RolloutBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.utils import obs_as_tensor

from nitro_rl import RunError
from nitro_rl.integrations.sb3.calls import Calls

_ROWS = 1024
"""Observations per pass through the networks."""
_TOLERANCE: Any = {"rtol": 1e-3, "atol": 1e-2}
"""Maximum difference between log-probabilities of actors and model, both float32. More means another policy."""


def collect(
    model: OnPolicyAlgorithm,
    calls: Calls,
    policy: Callable[..., Any],
    callback: BaseCallback,
    buffer: RolloutBuffer,
    *,
    steps: int,
) -> bool:
    """Fills the rollout buffer as `OnPolicyAlgorithm.collect_rollouts` does. Returns whether learning continues."""
    model.policy.set_training_mode(False)
    buffer.reset()
    callback.on_rollout_start()
    normalizer = calls.normalizer
    fragments = calls.sample(policy(normalizer.for_policy()), steps=steps)
    if fragments is None:
        return False
    observations = normalizer.observations(fragments.observations)
    values, log_probs = _evaluated(model, observations, fragments.actions, fragments.action_masks)
    if not np.allclose(log_probs, fragments.log_probs, **_TOLERANCE):
        raise RunError(
            "the model's log-probabilities are other than its actors': the largest difference is "
            f"{np.abs(log_probs - fragments.log_probs).max():g}"
        )
    after = np.zeros_like(fragments.rewards)
    after[tuple(fragments.bootstraps.T)] = _values(
        model, normalizer.observations(fragments.bootstrap_observations)
    )
    for step in range(steps):
        rewards = normalizer.rewards(fragments.rewards[step], fragments.dones[step])
        if not calls.step(
            callback, fragments, step, rewards=rewards, rollout_buffer=buffer, n_rollout_steps=steps
        ):
            return False
        # As in stable-baselines3, a truncated episode's return continues with the value of its last observation.
        rewards = rewards + np.float32(model.gamma) * np.where(
            fragments.dones[step], after[step], np.float32(0)
        )
        masked = (
            {} if fragments.action_masks is None else {"action_masks": fragments.action_masks[step]}
        )
        buffer.add(
            observations[step],
            fragments.actions[step],
            rewards,
            model._last_episode_starts,  # type: ignore[arg-type]
            torch.from_numpy(values[step]),
            torch.from_numpy(log_probs[step]),
            **masked,
        )
        model._last_episode_starts = fragments.dones[step]
    buffer.compute_returns_and_advantage(torch.from_numpy(after[-1]), fragments.dones[-1])
    normalizer.observed(fragments.observations)
    callback.on_rollout_end()
    return True


def _evaluated(
    model: OnPolicyAlgorithm, observations: Any, actions: Any, masks: Any
) -> tuple[Any, Any]:
    """Returns values of observations and log-probabilities of actions, float32 ``[T, N]`` each."""
    shape = actions.shape[:2]
    flat = observations.reshape(-1, *observations.shape[2:])
    taken = torch.as_tensor(actions.reshape(len(flat), *actions.shape[2:]), device=model.device)
    outputs = []
    with torch.no_grad():
        for start in range(0, len(flat), _ROWS):
            rows = slice(start, start + _ROWS)
            masked = {} if masks is None else {"action_masks": masks.reshape(len(flat), -1)[rows]}
            values, log_probs, _ = model.policy.evaluate_actions(
                obs_as_tensor(flat[rows], model.device), taken[rows], **masked
            )
            outputs.append(torch.stack([values.flatten(), log_probs]).cpu().numpy())
    values, log_probs = np.concatenate(outputs, 1).reshape(2, *shape)
    return values, log_probs


def _values(model: OnPolicyAlgorithm, observations: Any) -> Any:
    values = [np.zeros(0, np.float32)]
    with torch.no_grad():
        for start in range(0, len(observations), _ROWS):
            seen = obs_as_tensor(observations[start : start + _ROWS], model.device)
            values.append(model.policy.predict_values(seen).flatten().cpu().numpy())
    return np.concatenate(values)
