"""`attach` makes a pool's actors take the steps of a stable-baselines3 model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from nitro_rl import ActorPool, RunError
from nitro_rl.integrations.sb3 import off_policy, on_policy
from nitro_rl.integrations.sb3.calls import ALLOWED, Calls
from nitro_rl.integrations.sb3.policies import actor_critic

Model = TypeVar("Model", bound=BaseAlgorithm)


def attach(model: Model, pool: ActorPool) -> Model:
    """Makes a pool's actors take a model's steps from now on. ``learn`` works as usual.

    The model's class becomes one whose ``collect_rollouts`` asks the pool. ``save`` writes the same file as before,
    without the pool.

    Args:
        model: PPO or MaskablePPO, whose ``n_envs`` actors play ``n_steps`` in each call; or SAC or DQN, whose actors
            play ``train_freq``. Its environments are never stepped.
        pool: A pool with the same environment.

    Returns:
        The model.

    Raises:
        RunError: Actors cannot play for this model; see the message.
    """
    if not isinstance(model, BaseAlgorithm):
        raise RunError(f"model = {model!r} is not allowed; allowed: a model of {ALLOWED}")
    plain = getattr(type(model), "class_before_attach", type(model))
    collect_rollouts = _collector(model, plain, Calls(model, pool), pool.spaces.has_action_mask)
    model.__class__ = type(
        plain.__name__,
        (plain,),
        {
            "collect_rollouts": collect_rollouts,
            "class_before_attach": plain,
            "__module__": plain.__module__,
        },
    )
    return model


def _collector(
    model: BaseAlgorithm, plain: type[BaseAlgorithm], calls: Calls, has_action_mask: bool
) -> Callable[..., Any]:
    """Returns the method ``collect_rollouts`` of a model whose class was ``plain``."""
    is_masked = plain.__module__ == "sb3_contrib.ppo_mask.ppo_mask"
    if is_masked != has_action_mask:
        problem = (
            "needs an environment that gives action masks, and the pool's gives none"
            if is_masked
            else "knows nothing of action masks, which the environment gives; allowed: MaskablePPO"
        )
        raise RunError(f"{plain.__name__} {problem}")
    collecting = getattr(plain, "collect_rollouts", None)
    if is_masked or collecting is OnPolicyAlgorithm.collect_rollouts:
        return _on_policy_collector(calls, actor_critic(model))
    if isinstance(model, OffPolicyAlgorithm) and collecting is OffPolicyAlgorithm.collect_rollouts:
        return _off_policy_collector(calls, off_policy.policies(model))
    raise RunError(f"{plain.__name__} collects its steps in a way of its own; allowed: {ALLOWED}")


def _on_policy_collector(calls: Calls, acting: Callable[..., Any]) -> Callable[..., bool]:
    def collect_rollouts(
        self: Any,
        env: Any,
        callback: Any,
        rollout_buffer: Any,
        n_rollout_steps: int,
        use_masking: bool = True,
    ) -> bool:
        if not use_masking:
            raise RunError("use_masking = False: actors choose among allowed actions only")
        calls.check(self)
        return on_policy.collect(
            self, calls, acting, callback, rollout_buffer, steps=n_rollout_steps
        )

    return collect_rollouts


def _off_policy_collector(calls: Calls, exploring: Callable[..., Any]) -> Callable[..., Any]:
    def collect_rollouts(
        self: Any,
        env: Any,
        callback: Any,
        train_freq: Any,
        replay_buffer: Any,
        action_noise: Any = None,
        learning_starts: int = 0,
        log_interval: int | None = None,
    ) -> Any:
        calls.check(self)
        return off_policy.collect(
            self,
            calls,
            exploring,
            callback,
            replay_buffer,
            steps=train_freq.frequency,
            learning_starts=learning_starts,
            log_interval=log_interval,
        )

    return collect_rollouts
