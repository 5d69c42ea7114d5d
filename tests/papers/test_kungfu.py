"""KungFu's scaler against its formula, and its gradient noise against gradients of single samples."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from papers.nitro.kungfu import SETTLED_ROUNDS, KungFuSettings
from papers.nitro.noise import SMALL_BATCHES, NoiseDetector, gradient_noise
from runtime.learner.interfaces import CurvatureProblem, DetectorSamples
from runtime.scaler.interfaces import RoundView
from tests.learner.learning import VECTORS, make, roll


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
    assert found == pytest.approx(exact(gradients), rel=1e-5)


def test_larger_small_batches_have_no_bias() -> None:
    """The mean over all seeds equals the result of single samples."""
    gradients = np.random.default_rng(1).normal(0.1, 1.0, (4 * SMALL_BATCHES, 6)).astype(np.float32)
    problem = with_gradients(gradients)
    found = [gradient_noise(problem, seed=seed) for seed in range(60)]
    variance, square = exact(gradients)
    assert np.mean([one for one, _ in found]) == pytest.approx(variance, rel=0.03)
    assert np.mean([one for _, one in found]) == pytest.approx(
        square, abs=0.03 * variance / len(gradients) * 4
    )
    assert gradient_noise(problem, seed=7) == found[7]


@pytest.mark.parametrize("gradients", [[[1.0]], [[1.0], [math.nan]]])
def test_what_cannot_be_measured_is_none(gradients: list[list[float]]) -> None:
    assert gradient_noise(with_gradients(gradients), seed=0) == (None, None)


def test_of_a_real_learner_it_equals_autograd_sample_by_sample() -> None:
    objective = "total_loss"
    learner = make(epochs=1, minibatch_steps=32)
    updated = learner.update(roll(learner.weights(), VECTORS), progress=0.0).samples
    samples = DetectorSamples(
        **{name: array[:SMALL_BATCHES] for name, array in vars(updated).items()}
    )
    gradients = []
    for index in range(SMALL_BATCHES):
        one = DetectorSamples(
            **{name: array[index : index + 1] for name, array in vars(samples).items()}
        )
        problem = learner.curvature_problem(objective, one)
        value = problem.criterion(problem.module(problem.inputs), problem.targets)
        parts = torch.autograd.grad(value, list(problem.module.parameters()))
        gradients.append(torch.cat([part.reshape(-1) for part in parts]).numpy())
    found = NoiseDetector(objective, 1024, 4, seed=3).measure(
        learner.curvature_problem(objective, samples)
    )
    assert (found.variance, found.square) == pytest.approx(exact(gradients), rel=1e-4, abs=1e-7)


def test_it_follows_the_growth_of_the_smoothed_noise_scale_upwards() -> None:
    """Also after it was restored from its state; a round without a measurement changes nothing."""
    early = [(1.0, 1.0)] * (SETTLED_ROUNDS - 1)
    late = [(9.0, 1.0), (None, None), (-90.0, 1.0), (1e3, -2.0), (50.0, 0.5), (1.0, 9.0)]
    scaler, variance, square, scales, found = KungFuSettings().make(), 0.0, 0.0, [], []
    for round_index, (one, other) in enumerate(early + late, start=1):
        assert scaler.first_wave(round_index) == (found or [8])[-1], "its actors are due at once"
        view = RoundView(round_index, signals={"variance": one, "square": other})
        found.append(scaler.decide(view).actor_count)
        if one is not None and other is not None:
            variance, square = 0.9 * variance + 0.1 * one, 0.9 * square + 0.1 * other
        if round_index >= SETTLED_ROUNDS and variance > 0 and square > 0:
            scales.append(variance / square)
        growth = max(scales) / scales[0] if scales else 1.0
        assert found[-1] == min(math.floor(8 * growth + 0.5), 64)
        state, scaler = scaler.get_state(), KungFuSettings().make()
        scaler.set_state(state)
    assert found[: len(early)] == [8] * len(early), "it is mostly noise yet"
    assert found == sorted(found) and found[-1] > 8
