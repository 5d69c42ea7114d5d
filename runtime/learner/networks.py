"""Policy and critic of the MuJoCo workloads: two hidden layers of 256 tanh units each.

Paper: Nitro §8.1.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from lambda_actor.policy import HIDDEN_SIZES

LOG_2PI = math.log(2.0 * math.pi)


class GaussianPolicyNetwork(nn.Module):
    """Observation → mean of a diagonal Gaussian; log σ is a parameter of its own, the same in every state."""

    def __init__(self, observation_size: int, action_size: int, hidden_sizes: tuple[int, int] = HIDDEN_SIZES) -> None:
        super().__init__()
        self.mean = _tanh_network(observation_size, hidden_sizes, action_size, output_gain=0.01)
        self.log_std = nn.Parameter(torch.zeros(action_size))

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """float32 ``[N, O]``, normalised → float32 ``[N, 2·A]``: means, then log σ."""
        means = self.mean(observations)
        return torch.cat([means, self.log_std.expand_as(means)], dim=-1)


class ValueNetwork(nn.Module):
    """Observation → value, float32 ``[N, O]`` → ``[N]``."""

    def __init__(self, observation_size: int, hidden_sizes: tuple[int, int] = HIDDEN_SIZES) -> None:
        super().__init__()
        self.value = _tanh_network(observation_size, hidden_sizes, 1, output_gain=1.0)

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.value(observations).squeeze(-1)


def gaussian_log_prob(means: torch.Tensor, log_stds: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """log π(a|s) of a diagonal Gaussian, ``[N]``, from three ``[N, A]``."""
    scaled = (actions - means) * torch.exp(-log_stds)
    return -(0.5 * scaled.square() + log_stds + 0.5 * LOG_2PI).sum(-1)


def gaussian_entropy(log_stds: torch.Tensor) -> torch.Tensor:
    """Entropy in nats of diagonal Gaussians, ``[N]`` from ``[N, A]``."""
    return (log_stds + 0.5 * (LOG_2PI + 1.0)).sum(-1)


def gaussian_kl(
    old_means: torch.Tensor, old_log_stds: torch.Tensor, means: torch.Tensor, log_stds: torch.Tensor
) -> torch.Tensor:
    """KL(old ‖ new) in nats of diagonal Gaussians, ``[N]`` from four ``[N, A]``."""
    variance_ratio = torch.exp(2.0 * (old_log_stds - log_stds))
    distance = ((old_means - means) * torch.exp(-log_stds)).square()
    return (0.5 * (variance_ratio + distance - 1.0) + log_stds - old_log_stds).sum(-1)


def _tanh_network(inputs: int, hidden: tuple[int, int], outputs: int, *, output_gain: float) -> nn.Sequential:
    layers = [nn.Linear(inputs, hidden[0]), nn.Tanh(), nn.Linear(hidden[0], hidden[1]), nn.Tanh(),
              nn.Linear(hidden[1], outputs)]
    for layer, gain in zip(layers[::2], (math.sqrt(2.0), math.sqrt(2.0), output_gain), strict=True):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(*layers)
