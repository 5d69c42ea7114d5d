"""The loss of policy and critic: its value, its gradient written out, and what the detector differentiates twice.

    − mean surrogate + c_v·½·mean (V − target)² − c_H·mean H + β·mean KL(old ‖ π)

All algorithms share it, except for the surrogate. Without a penalty, β is 0.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch

from runtime.learner.batch import Tensors
from runtime.learner.distributions import Distribution, allowed
from runtime.learner.fast import compiled
from runtime.learner.fast.trained_perceptron import value_loss
from runtime.learner.interfaces import CurvatureProblem
from runtime.learner.trained_network import TrainedNetwork


@dataclass(frozen=True)
class Objective:
    """The loss of an algorithm with its current coefficients.

    Attributes:
        surrogate: Returns each sample's objective and its derivative by log π(a|s); see `ActorCritic`.
        distribution: Distribution over actions.
        value_coefficient: c_v.
        entropy_coefficient: c_H.
        kl_coefficient: β.
        is_masked: Whether the environment masks actions. Then the samples' ``old_outputs`` mark the forbidden ones.
    """

    surrogate: Callable[[torch.Tensor, Tensors], tuple[torch.Tensor, torch.Tensor]]
    distribution: Distribution
    value_coefficient: float
    entropy_coefficient: float
    kl_coefficient: float
    is_masked: bool = False

    def allowed(self, outputs: torch.Tensor, samples: Tensors) -> torch.Tensor:
        """Returns the policy's outputs ``[N, D]`` without the forbidden actions."""
        return allowed(outputs, samples["old_outputs"]) if self.is_masked else outputs

    def loss(self, outputs: torch.Tensor, values: torch.Tensor, samples: Tensors) -> torch.Tensor:
        """Returns the mean loss ``[]`` for the networks' ``outputs`` ``[N, D]`` and ``values`` ``[N]``."""
        outputs = self.allowed(outputs, samples)
        surrogate = self.surrogate(
            self.distribution.log_prob(outputs, samples["actions"]), samples
        )[0].mean()
        value_loss = 0.5 * (values - samples["value_targets"]).square().mean()
        entropy = self.distribution.entropy(outputs).mean()
        loss = -surrogate + self.value_coefficient * value_loss - self.entropy_coefficient * entropy
        if self.kl_coefficient > 0.0:
            loss = (
                loss
                + self.kl_coefficient * self.distribution.kl(samples["old_outputs"], outputs).mean()
            )
        return loss

    def write_policy_gradient(
        self, policy: TrainedNetwork, samples: Tensors, share: float
    ) -> torch.Tensor:
        """Writes the policy's gradient of the loss, times ``share``; returns mean policy loss and entropy."""
        outputs = self.allowed(policy.forward(samples["observations"]), samples)
        surrogate, slopes = self.surrogate(
            self.distribution.log_prob(outputs, samples["actions"]), samples
        )
        weight = share / len(outputs)
        policy.backward(
            self.distribution.slopes(
                outputs,
                samples["actions"],
                samples["old_outputs"],
                -weight * slopes,
                -weight * self.entropy_coefficient,
                weight * self.kl_coefficient,
            )
        )
        return _policy_means(surrogate, self.distribution.entropy(outputs))

    def write_critic_gradient(
        self, critic: TrainedNetwork, samples: Tensors, share: float
    ) -> torch.Tensor:
        """Writes the critic's gradient of the loss, times ``share``; returns the mean value loss."""
        values = critic.forward(samples["observations"])
        means, slopes = value_loss(values, samples["value_targets"], share * self.value_coefficient)
        critic.backward(slopes)
        return means


@compiled
def _policy_means(surrogate: torch.Tensor, entropies: torch.Tensor) -> torch.Tensor:
    return torch.stack([-surrogate.mean(), entropies.mean()])


@compiled
def clipped_surrogate(
    log_ratios: torch.Tensor, advantages: torch.Tensor, clip: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns min(r·Â, clip(r, 1 − ε, 1 + ε)·Â) and its derivative by log r; Schulman et al. 2017, equation 7."""
    ratios = torch.exp(log_ratios)
    free = ratios * advantages
    surrogate = torch.minimum(free, ratios.clamp(1.0 - clip, 1.0 + clip) * advantages)
    return surrogate, free * (free == surrogate)


@compiled
def truncated_surrogate(
    log_ratios: torch.Tensor, advantages: torch.Tensor, clip: float, log_caps: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the clipped surrogate of ratios cut at a cap, and its derivative by log r: 0 above the cap.

    Uses `where`, because a minimum would halve the gradient where ratio and cap are equal.
    """
    is_free = log_ratios <= log_caps
    cut = torch.where(is_free, log_ratios, log_caps)
    surrogate, slopes = clipped_surrogate(cut, advantages, clip)
    return surrogate, slopes * is_free


def adapted_kl_coefficient(kl_coefficient: float, *, kl: float, kl_target: float) -> float:
    """Returns β adapted as in Schulman et al. 2017, §4, with RLlib's factors.

    β grows by 1.5 if KL is above twice the target, and is halved if KL is below half of it.
    """
    if kl > 2.0 * kl_target:
        return kl_coefficient * 1.5
    if kl < 0.5 * kl_target:
        return kl_coefficient * 0.5
    return kl_coefficient


def make_curvature_problem(
    policy: torch.nn.Module,
    critic: torch.nn.Module,
    loss: Objective,
    objective: str,
    tensors: Tensors,
) -> CurvatureProblem:
    """Returns the maximized objective at the current policy, on a copy of the networks, which may change later.

    Args:
        policy: The learner's policy.
        critic: The learner's critic.
        loss: The learner's current loss.
        objective: ``log_prob``: mean log π(a|s)·Â, with respect to the policy's parameters (paper: Nitro Theorem 1);
            ``surrogate``: the algorithm's own, with respect to the policy's parameters; ``total_loss``: −(the whole
            loss), with respect to policy and critic, as in the authors' code.
        tensors: The samples over which the objective is averaged.
    """

    def log_probs(outputs: torch.Tensor) -> torch.Tensor:
        return loss.distribution.log_prob(loss.allowed(outputs, tensors), tensors["actions"])

    criteria: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
        "log_prob": lambda outputs, _: (log_probs(outputs) * tensors["advantages"]).mean(),
        "surrogate": lambda outputs, _: loss.surrogate(log_probs(outputs), tensors)[0].mean(),
        "total_loss": lambda outputs, _: -loss.loss(outputs[:, :-1], outputs[:, -1], tensors),
    }
    policy = copy.deepcopy(policy)
    module = (
        _PolicyAndCritic(policy, copy.deepcopy(critic)) if objective == "total_loss" else policy
    )
    return CurvatureProblem(
        module, criteria[objective], tensors["observations"], tensors["value_targets"]
    )


class _PolicyAndCritic(torch.nn.Module):
    def __init__(self, policy: torch.nn.Module, critic: torch.nn.Module) -> None:
        super().__init__()
        self.policy = policy
        self.critic = critic

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return torch.cat(
            [self.policy(observations), self.critic(observations).unsqueeze(1)], dim=-1
        )
