"""A network in training: its parameters, gradient and optimizer moments, each in one flat tensor.

A step is then one call, whatever the number of layers. It is Adam's (Kingma and Ba 2015), with torch's fused kernel and
the same arithmetic as ``torch.optim.Adam(fused=True)``. Using that class would import all of torch.compile, which takes
1.8 seconds of CPU time at every start of a learner.
"""

from __future__ import annotations

import torch

from runtime.learner.fast import compiled
from runtime.learner.networks import PolicyNetwork, ValueNetwork


class Adam:
    """Descends along a gradient that other code writes.

    Attributes:
        learning_rate: Learning rate of the next step.
        epsilon: Added to the root of the squares' mean.
        moments: Running means by torch's names: ``exp_avg`` of the gradient and ``exp_avg_sq`` of its square.
        steps: Number of steps made, float32 ``[]``.
    """

    def __init__(
        self, values: torch.Tensor, gradient: torch.Tensor, *, learning_rate: float, epsilon: float
    ) -> None:
        """Takes the values to move and the tensor that holds the gradient at each step; both float32 ``[P]``."""
        self._values = values
        self._gradient = gradient
        self.learning_rate = learning_rate
        self.epsilon = epsilon
        self.moments = {name: torch.zeros_like(values) for name in ("exp_avg", "exp_avg_sq")}
        self.steps = torch.zeros((), device=values.device)

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """What a checkpoint holds, by torch's names."""
        return {**self.moments, "step": self.steps}

    @property
    def state(self) -> list[list[torch.Tensor]]:
        """Everything that a step reads and writes; see `adam_step`."""
        return [
            [self._values],
            [self._gradient],
            [self.moments["exp_avg"]],
            [self.moments["exp_avg_sq"]],
            [self.steps],
        ]

    @torch.no_grad()
    def step(self) -> None:
        """Makes one step along the current gradient."""
        adam_step(self.state, self.learning_rate, self.epsilon)


@compiled
def adam_step(state: list[list[torch.Tensor]], learning_rate: float, epsilon: float) -> None:
    """Makes one step.

    Args:
        state: The values, their gradient, its running mean, the running mean of its square, and the step count. Each is
            in a list of its own that the caller makes: the compiler drops writes through lists made in this function.
        learning_rate: Learning rate of this step.
        epsilon: Added to the root of the squares' mean.
    """
    values, gradients, first, second, steps = state
    steps[0].add_(1.0)
    torch._fused_adam_(
        values,
        gradients,
        first,
        second,
        [],
        steps,
        lr=learning_rate,
        beta1=0.9,
        beta2=0.999,
        weight_decay=0.0,
        eps=epsilon,
        amsgrad=False,
        maximize=False,
    )


@compiled
def clip_gradient(gradient: torch.Tensor, norm_max: float) -> None:
    """Clips a gradient to a norm, as ``torch.nn.utils.clip_grad_norm_`` does."""
    gradient.mul_((norm_max / (torch.linalg.vector_norm(gradient) + 1e-6)).clamp(max=1.0))


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

    def __init__(
        self, network: PolicyNetwork | ValueNetwork, *, learning_rate: float, epsilon: float
    ) -> None:
        """Moves the parameters of a network into one tensor."""
        self.network = network
        parameters = list(network.parameters())
        self.values = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
        self.gradient = torch.zeros_like(self.values)
        first = 0
        for parameter in parameters:
            part = slice(first, first + parameter.numel())
            parameter.data = self.values[part].view(parameter.shape)
            parameter.grad = self.gradient[part].view(parameter.shape)
            first = part.stop
        self.optimizer = Adam(
            self.values, self.gradient, learning_rate=learning_rate, epsilon=epsilon
        )
        self._outputs: list[torch.Tensor] = []

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Returns the outputs, without a graph, and keeps what `backward` needs."""
        with torch.enable_grad():
            self._outputs = [self.network(observations)]
        return self._outputs[0].detach()

    def backward(self, slopes: torch.Tensor) -> None:
        """Writes the gradient, given the loss's gradient by the outputs of the last `forward`."""
        self.gradient.zero_()
        self._outputs[0].backward(slopes)  # type: ignore[no-untyped-call]  # torch has no types for it
        self._outputs = []

    @torch.no_grad()
    def clip(self, norm_max: float | None) -> None:
        """Clips the gradient to a norm, if one is given."""
        if norm_max is not None:
            clip_gradient(self.gradient, norm_max)
