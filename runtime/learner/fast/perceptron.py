"""A perceptron of linear layers with tanh between them, forward and backward by hand, in few calls.

For minibatches of some hundred samples, autograd and modules take longer than the arithmetic. On AVX-512, oneDNN
computes a product up to twice as fast as torch's default BLAS, with the layer's bias and tanh in the same call. The
products of a minibatch took 0.5 ms, modules and autograd 1.9 ms. Speeds: docs/design/performance.md.
"""

from __future__ import annotations

import torch
from torch import nn

from lambda_actor.policy import PIXEL_MAX
from runtime.learner.fast import HAS_ONEDNN, Function, compiled

_IS_FASTER = HAS_ONEDNN and torch.backends.cpu.get_cpu_capability() == "AVX512"


def compiled_perceptron(function: Function) -> Function:
    """Compiles a function that calls those below, if oneDNN has the operation that they name."""
    return compiled(function) if HAS_ONEDNN else function


@compiled_perceptron
def activations(
    weights: list[torch.Tensor],
    biases: list[torch.Tensor],
    observations: torch.Tensor,
    is_faster: bool = _IS_FASTER,
    pixel_max: float = PIXEL_MAX,
) -> list[torch.Tensor]:
    """Returns the inputs of each layer, ``[N, …]``, and the outputs of the last. Call it without a graph.

    Args:
        weights: Weights of each layer, ``[outputs, inputs]``.
        biases: Biases of each layer, ``[outputs]``.
        observations: ``[N, inputs]``, or uint8 pixels ``[N, F·C, H, W]``.
        is_faster: Whether oneDNN is faster.
        pixel_max: Divisor of pixels.
    """
    inputs = observations
    if not observations.is_floating_point():
        inputs = observations.float().div_(pixel_max).flatten(1)
    is_fused = is_faster and inputs.dtype == torch.float32 and inputs.device.type == "cpu"
    outputs = [inputs]
    for index in range(len(weights) - 1):
        if is_fused:
            outputs.append(
                torch.ops.mkldnn._linear_pointwise(
                    outputs[-1], weights[index], biases[index], "tanh", [], ""
                )
            )
        else:
            outputs.append(torch.addmm(biases[index], outputs[-1], weights[index].t()).tanh_())
    outputs.append(torch.addmm(biases[-1], outputs[-1], weights[-1].t()))
    return outputs


@compiled_perceptron
def backward(
    weights: list[torch.Tensor],
    inputs: list[torch.Tensor],
    slopes: torch.Tensor,
    weight_gradients: list[torch.Tensor],
    bias_gradients: list[torch.Tensor],
    is_faster: bool = _IS_FASTER,
) -> None:
    """Writes the gradient of a loss.

    Args:
        weights: The weights of the forward pass.
        inputs: The inputs of each layer.
        slopes: Gradient of the loss by the last layer's outputs, ``[N, outputs]``.
        weight_gradients: Overwritten.
        bias_gradients: Overwritten.
        is_faster: Whether oneDNN is faster.
    """
    for step in range(len(weights)):
        index = len(weights) - 1 - step
        weight = weights[index]
        entered = inputs[index]
        # A layer with fewer inputs or outputs is faster as a plain product.
        is_fused = (
            is_faster
            and slopes.dtype == torch.float32
            and slopes.device.type == "cpu"
            and min(weight.size(0), weight.size(1)) >= 8
        )
        if is_fused:
            weight_gradients[index].copy_(
                torch.ops.mkldnn._linear_pointwise(slopes.t(), entered.t(), None, "none", [], "")
            )
        else:
            torch.mm(slopes.t(), entered, out=weight_gradients[index])
        torch.sum(slopes, [0], out=bias_gradients[index])
        if index > 0:
            if is_fused:
                slopes = torch.ops.mkldnn._linear_pointwise(
                    slopes, weight.t(), None, "none", [], ""
                )
            else:
                slopes = torch.mm(slopes, weight)
            slopes = torch.ops.aten.tanh_backward(slopes, entered)


class TanhLayers(nn.Sequential):
    """Linear layers with tanh between them. Layers before the first one have no parameters."""

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor
        if torch.is_grad_enabled():
            outputs = super().forward(observations)  # type: ignore[no-untyped-call]  # torch has no types for it
        else:
            weights, biases = (
                [getattr(layer, name) for layer in self.linear()] for name in ("weight", "bias")
            )
            outputs = activations(weights, biases, observations)[-1]
        return outputs

    def linear(self) -> list[nn.Linear]:
        """Returns the linear layers."""
        return [layer for layer in self if isinstance(layer, nn.Linear)]
