"""The objectives whose Hessian the detector measures."""

from __future__ import annotations

import copy
from typing import Protocol

import torch

from runtime.learner.distributions import Distribution
from runtime.learner.samples import Tensors
from runtime.ports.learning import CurvatureProblem, DetectorSamples


class HasObjectives(Protocol):
    """A learner of which the objectives are made; see `runtime.learner.actor_critic.ActorCritic`."""

    @property
    def policy(self) -> torch.nn.Module: ...

    @property
    def critic(self) -> torch.nn.Module: ...

    @property
    def distribution(self) -> Distribution: ...

    def tensors(self, samples: DetectorSamples) -> dict[str, torch.Tensor]: ...

    def surrogate(self, log_probs: torch.Tensor, samples: Tensors) -> tuple[torch.Tensor, torch.Tensor]: ...

    def loss(self, outputs: torch.Tensor, values: torch.Tensor, samples: Tensors) -> torch.Tensor: ...


def make_curvature_problem(learner: HasObjectives, objective: str, samples: DetectorSamples) -> CurvatureProblem:
    """Returns the maximised objective at the learner's present policy, on a copy of its networks.

    Args:
        learner: Goes on freely while the problem is being solved.
        objective: ``log_prob``: mean log π(a|s)·Â, with respect to the policy's parameters (paper: Nitro Theorem 1);
            ``surrogate``: the algorithm's own, with respect to the policy's parameters; ``total_loss``: −(the whole
            loss), with respect to policy and critic, as the authors' code has it.
        samples: What the objective is a mean over.

    Raises:
        ValueError: Another objective.
    """
    tensors = learner.tensors(samples)
    frozen = copy.copy(learner)

    def log_prob(outputs: torch.Tensor, _targets: torch.Tensor) -> torch.Tensor:
        return (frozen.distribution.log_prob(outputs, tensors["actions"]) * tensors["advantages"]).mean()

    def surrogate(outputs: torch.Tensor, _targets: torch.Tensor) -> torch.Tensor:
        values, _ = frozen.surrogate(frozen.distribution.log_prob(outputs, tensors["actions"]), tensors)
        return values.mean()

    def total_loss(outputs: torch.Tensor, _targets: torch.Tensor) -> torch.Tensor:
        return -frozen.loss(outputs[:, :-1], outputs[:, -1], tensors)

    criteria = {"log_prob": log_prob, "surrogate": surrogate, "total_loss": total_loss}
    if objective not in criteria:
        raise ValueError(f"objective {objective!r}; known: {', '.join(criteria)}")
    policy: torch.nn.Module = copy.deepcopy(learner.policy)
    module = _PolicyAndCritic(policy, copy.deepcopy(learner.critic)) if objective == "total_loss" else policy
    return CurvatureProblem(module, criteria[objective], tensors["observations"], tensors["value_targets"])


class _PolicyAndCritic(torch.nn.Module):
    def __init__(self, policy: torch.nn.Module, critic: torch.nn.Module) -> None:
        super().__init__()
        self.policy, self.critic = policy, critic

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.policy(observations), self.critic(observations).unsqueeze(1)], dim=-1)
