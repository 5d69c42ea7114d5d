"""Policies of stable-baselines3's models, as actors run them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from stable_baselines3.common.distributions import (
    CategoricalDistribution,
    DiagGaussianDistribution,
    MultiCategoricalDistribution,
)
from stable_baselines3.common.policies import ActorCriticPolicy, BasePolicy
from stable_baselines3.common.torch_layers import FlattenExtractor
from torch import nn

from nitro_rl import RunError, numpy_policy

_ACTIVATIONS: dict[type[nn.Module], str] = {nn.Tanh: "tanh", nn.ReLU: "relu"}


def actor_critic(policy: BasePolicy, normalising: dict[str, Any]) -> Any:
    """Returns the actor of PPO's policy for `ActorPool.sample`.

    Args:
        normalising: Mean, standard deviation and clip of observations, as `numpy_policy` takes them.

    Raises:
        RunError: Actors cannot run it.
    """
    if not isinstance(policy, ActorCriticPolicy) or policy.use_sde:
        raise RunError(f"actors cannot run {type(policy).__name__}"
                       + (" with use_sde: its noise lasts for several steps" if getattr(policy, "use_sde", False) else
                          "; allowed: MlpPolicy"))
    *hidden, last = modules = [*policy.mlp_extractor.policy_net, policy.action_net]
    layers, activations = modules[::2], {type(one) for one in modules[1::2]}
    is_plain = (type(policy) is ActorCriticPolicy and type(policy.pi_features_extractor) is FlattenExtractor
                and hidden and {type(one) for one in layers} == {nn.Linear} and len(activations) == 1
                and activations <= _ACTIVATIONS.keys())
    if not is_plain:
        raise RunError("actors cannot run this policy; allowed: MlpPolicy of tanh or ReLU layers, at least one hidden")
    distribution, log_std, choices = policy.action_dist, None, ()
    if isinstance(distribution, DiagGaussianDistribution):
        log_std = _numbers(policy.log_std)
    elif isinstance(distribution, MultiCategoricalDistribution):
        choices = tuple(map(int, distribution.action_dims))
    elif not isinstance(distribution, CategoricalDistribution):
        raise RunError(f"actors cannot act by {type(distribution).__name__}; of MultiBinary, PoolEnv makes a "
                       "MultiDiscrete")
    return numpy_policy([(_numbers(layer.weight), _numbers(layer.bias)) for layer in layers],
                        activation=_ACTIVATIONS[activations.pop()], log_std=log_std, choices=choices, **normalising)


def _numbers(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = tensor.detach().cpu().numpy()
    return found
