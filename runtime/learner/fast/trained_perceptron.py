"""A perceptron that trains without autograd. A critic trains on all minibatches in one compiled call.

Critics learn the same way in every algorithm, so nothing between two steps needs the interpreter, whose lock remains
with the thread that trains the policy.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from runtime.learner.fast import compiled
from runtime.learner.fast.perceptron import TanhLayers, activations, backward, compiled_perceptron
from runtime.learner.networks import PolicyNetwork, ValueNetwork
from runtime.learner.trained_network import TrainedNetwork, adam_step, clip_gradient


@compiled
def value_loss(
    values: torch.Tensor, targets: torch.Tensor, weight: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns ½·mean (V − target)², ``[1]``, and the derivative by V of weight·½·mean (V − target)², ``[N]``."""
    errors = values - targets
    return 0.5 * errors.square().mean(0, keepdim=True), (weight / values.size(0)) * errors


@compiled_perceptron
def regress(
    weights: list[torch.Tensor],
    biases: list[torch.Tensor],
    weight_gradients: list[torch.Tensor],
    bias_gradients: list[torch.Tensor],
    adam_state: list[list[torch.Tensor]],
    learning_rate: float,
    epsilon: float,
    norm_max: float | None,
    observations: torch.Tensor,
    targets: torch.Tensor,
    minibatches: list[torch.Tensor | None],
    weight: float,
) -> list[torch.Tensor]:
    """Makes one Adam step on each minibatch, in order.

    Args:
        weights: Weights of each layer, ``[outputs, inputs]``; the last layer has one output.
        biases: Biases of each layer, ``[outputs]``.
        weight_gradients: Overwritten; views of the gradient in ``adam_state``.
        bias_gradients: Overwritten; also views of it.
        adam_state: See `adam_step`.
        learning_rate: Learning rate of all steps.
        epsilon: Adam's ε.
        norm_max: Gradients are clipped to this norm; None = no clipping.
        observations: ``[N, …]``.
        targets: ``[N]``.
        minibatches: Indices of samples, int64; None = all.
        weight: Weight of the loss.

    Returns:
        ½·mean (V − target)² of each minibatch before its step, ``[1]``.
    """
    losses = []
    for indices in minibatches:
        taken, wanted = (
            (observations, targets)
            if indices is None
            else (observations[indices], targets[indices])
        )
        entered = activations(weights, biases, taken)
        mean, slopes = value_loss(entered[-1].squeeze(-1), wanted, weight)
        backward(weights, entered, slopes.unsqueeze(-1), weight_gradients, bias_gradients)
        if norm_max is not None:
            clip_gradient(adam_state[1][0], norm_max)
        adam_step(adam_state, learning_rate, epsilon)
        losses.append(mean)
    return losses


class TrainedPerceptron(TrainedNetwork):
    """A policy or a critic of `TanhLayers`."""

    is_by_hand = True

    def __init__(
        self, network: PolicyNetwork | ValueNetwork, layers: TanhLayers, **adam: float
    ) -> None:
        """As `TrainedNetwork`, given the network's ``layers``."""
        super().__init__(network, **adam)
        linear = layers.linear()
        self._weights = [layer.weight.detach() for layer in linear]
        self._biases = [layer.bias.detach() for layer in linear]
        self._weight_gradients = [
            layer.weight.grad for layer in linear if layer.weight.grad is not None
        ]
        self._bias_gradients = [layer.bias.grad for layer in linear if layer.bias.grad is not None]

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        *self._inputs, outputs = activations(self._weights, self._biases, observations)
        return self.network.packed(outputs)

    def backward(self, slopes: torch.Tensor) -> None:
        backward(
            self._weights,
            self._inputs,
            self.network.unpacked(slopes),
            self._weight_gradients,
            self._bias_gradients,
        )
        self._inputs = []

    def regress(
        self,
        observations: torch.Tensor,
        targets: torch.Tensor,
        minibatches: Sequence[torch.Tensor | None],
        *,
        weight: float,
        norm_max: float | None,
    ) -> list[torch.Tensor]:
        """Makes one step on each minibatch toward the targets."""
        return regress(
            self._weights,
            self._biases,
            self._weight_gradients,
            self._bias_gradients,
            self.optimizer.state,
            self.optimizer.learning_rate,
            self.optimizer.epsilon,
            norm_max,
            observations,
            targets,
            list(minibatches),
            weight,
        )


def make_trained(network: PolicyNetwork | ValueNetwork, **adam: float) -> TrainedNetwork:
    """Returns a trainable network: without autograd if its layers are known here, otherwise with it.

    Args:
        adam: ``learning_rate`` and ``epsilon``.
    """
    if isinstance(network.layers, TanhLayers):
        return TrainedPerceptron(network, network.layers, **adam)
    return TrainedNetwork(network, **adam)
