"""Adam with a state of plain tensors.

Kingma and Ba 2015, by torch's functional form and its fused kernel: the very arithmetic of
``torch.optim.Adam(fused=True)``. To make one of those is to import all of torch.compile: 1.8 seconds of a CPU, at every
start of a learner, for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch.optim.adam import adam

_MOMENTS = ("exp_avg", "exp_avg_sq")


class Adam:
    """Descends along the gradients of these parameters, if they have one."""

    def __init__(self, parameters: Iterable[torch.Tensor], *, learning_rate: float, epsilon: float) -> None:
        self._parameters = list(parameters)
        self._epsilon = epsilon
        self._steps = [torch.zeros((), dtype=torch.float32, device=one.device) for one in self._parameters]
        self._moments = {name: [torch.zeros_like(one, requires_grad=False) for one in self._parameters]
                         for name in _MOMENTS}
        self.learning_rate = learning_rate

    def zero_grad(self) -> None:
        """Forgets the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Makes one step along the gradients that are there."""
        moving = [index for index, parameter in enumerate(self._parameters) if parameter.grad is not None]
        parameters, steps, first, second = ([tensors[index] for index in moving] for tensors in (
            self._parameters, self._steps, *self._moments.values()))
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        adam(parameters, gradients, first, second, [], steps, fused=True, amsgrad=False,
             beta1=0.9, beta2=0.999, lr=self.learning_rate, weight_decay=0.0, eps=self._epsilon, maximize=False)

    def get_state(self) -> dict[str, np.ndarray]:
        """Returns steps and moments by ``INDEX.NAME``; copies."""
        return {f"{index}.{name}": tensor.cpu().numpy().copy()
                for name, tensors in self._tensors().items() for index, tensor in enumerate(tensors)}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Goes on from a state.

        Raises:
            KeyError: Something is missing.
            ValueError: It is not one of such parameters.
        """
        for name, tensors in self._tensors().items():
            for index, tensor in enumerate(tensors):
                array = state[f"{index}.{name}"]
                if array.shape != tensor.shape or array.dtype != np.float32:
                    raise ValueError(f"{name} of parameter {index} is {array.dtype}{list(array.shape)}, the parameter "
                                     f"is float32{list(tensor.shape)}")
                tensor.copy_(torch.from_numpy(array))

    def _tensors(self) -> dict[str, list[torch.Tensor]]:
        return {"step": self._steps, **self._moments}
