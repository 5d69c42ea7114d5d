"""A network in training: its parameters, gradient and optimizer moments, each in one flat tensor.

A step is then one call, whatever the number of layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import torch

from runtime.learner.adam import Adam, clip_gradient
from runtime.learner.networks import PolicyNetwork, ValueNetwork
from runtime.records.files import INTEGER_MAX


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
        for one, values, gradient in zip(
            parameters, self._parts(self.values), self._parts(self.gradient), strict=True
        ):
            one.data, one.grad = values, gradient
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

    def named_gradients(self) -> dict[str, torch.Tensor]:
        """Returns the gradient by parameter, as copies."""
        parts = self._parts(self.gradient.clone())
        return {
            name: part
            for (name, _), part in zip(self.network.named_parameters(), parts, strict=True)
        }

    @torch.no_grad()
    def set_gradients(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """Writes the gradient by parameter.

        Raises:
            KeyError: A parameter's gradient is missing.
        """
        for (name, _), part in zip(
            self.network.named_parameters(), self._parts(self.gradient), strict=True
        ):
            part.copy_(gradients[name])

    def optimizer_state(self) -> list[dict[str, np.ndarray]]:
        """Returns copies of each parameter's steps and moments."""
        steps = self.optimizer.steps.cpu().numpy()
        moments = {name: self._parts(tensor) for name, tensor in self.optimizer.moments.items()}
        return [
            {"step": steps.copy()}
            | {name: parts[index].cpu().numpy().copy() for name, parts in moments.items()}
            for index, _ in enumerate(self.network.parameters())
        ]

    def set_optimizer_state(self, states: list[dict[str, np.ndarray]]) -> None:
        """Loads each parameter's steps and moments.

        Raises:
            KeyError: Something is missing.
            ValueError: Shapes or types do not match the parameters.
        """
        for name, tensor in self.optimizer.moments.items():
            for index, (part, state) in enumerate(zip(self._parts(tensor), states, strict=True)):
                if state[name].shape != part.shape or state[name].dtype != np.float32:
                    raise ValueError(
                        f"{name} of parameter {index} is {state[name].dtype}{list(state[name].shape)}, "
                        f"the parameter is float32{list(part.shape)}"
                    )
                if name == "exp_avg_sq" and (state[name] < 0.0).any():
                    raise ValueError(
                        f"{name} of parameter {index}, a mean of squares, is {state[name].min():g}"
                    )
                part.copy_(torch.from_numpy(state[name]))
        steps = {float(state["step"]) for state in states}
        if len(steps) != 1:
            raise ValueError(
                f"all parameters have made the same number of steps, not {sorted(steps)}"
            )
        if not 0.0 <= (made := steps.pop()) <= INTEGER_MAX:
            raise ValueError(f"parameters have made {made:g} steps")
        self.optimizer.steps.fill_(made)

    def _parts(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Returns views of a flat tensor, one in the shape of each parameter."""
        parameters = list(self.network.parameters())
        return [
            part.view(one.shape)
            for part, one in zip(
                torch.split(flat, [one.numel() for one in parameters]), parameters, strict=True
            )
        ]


def optimizer_arrays(trained: Iterable[TrainedNetwork]) -> dict[str, np.ndarray]:
    """Returns steps and moments as ``optimizer.INDEX.NAME``, numbering the parameters of all networks."""
    states = [state for one in trained for state in one.optimizer_state()]
    return {
        f"optimizer.{index}.{name}": array
        for index, state in enumerate(states)
        for name, array in state.items()
    }


def set_optimizer_arrays(
    trained: Iterable[TrainedNetwork], arrays: Mapping[str, np.ndarray]
) -> None:
    """Loads the result of `optimizer_arrays`.

    Raises:
        KeyError: Something is missing.
        ValueError: Shapes or types do not match the parameters.
    """
    first = 0
    for one in trained:
        states = one.optimizer_state()
        one.set_optimizer_state(
            [
                {name: arrays[f"optimizer.{index}.{name}"] for name in state}
                for index, state in enumerate(states, first)
            ]
        )
        first += len(states)
