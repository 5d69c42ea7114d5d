"""Adam over one tensor.

Kingma and Ba 2015, by torch's fused kernel: the very arithmetic of ``torch.optim.Adam(fused=True)``. To make one of
those is to import all of torch.compile: 1.8 seconds of a CPU, at every start of a learner, for nothing.
"""

from __future__ import annotations

import torch

from runtime.learner.fast.compiled import compiled

EPSILON = 1e-5


class Adam:
    """Descends along a gradient that is written elsewhere.

    Attributes:
        learning_rate: Of the next step.
        moments: Running means by torch's names: ``exp_avg`` of the gradient and ``exp_avg_sq`` of its square.
        steps: How many were made, float32 ``[]``.
    """

    def __init__(self, values: torch.Tensor, gradient: torch.Tensor, *, learning_rate: float) -> None:
        """Takes what it moves, and the tensor in which it finds the gradient at each step; both float32 ``[P]``."""
        self._values, self._gradient = values, gradient
        self.learning_rate = learning_rate
        self.moments = {name: torch.zeros_like(values) for name in ("exp_avg", "exp_avg_sq")}
        self.steps = torch.zeros((), device=values.device)

    @property
    def state(self) -> list[list[torch.Tensor]]:
        """All that a step reads and writes; see `adam_step`."""
        return [[self._values], [self._gradient], [self.moments["exp_avg"]], [self.moments["exp_avg_sq"]], [self.steps]]

    @torch.no_grad()
    def step(self) -> None:
        """Makes one step along the gradient that is there."""
        adam_step(self.state, self.learning_rate)


@compiled
def adam_step(state: list[list[torch.Tensor]], learning_rate: float, epsilon: float = EPSILON) -> None:
    """Makes one step.

    Args:
        state: The values, their gradient, its running mean, that of its square, and the count of steps; each in a list,
            as the compiler would leave out an operation that writes only through a list that is made here.
        learning_rate: Of this step.
        epsilon: Added to the root of the squares' mean.
    """
    values, gradients, first, second, steps = state
    steps[0].add_(1.0)
    torch._fused_adam_(values, gradients, first, second, [], steps, lr=learning_rate, beta1=0.9, beta2=0.999,
                       weight_decay=0.0, eps=epsilon, amsgrad=False, maximize=False)


@compiled
def clip_gradient(gradient: torch.Tensor, norm_max: float) -> None:
    """Shortens a gradient to a norm; as ``torch.nn.utils.clip_grad_norm_``."""
    gradient.mul_((norm_max / (torch.linalg.vector_norm(gradient) + 1e-6)).clamp(max=1.0))
