"""A perceptron that is trained without autograd."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from runtime.learner.fast.perceptron import TanhLayers, activations, backward
from runtime.learner.fast.regression import regress
from runtime.learner.networks import PolicyNetwork, ValueNetwork
from runtime.learner.trained_network import TrainedNetwork


class TrainedPerceptron(TrainedNetwork):
    """A policy or a critic of `TanhLayers`."""

    is_by_hand = True

    def __init__(self, network: PolicyNetwork | ValueNetwork, layers: TanhLayers, *, learning_rate: float) -> None:
        """As `TrainedNetwork`; ``layers`` are the network's."""
        super().__init__(network, learning_rate=learning_rate)
        linear = layers.linear()
        self._weights, self._biases = [one.weight.detach() for one in linear], [one.bias.detach() for one in linear]
        self._weight_gradients = [one.weight.grad for one in linear if one.weight.grad is not None]
        self._bias_gradients = [one.bias.grad for one in linear if one.bias.grad is not None]

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        *self._kept, outputs = activations(self._weights, self._biases, observations)
        return self.network.packed(outputs)

    def backward(self, slopes: torch.Tensor) -> None:
        backward(self._weights, self._kept, self.network.unpacked(slopes),
                 self._weight_gradients, self._bias_gradients)
        self._kept = []

    def regress(self, observations: torch.Tensor, targets: torch.Tensor, minibatches: Sequence[torch.Tensor | None],
                *, weight: float, norm_max: float | None) -> list[torch.Tensor]:
        """Makes one step on each minibatch towards given values; see `runtime.learner.fast.regression`."""
        return regress(
            self._weights, self._biases, self._weight_gradients, self._bias_gradients, self.optimizer.state,
            self.optimizer.learning_rate, norm_max, observations, targets, list(minibatches), weight)


def make_trained(network: PolicyNetwork | ValueNetwork, *, learning_rate: float) -> TrainedNetwork:
    """Makes what trains a network: by hand if its layers are known here, else by autograd."""
    if isinstance(network.layers, TanhLayers):
        return TrainedPerceptron(network, network.layers, learning_rate=learning_rate)
    return TrainedNetwork(network, learning_rate=learning_rate)
