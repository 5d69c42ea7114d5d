"""Adam over one tensor.

Kingma and Ba 2015, by torch's fused kernel: the very arithmetic of ``torch.optim.Adam(fused=True)``. To make one of
those is to import all of torch.compile: 1.8 seconds of a CPU, at every start of a learner, for nothing.
"""

from __future__ import annotations

import torch

from runtime.learner.compiled import compiled

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

    @torch.no_grad()
    def step(self) -> None:
        """Makes one step along the gradient that is there."""
        _step([self._values], [self._gradient], [self.moments["exp_avg"]], [self.moments["exp_avg_sq"]], [self.steps],
              self.learning_rate, EPSILON)


@compiled
def _step(
    values: list[torch.Tensor], gradients: list[torch.Tensor], first: list[torch.Tensor], second: list[torch.Tensor],
    steps: list[torch.Tensor], learning_rate: float, epsilon: float,
) -> None:
    steps[0].add_(1.0)
    torch._fused_adam_(values, gradients, first, second, [], steps, lr=learning_rate, beta1=0.9, beta2=0.999,
                       weight_decay=0.0, eps=epsilon, amsgrad=False, maximize=False)
