"""A perceptron of linear layers with tanh between them, forward and backward by hand, in as few calls as possible.

For minibatches of some hundred samples autograd and modules take longer than the arithmetic. On AVX-512 oneDNN computes
a product up to twice as fast as the BLAS that torch calls by itself, and a layer's bias and tanh within the same call.
Measured in docs/design/performance.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from runtime.learner.compiled import compiled

# torch has no types for it.
_HAS_ONEDNN = (torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
               and hasattr(torch.ops.mkldnn, "_linear_pointwise"))
_IS_FASTER = _HAS_ONEDNN and torch.backends.cpu.get_cpu_capability() == "AVX512"
_SIZE_MIN = 8
"""A layer with fewer inputs or outputs is faster as a plain product."""
_Function = TypeVar("_Function", bound=Callable[..., object])


def _compiled(function: _Function) -> _Function:
    # It names an operation that is not everywhere.
    return compiled(function) if _HAS_ONEDNN else function


def activations(weights: list[torch.Tensor], biases: list[torch.Tensor], inputs: torch.Tensor) -> list[torch.Tensor]:
    """Returns what enters each layer, ``[N, …]``, and what leaves the last one; to be called without a graph.

    Args:
        weights: Of each layer, ``[outputs, inputs]``.
        biases: Of each layer, ``[outputs]``.
        inputs: What enters the first one, ``[N, inputs]``.
    """
    return _forward(weights, biases, inputs, _is_fused(inputs))


def backward(
    weights: list[torch.Tensor], inputs: list[torch.Tensor], slopes: torch.Tensor,
    weight_gradients: list[torch.Tensor], bias_gradients: list[torch.Tensor],
) -> None:
    """Writes the gradient of a loss.

    Args:
        weights: As they were.
        inputs: What entered each layer.
        slopes: Gradient of the loss with respect to what left the last one, ``[N, outputs]``.
        weight_gradients: Overwritten.
        bias_gradients: Overwritten.
    """
    _backward(weights, inputs, slopes, weight_gradients, bias_gradients, _SIZE_MIN if _is_fused(slopes) else 2 ** 62)


def _is_fused(tensor: torch.Tensor) -> bool:
    return _IS_FASTER and tensor.dtype == torch.float32 and tensor.device.type == "cpu"


@_compiled
def _forward(
    weights: list[torch.Tensor], biases: list[torch.Tensor], inputs: torch.Tensor, is_fused: bool
) -> list[torch.Tensor]:
    found = [inputs]
    for index in range(len(weights) - 1):
        if is_fused:
            found.append(torch.ops.mkldnn._linear_pointwise(found[-1], weights[index], biases[index], "tanh", [], ""))
        else:
            found.append(torch.addmm(biases[index], found[-1], weights[index].t()).tanh_())
    found.append(torch.addmm(biases[-1], found[-1], weights[-1].t()))
    return found


@_compiled
def _backward(
    weights: list[torch.Tensor], inputs: list[torch.Tensor], slopes: torch.Tensor,
    weight_gradients: list[torch.Tensor], bias_gradients: list[torch.Tensor], fused_size_min: int,
) -> None:
    for place in range(len(weights)):
        index = len(weights) - 1 - place
        weight, entered = weights[index], inputs[index]
        is_fused = min(weight.size(0), weight.size(1)) >= fused_size_min
        if is_fused:
            weight_gradients[index].copy_(
                torch.ops.mkldnn._linear_pointwise(slopes.t(), entered.t(), None, "none", [], ""))
        else:
            torch.mm(slopes.t(), entered, out=weight_gradients[index])
        torch.sum(slopes, [0], out=bias_gradients[index])
        if index > 0:
            if is_fused:
                slopes = torch.ops.mkldnn._linear_pointwise(slopes, weight.t(), None, "none", [], "")
            else:
                slopes = torch.mm(slopes, weight)
            slopes = torch.ops.aten.tanh_backward(slopes, entered)
