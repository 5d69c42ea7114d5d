"""The objectives whose Hessian the detector measures."""

from __future__ import annotations

import copy

import torch

from runtime.learner.interfaces import CurvatureProblem
from runtime.learner.objective import Objective
from runtime.learner.samples import Tensors


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

    def log_prob(outputs: torch.Tensor, _targets: torch.Tensor) -> torch.Tensor:
        outputs = loss.allowed(outputs, tensors)
        return (
            loss.distribution.log_prob(outputs, tensors["actions"]) * tensors["advantages"]
        ).mean()

    def surrogate(outputs: torch.Tensor, _targets: torch.Tensor) -> torch.Tensor:
        outputs = loss.allowed(outputs, tensors)
        values, _ = loss.surrogate(loss.distribution.log_prob(outputs, tensors["actions"]), tensors)
        return values.mean()

    def total_loss(outputs: torch.Tensor, _targets: torch.Tensor) -> torch.Tensor:
        return -loss.loss(outputs[:, :-1], outputs[:, -1], tensors)

    criteria = {"log_prob": log_prob, "surrogate": surrogate, "total_loss": total_loss}
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
