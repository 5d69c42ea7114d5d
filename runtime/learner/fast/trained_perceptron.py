"""A perceptron that trains without autograd."""

from __future__ import annotations

import torch

from runtime.learner.fast.perceptron import TanhLayers, activations, backward
from runtime.learner.networks import PolicyNetwork, ValueNetwork
from runtime.learner.trained_network import TrainedNetwork


class TrainedPerceptron(TrainedNetwork):
    """A policy or a critic of `TanhLayers`."""

    is_by_hand = True

    def __init__(
        self, network: PolicyNetwork | ValueNetwork, layers: TanhLayers, *, learning_rate: float
    ) -> None:
        """As `TrainedNetwork`, given the network's ``layers``."""
        super().__init__(network, learning_rate=learning_rate)
        linear = layers.linear()
        self._weights = [layer.weight.detach() for layer in linear]
        self._biases = [layer.bias.detach() for layer in linear]
        self._weight_gradients = [
            layer.weight.grad for layer in linear if layer.weight.grad is not None
        ]
        self._bias_gradients = [layer.bias.grad for layer in linear if layer.bias.grad is not None]

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        *self._passed, outputs = activations(self._weights, self._biases, observations)
        return self.network.packed(outputs)

    def backward(self, slopes: torch.Tensor) -> None:
        backward(
            self._weights,
            self._passed,
            self.network.unpacked(slopes),
            self._weight_gradients,
            self._bias_gradients,
        )
        self._passed = []


def make_trained(network: PolicyNetwork | ValueNetwork, *, learning_rate: float) -> TrainedNetwork:
    """Returns a trainable network: without autograd if its layers are known here, otherwise with it."""
    if isinstance(network.layers, TanhLayers):
        return TrainedPerceptron(network, network.layers, learning_rate=learning_rate)
    return TrainedNetwork(network, learning_rate=learning_rate)
