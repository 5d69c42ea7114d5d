"""Steps of policy and critic down their loss.

They share neither parameters nor the norm that clips their gradients, so each may step on threads of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event
from typing import NamedTuple

import torch

from runtime.learner.batch import Tensors
from runtime.learner.fast import HAS_SCRIPTS, compiled
from runtime.learner.fast.trained_perceptron import TrainedPerceptron
from runtime.learner.graphs import graphed
from runtime.learner.objective import Objective
from runtime.learner.trained_network import TrainedNetwork, adam_step

_READ = {
    "policy": ("observations", "actions", "log_probs", "advantages", "old_outputs", "log_caps"),
    "critic": ("observations", "value_targets"),
}
"""Samples that each network's part of the loss needs."""
_BLOCK_SAMPLES = 2048
"""Most samples that a perceptron passes at once on a CPU. Activations of more leave the processor's cache."""
_CALL_MINIBATCHES = 128
"""Minibatches of a perceptron's critic per compiled call. A call cannot be stopped and takes up to about a second."""

Minibatches = Sequence[torch.Tensor | None]
"""Indices of samples, int64; None = all."""


class _RecordedStep(NamedTuple):
    """A recorded step: the tensors that it reads and writes."""

    samples: Tensors
    learning_rate: torch.Tensor
    means: torch.Tensor
    step: Callable[[], None]


