"""The two parts of the gradient noise scale, from small batches of the detector's samples.

Paper: McCandlish et al. 2018, An Empirical Model of Large-Batch Training, appendix A.
"""

from __future__ import annotations

import math

import torch

from runtime.ports.learning import CurvatureProblem
from runtime.ports.scaling import GradientNoise

SMALL_BATCHES = 32
"""More batches measure the noise better; each sample is differentiated once in any case. See `GradientNoise.products`.
"""


def gradient_noise(problem: CurvatureProblem, *, seed: int) -> GradientNoise:
    """Estimates tr Σ of a single sample's gradient and |G|² of the true gradient, both unbiased.

    With m small batches of b samples each, B = m·b, |G_b|² the mean of their gradients' squared norms, and G_B the mean
    of their gradients: ``tr Σ = (|G_b|² − |G_B|²)/(1/b − 1/B)`` and ``|G|² = (B·|G_B|² − b·|G_b|²)/(B − b)``.

    Args:
        problem: A mean over samples, whose module treats each sample separately.
        seed: Assigns samples to small batches.

    Returns:
        Both None if there are fewer than two samples, or if they are not finite. |G|² may be below 0.
    """
    module, inputs = problem.module, problem.inputs
    with torch.no_grad():
        outputs = module(inputs)
    outputs.requires_grad_()
    (by_output,) = torch.autograd.grad(problem.criterion(outputs, problem.targets), outputs)
    parameters, total = list(module.parameters()), len(outputs)
    count = min(SMALL_BATCHES, total)
    if count < 2:
        return GradientNoise(None, None)
    size = total // count
    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed % 2**63)).to(
        inputs.device
    )
    mean = torch.zeros(
        sum(one.numel() for one in parameters), dtype=torch.float64, device=inputs.device
    )
    small_square = 0.0
    for chosen in order[: count * size].view(count, size):
        parts = torch.autograd.grad(
            module(inputs[chosen]), parameters, by_output[chosen] * (total / size)
        )
        gradient = torch.cat([part.reshape(-1) for part in parts]).double()
        mean += gradient / count
        small_square += float(gradient @ gradient) / count
    big_square = float(mean @ mean)
    variance = (small_square - big_square) / (1 / size - 1 / (count * size))
    square = (count * big_square - small_square) / (count - 1)
    if not (math.isfinite(variance) and math.isfinite(square)):
        return GradientNoise(None, None)
    return GradientNoise(variance, square)
