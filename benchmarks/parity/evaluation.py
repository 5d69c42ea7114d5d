"""Evaluates both sides' last policies with the same code on the same start states."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gymnasium
import numpy as np

from lambda_actor import wire
from lambda_actor.policy import Policy
from runtime.records.policy_file import load_policy

EPISODES, EVALUATION_SEED = 20, 1_000_000
"""Neither side trains on these start states: its environments get other seeds."""
_TOLERANCE = 1e-3


def our_policy(path: Path) -> Policy:
    """Returns the policy of a run's ``policy.safetensors``."""
    return Policy.from_bytes(load_policy(path))


def peer_policy(path: Path) -> Policy:
    """Returns a peer's policy from its script's arrays: layers, moments of observations, and probes.

    Raises:
        ValueError: It acts differently from the peer on the probes.
    """
    with np.load(path, allow_pickle=False) as file:
        arrays = dict(file)
    observations, outputs = arrays.pop("probe_observations"), arrays.pop("probe_actions")
    is_discrete = bool(arrays.pop("is_discrete", False))
    policy = Policy(
        arrays
        | {
            "policy_version": np.int64(0),
            "network": wire.text_field("mlp"),
            "distribution": wire.text_field("categorical" if is_discrete else "gaussian"),
            "log_std": np.zeros(0 if is_discrete else outputs.shape[1], np.float32),
        }
    )
    difference = np.abs(
        [policy.outputs(observation) for observation in observations] - outputs
    ).max()
    if not difference < _TOLERANCE:
        raise ValueError(
            f"{path}: the exported policy's outputs differ from the library's by {difference:.2g}"
        )
    return policy


def returns_of(policy: Policy, environment_id: str) -> list[float]:
    """Returns unnormalized, undiscounted returns of whole episodes with the policy's best actions."""
    environment = gymnasium.make(environment_id)
    if isinstance(environment.action_space, gymnasium.spaces.Box):
        low, high = environment.action_space.low, environment.action_space.high

        def act(observation: np.ndarray) -> object:
            return np.clip(policy.best_action(observation), low, high)
    else:

        def act(observation: np.ndarray) -> object:
            return int(policy.best_action(observation))

    return _returns(environment, lambda observation: act(observation.astype(np.float32)))


def returns_of_chance(environment_id: str) -> list[float]:
    """Returns the same for uniformly random actions."""
    environment = gymnasium.make(environment_id)
    environment.action_space.seed(EVALUATION_SEED)
    return _returns(environment, lambda _: environment.action_space.sample())


def _returns(environment: gymnasium.Env, act: Callable[[np.ndarray], object]) -> list[float]:
    returns = [_return(environment, act, EVALUATION_SEED + episode) for episode in range(EPISODES)]
    environment.close()
    return returns


def _return(environment: gymnasium.Env, act: Callable[[np.ndarray], object], seed: int) -> float:
    observation, _ = environment.reset(seed=seed)
    total, is_over = 0.0, False
    while not is_over:
        observation, reward, terminated, truncated, _ = environment.step(act(observation))
        total += float(reward)
        is_over = terminated or truncated
    return total
