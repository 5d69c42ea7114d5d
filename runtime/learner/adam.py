"""Adam over one tensor.

Kingma and Ba 2015, with torch's fused kernel and the same arithmetic as ``torch.optim.Adam(fused=True)``. Using that
class would import all of torch.compile, which takes 1.8 seconds of CPU time at every start of a learner.
"""

from __future__ import annotations

import torch

from runtime.learner.fast import compiled

EPSILON = 1e-5
"""Added to the root of the squares' mean, as in stable-baselines3's PPO; torch and RLlib add 1e-8."""


class Adam:
    """Descends along a gradient that other code writes.

    Attributes:
        learning_rate: Learning rate of the next step.
        moments: Running means by torch's names: ``exp_avg`` of the gradient and ``exp_avg_sq`` of its square.
        steps: Number of steps made, float32 ``[]``.
    """

    def __init__(
        self, values: torch.Tensor, gradient: torch.Tensor, *, learning_rate: float
    ) -> None:
        """Takes the values to move and the tensor that holds the gradient at each step; both float32 ``[P]``."""
        self._values = values
        self._gradient = gradient
        self.learning_rate = learning_rate
        self.moments = {name: torch.zeros_like(values) for name in ("exp_avg", "exp_avg_sq")}
        self.steps = torch.zeros((), device=values.device)

    @property
    def kept(self) -> dict[str, torch.Tensor]:
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
        adam_step(self.state, self.learning_rate)


@compiled
def adam_step(
    state: list[list[torch.Tensor]], learning_rate: float, epsilon: float = EPSILON
) -> None:
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
