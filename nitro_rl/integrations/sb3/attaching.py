"""`attach`: a model of stable-baselines3 whose steps the actors of a pool take."""

from __future__ import annotations

from typing import Any, TypeVar

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from nitro_rl import ActorPool, RunError
from nitro_rl.integrations.sb3 import on_policy
from nitro_rl.integrations.sb3.calls import Calls

Model = TypeVar("Model", bound=BaseAlgorithm)


def attach(model: Model, pool: ActorPool) -> Model:
    """Has actors of a pool take a model's steps from now on; ``learn`` goes on as usual.

    The model's class becomes one whose ``collect_rollouts`` asks the pool. What ``save`` writes is the same, and
    knows nothing of the pool.

    Args:
        model: Of PPO, with its environments: ``n_envs`` actors play ``n_steps`` in each call.
        pool: Of the same environment.

    Returns:
        The model.

    Raises:
        RunError: Actors cannot play for this model; the text says why.
    """
    plain = getattr(type(model), "class_before_attach", type(model))
    calls = Calls(model, pool)
    if plain.collect_rollouts is OnPolicyAlgorithm.collect_rollouts:
        def collect_rollouts(self: Any, env: Any, callback: Any, rollout_buffer: Any, n_rollout_steps: int) -> bool:
            return on_policy.collect(self, calls, callback, rollout_buffer, n_rollout_steps)
        on_policy.actor_critic(model.policy, {})
    else:
        raise RunError(f"{plain.__name__} collects its steps in a way of its own; allowed: PPO")
    model.__class__ = type(plain.__name__, (plain,), {
        "collect_rollouts": collect_rollouts, "class_before_attach": plain, "__module__": plain.__module__})
    return model
