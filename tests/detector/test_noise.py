"""The gradient noise, against problems with known per-sample gradients and against autograd, one sample at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from runtime.detector.convexity import ConvexityDetector
from runtime.detector.noise import SMALL_BATCHES, gradient_noise
from runtime.detector.smoothing import SmoothedNoise
from runtime.ports.learning import CurvatureProblem, DetectorSamples
from runtime.ports.scaling import GradientNoise
from tests.detector.test_convexity import random_samples, small_learner


def with_gradients(gradients: Any) -> CurvatureProblem:
    """Returns a problem in which each row is a sample's gradient: the objective is the mean of x·w."""
    rows = torch.as_tensor(np.asarray(gradients, np.float32))
    module = torch.nn.Linear(rows.shape[1], 1, bias=False)
    return CurvatureProblem(module, lambda outputs, _: outputs.mean(), rows, rows)


def exact(gradients: Any) -> tuple[float, float]:
    """Returns tr Σ and |G|² without bias, in plain Python."""
    rows = [[float(number) for number in row] for row in gradients]
    total = len(rows)
    mean = [math.fsum(column) / total for column in zip(*rows, strict=True)]
    variance = math.fsum(
        (number - m) ** 2 for row in rows for number, m in zip(row, mean, strict=True)
    ) / (total - 1)
    return variance, math.fsum(m * m for m in mean) - variance / total


@pytest.mark.parametrize("total", [2, 7, SMALL_BATCHES])
def test_batches_of_one_sample_give_the_exact_trace(total: int) -> None:
    gradients = np.random.default_rng(total).normal(0.3, 1.0, (total, 5)).astype(np.float32)
    found = gradient_noise(with_gradients(gradients), seed=0)
    assert (found.variance, found.square) == pytest.approx(exact(gradients), rel=1e-5)


def test_larger_small_batches_have_no_bias() -> None:
    """The mean over all seeds equals the result of single samples."""
    gradients = np.random.default_rng(1).normal(0.1, 1.0, (4 * SMALL_BATCHES, 6)).astype(np.float32)
    problem = with_gradients(gradients)
    found = [gradient_noise(problem, seed=seed) for seed in range(60)]
    variance, square = exact(gradients)
    assert np.mean([one.variance for one in found]) == pytest.approx(variance, rel=0.03)
    assert np.mean([one.square for one in found]) == pytest.approx(
        square, abs=0.03 * variance / len(gradients) * 4
    )
    assert gradient_noise(problem, seed=7) == found[7]


def test_a_gradient_without_noise_and_noise_without_a_gradient() -> None:
    assert gradient_noise(with_gradients([[3.0, 4.0]] * 50), seed=0) == GradientNoise(0.0, 25.0)
    opposite = [[1.0], [-1.0]] * (SMALL_BATCHES // 2)
    found = gradient_noise(with_gradients(opposite), seed=0)
    assert (found.variance, found.square) == pytest.approx((32 / 31, -1 / 31), rel=1e-6)


@pytest.mark.parametrize("gradients", [[[1.0]], [[1.0], [math.nan]], [[math.inf]] * 40])
def test_what_cannot_be_measured_is_none(gradients: list[list[float]]) -> None:
    assert gradient_noise(with_gradients(gradients), seed=0) == GradientNoise(None, None)


@pytest.mark.parametrize("objective", ["log_prob", "total_loss"])
def test_of_a_real_learner_it_equals_autograd_sample_by_sample(objective: str) -> None:
    learner = small_learner()
    samples = random_samples(learner, SMALL_BATCHES)
    gradients = []
    for index in range(SMALL_BATCHES):
        one = DetectorSamples(
            **{name: array[index : index + 1] for name, array in vars(samples).items()}
        )
        problem = learner.curvature_problem(objective, one)
        value = problem.criterion(problem.module(problem.inputs), problem.targets)
        parts = torch.autograd.grad(value, list(problem.module.parameters()))
        gradients.append(torch.cat([part.reshape(-1) for part in parts]).numpy())
    found = ConvexityDetector(objective, 1024, 4, seed=3).measure_noise(
        learner.curvature_problem(objective, samples)
    )
    assert (found.variance, found.square) == pytest.approx(exact(gradients), rel=1e-4, abs=1e-7)


def test_the_scale_is_a_ratio_of_smoothed_estimates_and_goes_on_from_its_state() -> None:
    taken = [
        GradientNoise(4.0, -1.0),
        GradientNoise(None, None),
        GradientNoise(6.0, 3.0),
        GradientNoise(5.0, 1.0),
    ]
    whole, found, variance, square = SmoothedNoise(), [], 0.0, 0.0
    for index, noise in enumerate(taken):
        if noise.variance is not None and noise.square is not None:
            variance, square = (
                0.9 * variance + 0.1 * noise.variance,
                0.9 * square + 0.1 * noise.square,
            )
        found.append(whole.take(noise))
        assert found[-1] == (pytest.approx(variance / square) if square > 0 else None)
        resumed = SmoothedNoise()
        resumed.set_state(whole.get_state())
        whole = resumed if index % 2 else whole
    assert [one is None for one in found] == [True, True, False, False]
    first = SmoothedNoise()
    assert first.take(GradientNoise(6.0, 3.0)) == pytest.approx(2.0)
