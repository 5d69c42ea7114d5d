"""Policy and critic: hidden layers for vectors (two of 256 tanh units by default), a convolutional network for pixels.

A picture with a vector gets both: hidden layers over the convolutions' features and the vector.

Paper: Nitro §8.1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import nn
from torch.nn import functional

from lambda_actor.fast import is_plain
from lambda_actor.policy import CONV_FEATURES, CONVOLUTIONS, PIXEL_MAX, Architecture, same_padding
from lambda_actor.spaces import Spaces
from runtime.learner.fast import compiled
from runtime.learner.fast.perceptron import TanhLayers


class PolicyNetwork(nn.Module):
    """Maps observations to parameters of the distribution over actions. log σ is the same in every state.

    Args:
        network: The text of a `lambda_actor.policy.Architecture`.
        initialisation: A kind of initial weights; see `_initialise`.
        initial_std: σ of continuous actions before the first update.
    """

    def __init__(
        self,
        spaces: Spaces,
        network: str = "mlp",
        initialisation: str = "orthogonal",
        *,
        initial_std: float = 1.0,
    ) -> None:
        super().__init__()
        self.layers = _make_layers(network, spaces, spaces.output_size)
        _initialise(self.layers, initialisation, {"orthogonal": 0.01, "normc": 0.01})
        self.log_std = (
            None
            if spaces.is_discrete
            else nn.Parameter(torch.full((spaces.action_size,), math.log(initial_std)))
        )

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """Maps float32 ``[N, O]``, normalized, or uint8 ``[N, F·C, H, W]`` or ``[N, 1, 1, Y]`` to float32 ``[N, D]``.

        See `runtime.learner.distributions` for the meaning of ``D``.
        """
        return self.packed(self.layers(observations))

    def packed(self, outputs: torch.Tensor) -> torch.Tensor:
        """Returns the distribution's parameters, given the last layer's outputs."""
        return outputs if self.log_std is None else _beside(outputs, self.log_std)

    def unpacked(self, slopes: torch.Tensor) -> torch.Tensor:
        """Returns a gradient by the last layer's outputs, given the gradient by the distribution's parameters.

        The gradient by log σ goes to the parameter.
        """
        if self.log_std is None:
            return slopes
        assert self.log_std.grad is not None, "the gradient is a view of a tensor that stays"
        return _apart(slopes, self.log_std.grad)


class ValueNetwork(nn.Module):
    """Maps observations ``[N, …]`` to values, float32 ``[N]``. Has the policy's shape."""

    def __init__(
        self, spaces: Spaces, network: str = "mlp", initialisation: str = "orthogonal"
    ) -> None:
        super().__init__()
        self.layers = _make_layers(network, spaces, 1)
        _initialise(self.layers, initialisation, {"orthogonal": 1.0, "normc": 0.01})

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.packed(self.layers(observations))

    def packed(self, outputs: torch.Tensor) -> torch.Tensor:
        """Returns the values, given the last layer's outputs, ``[N, 1]`` → ``[N]``."""
        return outputs.squeeze(-1)

    def unpacked(self, slopes: torch.Tensor) -> torch.Tensor:
        """Returns a gradient by the last layer's outputs, ``[N]`` → ``[N, 1]``."""
        return slopes.unsqueeze(-1)


class CombinedLayers(nn.Module):
    """Layers for a picture, then layers over its features and the vector."""

    def __init__(self, spaces: Spaces, trunk: nn.Sequential, rest: nn.Sequential) -> None:
        super().__init__()
        self._spaces = spaces
        self.trunk = trunk
        self.rest = rest

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        shape = self._spaces.beside_shape
        pictures = observations[..., : math.prod(shape)].reshape(-1, *shape)
        vectors = vectors_of(observations, self._spaces)
        outputs: torch.Tensor = self.rest(torch.cat([self.trunk(pictures), vectors], dim=1))
        return outputs


def vectors_of(observations: torch.Tensor, spaces: Spaces) -> torch.Tensor:
    """Returns the vectors float32 ``[N, V]`` of observations, beside pictures uint8 ``[N, 1, 1, Y]`` or alone."""
    if not spaces.is_combined:
        return observations
    size = math.prod(spaces.beside_shape)
    # A copy, because floats must be aligned to four bytes.
    return (
        observations[:, 0, 0, size:]
        .clone(memory_format=torch.contiguous_format)
        .view(torch.float32)
    )


def with_vectors(observations: torch.Tensor, vectors: torch.Tensor, spaces: Spaces) -> torch.Tensor:
    """Returns observations with other vectors, float32 ``[N, V]``; see `vectors_of`."""
    if not spaces.is_combined:
        return vectors
    copy = observations.clone()
    copy[:, 0, 0, math.prod(spaces.beside_shape) :] = vectors.contiguous().view(torch.uint8)
    return copy


