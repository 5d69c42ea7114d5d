"""The detector of KungFu's scaler: both parts of the gradient noise scale, from small batches of the samples.

Paper: McCandlish et al. 2018, An Empirical Model of Large-Batch Training, appendix A.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from runtime.detector.convexity import ConvexityDetector
from runtime.detector.interfaces import Detected
from runtime.learner.interfaces import CurvatureProblem

SMALL_BATCHES = 32
"""More batches measure the noise better; each sample is differentiated once in any case."""
_PRODUCTS = 2
"""Hessian-vector products of about the same duration: each sample is differentiated once, as half a product does, but
in small batches; 1.7 to 2.0 were measured."""


@dataclass(frozen=True)
class GradientNoise(Detected):
    """Unbiased estimates of tr Σ of a single sample's gradient, and of |G|², which may be negative; or None."""

    variance: float | None = None
    square: float | None = None


class NoiseDetector(ConvexityDetector):
    """Measures the gradient's noise on the samples on which the curvature would be measured."""

    def measure(self, problem: CurvatureProblem) -> GradientNoise:
        """Measures the noise of the objective's gradient at the problem's policy."""
        variance, square = gradient_noise(problem, seed=self.seed)
        return GradientNoise(variance=variance, square=square, products=_PRODUCTS)


def gradient_noise(
    problem: CurvatureProblem, *, seed: int
) -> tuple[float, float] | tuple[None, None]:
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
        return None, None
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
        return None, None
    return variance, square