@dataclass(frozen=True)
class Descent:
    """Computes the gradients and steps of one update.

    Attributes:
        trained: Policy and critic by name, with gradients and optimizers.
        objective: The loss that they descend.
        norm_max: Gradients are clipped to this norm; None = no clipping.
        device: Device of the networks.
        graphs: Recorded steps by network, size of the minibatch, and coefficient of the KL penalty.
    """

    trained: Mapping[str, TrainedNetwork]
    objective: Objective
    norm_max: float | None
    device: torch.device
    graphs: dict[tuple[str, int, float], _RecordedStep] = field(default_factory=dict)

    def steps(
        self, samples: Tensors, minibatches: Minibatches, *, threads: int, torch_threads: int
    ) -> list[list[torch.Tensor]]:
        """Makes one step of each network on each minibatch.

        Args:
            samples: The training samples.
            minibatches: In order.
            threads: CPU threads of the update.
            torch_threads: Threads that torch uses for one operation.

        Returns:
            For policy and critic, the means of each minibatch before its step.
        """
        if self.device.type == "cuda" and not HAS_SCRIPTS:
            return [self.recorded_steps(name, samples, minibatches) for name in self.trained]
        if threads == 1 or self.device.type != "cpu":
            return [
                self._steps_alone(name, samples, minibatches, torch_threads)
                for name in self.trained
            ]
        is_cut = Event()
        with ThreadPoolExecutor(1) as beside:
            try:
                critic = beside.submit(
                    self._steps_alone, "critic", samples, minibatches, threads // 2, is_cut.is_set
                )
                policy = self._steps_alone("policy", samples, minibatches, -(-threads // 2))
                means = [policy, critic.result()]
            finally:
                # After a signal, or the update's time limit, skip the critic's other minibatches.
                is_cut.set()
        torch.set_num_threads(torch_threads)
        return means

    def _steps_alone(
        self,
        name: str,
        samples: Tensors,
        minibatches: Minibatches,
        threads: int,
        is_cut: Callable[[], bool] = lambda: False,
    ) -> list[torch.Tensor]:
        """Steps with one network until it is cut. Returns the means of each minibatch."""
        torch.set_num_threads(threads)
        trained = self.trained[name]
        means = []
        # Calls are cheaper when they cannot become part of a graph.
        with torch.inference_mode(trained.is_by_hand):
            if (
                name == "critic"
                and isinstance(trained, TrainedPerceptron)
                and self.device.type == "cpu"
                and all(_size(samples, one) <= _BLOCK_SAMPLES for one in minibatches)
            ):
                for first in range(0, len(minibatches), _CALL_MINIBATCHES):
                    if is_cut():
                        break
                    means += trained.regress(
                        samples["observations"],
                        samples["value_targets"],
                        minibatches[first : first + _CALL_MINIBATCHES],
                        weight=self.objective.value_coefficient,
                        norm_max=self.norm_max,
                    )
                return means
            for indices in minibatches:
                if is_cut():
                    break
                means.append(self.write_gradient(name, samples, indices))
                trained.clip(self.norm_max)
                trained.optimizer.step()
        return means

    def recorded_steps(
        self, name: str, samples: Tensors, minibatches: Minibatches
    ) -> list[torch.Tensor]:
        """Steps with one network by a CUDA graph for each size of a minibatch; needs `runtime.learner.fast` to be off.

        Returns:
            The means of each minibatch.
        """
        trained = self.trained[name]
        read = [key for key in _READ[name] if key in samples]
        means = []
        for indices in minibatches:
            count = _size(samples, indices)
            # Its coefficients are part of a graph.
            key = (name, count, self.objective.kl_coefficient)
            if key not in self.graphs:
                self.graphs[key] = self._record(name, {one: samples[one][:count] for one in read})
            graph = self.graphs[key]
            graph.learning_rate.fill_(trained.optimizer.learning_rate)
            for one in read:
                taken = samples[one] if indices is None else samples[one].index_select(0, indices)
                graph.samples[one].copy_(taken)
            graph.step()
            means.append(graph.means.clone())
        return means

    def _record(self, name: str, samples: Tensors) -> _RecordedStep:
        """Records a step on a minibatch, and leaves the network as it is."""
        trained = self.trained[name]
        kept = [trained.values, *trained.optimizer.tensors.values()]
        before = [tensor.clone() for tensor in kept]
        inputs = {one: torch.empty_like(tensor).copy_(tensor) for one, tensor in samples.items()}
        learning_rate = torch.zeros((), device=self.device)
        means = torch.zeros(2 if name == "policy" else 1, device=self.device)

        def step() -> None:
            means.copy_(self.write_gradient(name, inputs, None))
            with torch.no_grad():
                trained.clip(self.norm_max)
                # TorchScript, which is off here, takes only numbers.
                adam_step(trained.optimizer.state, learning_rate, trained.optimizer.epsilon)  # type: ignore[arg-type]

        recorded = graphed(step, self.device)
        for tensor, values in zip(kept, before, strict=True):
            tensor.copy_(values)
        return _RecordedStep(inputs, learning_rate, means, recorded)

    def write_gradient(
        self, name: str, samples: Tensors, indices: torch.Tensor | None, share: float = 1.0
    ) -> torch.Tensor:
        """Writes the gradient of one network's part of the loss, without clipping it.

        Args:
            name: The network.
            samples: The samples that contain the minibatch.
            indices: The minibatch; None = all.
            share: Fraction of the whole group's samples; a process may have none.

        Returns:
            Mean policy loss and entropy, or mean value loss, each times the share.
        """
        trained = self.trained[name]
        if share == 0.0:
            trained.gradient.zero_()
            return torch.zeros(2 if name == "policy" else 1, device=self.device)
        read = [key for key in _READ[name] if key in samples]
        if indices is not None:
            samples = dict(zip(read, _taken([samples[key] for key in read], indices), strict=True))
        count = len(samples["observations"])
        if trained.is_by_hand and self.device.type == "cpu" and count > _BLOCK_SAMPLES:
            gradient = torch.zeros_like(trained.gradient)
            means = []
            for first in range(0, count, _BLOCK_SAMPLES):
                block = {key: samples[key][first : first + _BLOCK_SAMPLES] for key in read}
                part = share * len(block["observations"]) / count
                means.append(self.write_gradient(name, block, None, part))
                gradient += trained.gradient
            trained.gradient.copy_(gradient)
            return torch.stack(means).sum(0)
        with torch.no_grad():
            write = (
                self.objective.write_policy_gradient
                if name == "policy"
                else self.objective.write_critic_gradient
            )
            mean = write(trained, samples, share)
            return mean if share == 1.0 else mean * share


def _size(samples: Tensors, indices: torch.Tensor | None) -> int:
    return len(samples["observations"] if indices is None else indices)


@compiled
def _taken(tensors: list[torch.Tensor], indices: torch.Tensor) -> list[torch.Tensor]:
    return [tensor[indices] for tensor in tensors]
