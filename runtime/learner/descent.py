"""Steps of policy and critic down their loss.

They share nothing, neither parameters nor the norm that their gradients are clipped to, so each may step on threads of
its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event

import torch

from runtime.learner.fast.compiled import compiled
from runtime.learner.fast.trained_perceptron import TrainedPerceptron
from runtime.learner.objective import Objective
from runtime.learner.samples import Tensors
from runtime.learner.trained_network import TrainedNetwork

_READ = {"policy": ("observations", "actions", "log_probs", "advantages", "old_outputs", "log_caps"),
         "critic": ("observations", "value_targets")}
"""What each network's part of the loss is made of."""
_CALL_MINIBATCHES = 128
"""Of a perceptron's critic in one compiled call, which nothing cuts: some milliseconds to about a second."""

Minibatches = Sequence[torch.Tensor | None]
"""Indices of samples, int64; None = all."""


@dataclass(frozen=True)
class Descent:
    """The gradients and steps of one update.

    Attributes:
        trained: Policy and critic by name, with gradients and optimisers.
        objective: What they descend.
        norm_max: Gradients are clipped to this norm; None = no clipping.
        device: Of the networks.
    """

    trained: Mapping[str, TrainedNetwork]
    objective: Objective
    norm_max: float | None
    device: torch.device

    def steps(
        self, samples: Tensors, minibatches: Minibatches, *, threads: int, torch_threads: int
    ) -> list[list[torch.Tensor]]:
        """Makes one step of each network on each minibatch.

        Args:
            samples: What is trained on.
            minibatches: In order.
            threads: CPU threads of the update.
            torch_threads: Of them, those that torch uses for one operation.

        Returns:
            For policy and critic, the means of each minibatch before its step.
        """
        if threads == 1 or self.device.type != "cpu":
            return [self._steps_alone(name, samples, minibatches, torch_threads) for name in self.trained]
        is_cut = Event()
        with ThreadPoolExecutor(1) as beside:
            try:
                critic = beside.submit(self._steps_alone, "critic", samples, minibatches, threads // 2, is_cut.is_set)
                policy = self._steps_alone("policy", samples, minibatches, -(-threads // 2))
                found = [policy, critic.result()]
            finally:
                # After a signal, or the update's time limit, nobody waits for the critic's other minibatches.
                is_cut.set()
        torch.set_num_threads(torch_threads)
        return found

    def _steps_alone(self, name: str, samples: Tensors, minibatches: Minibatches, threads: int,
                     is_cut: Callable[[], bool] = lambda: False) -> list[torch.Tensor]:
        """Steps with one of the networks, until it is cut; returns the means of each minibatch."""
        torch.set_num_threads(threads)
        trained, found = self.trained[name], []
        # Each call costs less where it cannot become part of a graph.
        with torch.inference_mode(trained.is_by_hand):
            if name == "critic" and isinstance(trained, TrainedPerceptron) and self.device.type == "cpu":
                for first in range(0, len(minibatches), _CALL_MINIBATCHES):
                    if is_cut():
                        break
                    found += trained.regress(
                        samples["observations"], samples["value_targets"],
                        minibatches[first:first + _CALL_MINIBATCHES],
                        weight=self.objective.value_coefficient, norm_max=self.norm_max)
                return found
            for indices in minibatches:
                if is_cut():
                    break
                found.append(self.write_gradient(name, samples, indices))
                trained.clip(self.norm_max)
                trained.optimizer.step()
        return found

    def write_gradient(
        self, name: str, samples: Tensors, indices: torch.Tensor | None, share: float = 1.0
    ) -> torch.Tensor:
        """Writes the gradient of one network's part of the loss, without clipping it.

        Args:
            name: Of the network.
            samples: What the minibatch is drawn from.
            indices: The minibatch; None = all.
            share: Of the whole group's samples that these are; a process may have no sample at all.

        Returns:
            Policy loss and entropy, or the value loss: means, times the share.
        """
        trained = self.trained[name]
        if share == 0.0:
            trained.gradient.zero_()
            return torch.zeros(2 if name == "policy" else 1, device=self.device)
        if indices is not None:
            read = [key for key in _READ[name] if key in samples]
            samples = dict(zip(read, _taken([samples[key] for key in read], indices), strict=True))
        with torch.no_grad():
            write = (self.objective.write_policy_gradient if name == "policy"
                     else self.objective.write_critic_gradient)
            means = write(trained, samples, share)
            return means if share == 1.0 else means * share


@compiled
def _taken(tensors: list[torch.Tensor], indices: torch.Tensor) -> list[torch.Tensor]:
    return [tensor[indices] for tensor in tensors]
