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
    normaliser = calls.normaliser
    found = calls.sample(policy(normaliser.for_policy()), steps=steps)
    if found is None:
        return False
    observations = normaliser.observations(found.observations)
    values, log_probs = _evaluated(model, observations, found.actions, found.action_masks)
    if not np.allclose(log_probs, found.log_probs, **_TOLERANCE):
        raise RunError(
            "the model's log-probabilities are other than its actors': the largest difference is "
            f"{np.abs(log_probs - found.log_probs).max():g}"
        )
    after = np.zeros_like(found.rewards)
    after[tuple(found.bootstraps.T)] = _values(
        model, normaliser.observations(found.bootstrap_observations)
    )
    for step in range(steps):
        rewards = normaliser.rewards(found.rewards[step], found.dones[step])
        if not calls.step(
            callback, found, step, rewards=rewards, rollout_buffer=buffer, n_rollout_steps=steps
        ):
            return False
        # As in stable-baselines3, a truncated episode's return continues with the value of its last observation.
        rewards = rewards + np.float32(model.gamma) * np.where(
            found.dones[step], after[step], np.float32(0)
        )
        masked = {} if found.action_masks is None else {"action_masks": found.action_masks[step]}
        buffer.add(
            observations[step],
            found.actions[step],
            rewards,
            model._last_episode_starts,  # type: ignore[arg-type]
            torch.from_numpy(values[step]),
            torch.from_numpy(log_probs[step]),
            **masked,
        )
        model._last_episode_starts = found.dones[step]
    buffer.compute_returns_and_advantage(torch.from_numpy(after[-1]), found.dones[-1])
    normaliser.observed(found.observations)
    callback.on_rollout_end()
    return True


def _evaluated(
    model: OnPolicyAlgorithm, observations: Any, actions: Any, masks: Any
) -> tuple[Any, Any]:
    """Returns values of observations and log-probabilities of actions, float32 ``[T, N]`` each."""
    shape, flat = actions.shape[:2], observations.reshape(-1, *observations.shape[2:])
    taken = torch.as_tensor(actions.reshape(len(flat), *actions.shape[2:]), device=model.device)
    found = []
    with torch.no_grad():
        for start in range(0, len(flat), _ROWS):
            rows = slice(start, start + _ROWS)
            masked = {} if masks is None else {"action_masks": masks.reshape(len(flat), -1)[rows]}
            values, log_probs, _ = model.policy.evaluate_actions(
                obs_as_tensor(flat[rows], model.device), taken[rows], **masked
            )
            found.append(torch.stack([values.flatten(), log_probs]).cpu().numpy())
    values, log_probs = np.concatenate(found, 1).reshape(2, *shape)
    return values, log_probs


def _values(model: OnPolicyAlgorithm, observations: Any) -> Any:
    found = [np.zeros(0, np.float32)]
    with torch.no_grad():
        for start in range(0, len(observations), _ROWS):
            seen = obs_as_tensor(observations[start : start + _ROWS], model.device)
            found.append(model.policy.predict_values(seen).flatten().cpu().numpy())
    return np.concatenate(found)
