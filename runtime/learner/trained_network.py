"""A network in training: its parameters, gradient and optimizer moments, each in one flat tensor.

A step is then one call, whatever the number of layers.
"""

from __future__ import annotations

import torch

from runtime.learner.adam import Adam, clip_gradient
from runtime.learner.networks import PolicyNetwork, ValueNetwork


class TrainedNetwork:
    """A policy or a critic with its gradient and optimizer.

    Attributes:
        network: Its parameters are views of `values`, and their ``grad`` are views of `gradient`.
        values: All parameters, one after the other, ``[P]``.
        gradient: Their gradient. Every writer must overwrite all of it.
        optimizer: Steps along the gradient.
        is_by_hand: Whether it works without autograd.
    """

    is_by_hand = False

    def __init__(self, network: PolicyNetwork | ValueNetwork, *, learning_rate: float) -> None:
        """Moves the parameters of a network into one tensor."""
        self.network = network
        parameters = list(network.parameters())
        self.values = torch.cat([one.detach().reshape(-1) for one in parameters])
        self.gradient = torch.zeros_like(self.values)
        first = 0
        for one in parameters:
            part = slice(first, first + one.numel())
            one.data = self.values[part].view(one.shape)
            one.grad = self.gradient[part].view(one.shape)
            first = part.stop
        self.optimizer = Adam(self.values, self.gradient, learning_rate=learning_rate)
        self._kept: list[torch.Tensor] = []

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Returns the outputs, without a graph, and keeps what `backward` needs."""
        with torch.enable_grad():
            self._kept = [self.network(observations)]
        return self._kept[0].detach()

    def backward(self, slopes: torch.Tensor) -> None:
        """Writes the gradient, given the loss's gradient by the outputs of the last `forward`."""
        self.gradient.zero_()
        self._kept[0].backward(slopes)  # type: ignore[no-untyped-call]  # torch has no types for it
        self._kept = []

    @torch.no_grad()
    def clip(self, norm_max: float | None) -> None:
        """Clips the gradient to a norm, if one is given."""
        if norm_max is not None:
            clip_gradient(self.gradient, norm_max)
