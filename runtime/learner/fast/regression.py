"""How a critic learns: a perceptron is trained on given values, with all minibatches in one compiled call.

It is the same for every algorithm, so nothing between two steps needs the interpreter. Its lock stays with the thread
that trains the policy.
"""

from __future__ import annotations

import torch

from runtime.learner.adam import adam_step, clip_gradient
from runtime.learner.fast.compiled import compiled
from runtime.learner.fast.perceptron import activations, backward, compiled_perceptron


@compiled
def value_loss(values: torch.Tensor, targets: torch.Tensor, weight: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns ½·mean (V − target)², ``[1]``, and the derivative by V of weight·½·mean (V − target)², ``[N]``."""
    errors = values - targets
    return 0.5 * errors.square().mean(0, keepdim=True), (weight / values.size(0)) * errors


@compiled_perceptron
def regress(
    weights: list[torch.Tensor], biases: list[torch.Tensor], weight_gradients: list[torch.Tensor],
    bias_gradients: list[torch.Tensor], adam_state: list[list[torch.Tensor]], learning_rate: float,
    norm_max: float | None, observations: torch.Tensor, targets: torch.Tensor,
    minibatches: list[torch.Tensor | None], weight: float,
) -> list[torch.Tensor]:
    """Makes one step of Adam on each minibatch, in order.

    Args:
        weights: Of each layer, ``[outputs, inputs]``; those of the last have one output.
        biases: Of each layer, ``[outputs]``.
        weight_gradients: Overwritten; views of the gradient in ``adam_state``.
        bias_gradients: Overwritten; likewise.
        adam_state: See `adam_step`.
        learning_rate: Of all steps.
        norm_max: The gradient is shortened to it; None = left as it is.
        observations: ``[N, …]``.
        targets: ``[N]``.
        minibatches: Indices of samples, int64; None = all.
        weight: Of the loss.

    Returns:
        ½·mean (V − target)² of each minibatch before its step, ``[1]``.
    """
    found = []
    for indices in minibatches:
        taken, wanted = (observations, targets) if indices is None else (observations[indices], targets[indices])
        entered = activations(weights, biases, taken)
        mean, slopes = value_loss(entered[-1].squeeze(-1), wanted, weight)
        backward(weights, entered, slopes.unsqueeze(-1), weight_gradients, bias_gradients)
        if norm_max is not None:
            clip_gradient(adam_state[1][0], norm_max)
        adam_step(adam_state, learning_rate)
        found.append(mean)
    return found