class Pixels(nn.Module):
    """Maps uint8 pixels to float32 in [0, 1]."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return pixels.float() / PIXEL_MAX


class SameConvolution(nn.Conv2d):
    """A convolution padded like TensorFlow's SAME: ⌈size / stride⌉ outputs, the smaller half of the padding first."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        rows, columns = (
            same_padding(size, kernel, stride)[1:]
            for size, kernel, stride in zip(
                images.shape[-2:], self.kernel_size, self.stride, strict=True
            )
        )
        return super().forward(functional.pad(images, (*columns, *rows)))


class WholeConvolution(nn.Linear):
    """A VALID convolution over the whole remaining picture, ``[N, C, H, W]`` → ``[N, outputs]``.

    A matrix product, which is several times as fast as a convolution.
    """

    def __init__(self, image_shape: tuple[int, int, int], outputs: int) -> None:
        super().__init__(math.prod(image_shape), outputs)
        self.image_shape = image_shape

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(images.flatten(1))

    @property
    def filters(self) -> torch.Tensor:
        """Returns the weight in a convolution's shape, ``[outputs, C, H, W]``."""
        return self.weight.view(-1, *self.image_shape)


@compiled
def _beside(outputs: torch.Tensor, log_std: torch.Tensor) -> torch.Tensor:
    return torch.cat([outputs, log_std.expand_as(outputs)], dim=-1)


@compiled
def _apart(slopes: torch.Tensor, of_log_std: torch.Tensor) -> torch.Tensor:
    outputs, log_stds = slopes.chunk(2, dim=-1)
    torch.sum(log_stds, [0], out=of_log_std)
    return outputs


def layer_arrays(network: PolicyNetwork) -> dict[str, torch.Tensor]:
    """Returns the layers by their names in a WEIGHTS message: ``layer.0.weight``, ``layer.0.bias`` and so on."""
    arrays: dict[str, torch.Tensor] = {}
    for index, layer in enumerate(_parametric(network.layers)):
        arrays[f"layer.{index}.weight"] = (
            layer.filters if isinstance(layer, WholeConvolution) else layer.weight
        )
        if layer.bias is not None:
            arrays[f"layer.{index}.bias"] = layer.bias
    return arrays


def _parametric(layers: nn.Module) -> list[nn.Linear | nn.Conv2d]:
    return [layer for layer in layers.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]


def _make_layers(network: str, spaces: Spaces, outputs: int) -> nn.Module:
    architecture = Architecture.parse(network)
    layers: nn.Module
    if architecture.kind == "conv":
        layers = nn.Sequential(*_trunk_layers(spaces), nn.Linear(CONV_FEATURES, outputs))
    elif architecture.kind == "combined":
        rest = _dense_layers(CONV_FEATURES + spaces.vector_size, outputs, architecture)
        layers = CombinedLayers(spaces, nn.Sequential(*_trunk_layers(spaces)), nn.Sequential(*rest))
    else:
        pixels: list[nn.Module] = [Pixels(), nn.Flatten()] if spaces.is_pixels else []
        is_by_hand = architecture.activation == "tanh" and not is_plain()
        layers = (TanhLayers if is_by_hand else nn.Sequential)(
            *pixels, *_dense_layers(spaces.observation_size, outputs, architecture)
        )
    return layers


def _initialise(layers: nn.Module, kind: str, output_gains: Mapping[str, float]) -> None:
    """Draws the initial weights.

    Args:
        kind: ``orthogonal``, with gain √2; ``normc``, as in RLlib's old API stack: Gaussian, then each output's weights
            are scaled to norm 1; or ``pytorch``, which leaves layers as torch makes them. The former two begin without
            biases.
        output_gains: Gain of the last layer, by kind.
    """
    if kind == "pytorch":
        return
    parametric = _parametric(layers)
    hidden_gain = {"orthogonal": math.sqrt(2.0), "normc": 1.0}[kind]
    gains = [hidden_gain] * (len(parametric) - 1) + [output_gains[kind]]
    for layer, gain in zip(parametric, gains, strict=True):
        if kind == "orthogonal":
            nn.init.orthogonal_(layer.weight, gain)
        else:
            nn.init.normal_(layer.weight)
            with torch.no_grad():
                layer.weight *= gain / layer.weight.flatten(1).norm(dim=1).view(
                    -1, *[1] * (layer.weight.ndim - 1)
                )
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


def _dense_layers(inputs: int, outputs: int, architecture: Architecture) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for units in architecture.hidden_sizes:
        activation = nn.Tanh() if architecture.activation == "tanh" else nn.ReLU()
        layers += [nn.Linear(inputs, units), activation]
        inputs = units
    return [*layers, nn.Linear(inputs, outputs)]


def _trunk_layers(spaces: Spaces) -> list[nn.Module]:
    channels, height, width = spaces.picture_shape
    layers: list[nn.Module] = [Pixels()]
    for filters, kernel, stride in CONVOLUTIONS:
        layers += [SameConvolution(channels, filters, kernel, stride), nn.ReLU()]
        channels = filters
        height, width = (same_padding(size, kernel, stride)[0] for size in (height, width))
    return [*layers, WholeConvolution((channels, height, width), CONV_FEATURES), nn.ReLU()]
