"""Gaussians and categorical distributions against plain Python."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest
import torch

from lambda_actor.spaces import Spaces
from runtime.learner.distributions import Categorical, Categoricals, Gaussian, make_distribution

GAUSSIAN, CATEGORICAL = Gaussian(), Categorical()


def density(x: float, mean: float, std: float) -> float:
    return math.exp(-0.5 * ((x - mean) / std) ** 2) / (std * math.sqrt(2.0 * math.pi))


def integral(function, mean: float, std: float, points: int = 4001) -> float:
    """Returns ∫ function by Simpson's rule over ± 12 σ."""
    low, high = mean - 12.0 * std, mean + 12.0 * std
    width = (high - low) / (points - 1)
    weights = [1.0, *([4.0, 2.0] * ((points - 3) // 2)), 4.0, 1.0]
    return width / 3.0 * math.fsum(w * function(low + i * width) for i, w in enumerate(weights))


def gaussians(
    seed: int, samples: int = 6, size: int = 3
) -> tuple[list[list[float]], list[list[float]]]:
    stream = random.Random(seed)
    means = [[stream.uniform(-2, 2) for _ in range(size)] for _ in range(samples)]
    log_stds = [[stream.uniform(-1.5, 1.0) for _ in range(size)] for _ in range(samples)]
    return means, log_stds


def doubles(rows) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def packed(means, log_stds) -> torch.Tensor:
    """Returns a policy network's outputs: means, then log σ."""
    return torch.cat([doubles(means), doubles(log_stds)], dim=-1)


def test_log_prob_is_the_log_of_the_product_of_densities() -> None:
    means, log_stds = gaussians(0)
    actions, _ = gaussians(1)
    result = GAUSSIAN.log_prob(packed(means, log_stds), doubles(actions))
    assert result.shape == (6,)
    for row in range(6):
        product = math.prod(
            density(a, m, math.exp(s))
            for a, m, s in zip(actions[row], means[row], log_stds[row], strict=True)
        )
        assert float(result[row]) == pytest.approx(math.log(product), rel=1e-12)


def test_entropy_is_the_integral_of_minus_p_log_p() -> None:
    means, log_stds = gaussians(2, samples=3, size=2)
    result = GAUSSIAN.entropy(packed(means, log_stds))
    assert result.shape == (3,)
    for row in range(3):
        expected = 0.0
        for mean, log_std in zip(means[row], log_stds[row], strict=True):
            std = math.exp(log_std)
            expected -= integral(
                lambda x, m=mean, s=std: density(x, m, s) * math.log(density(x, m, s)), mean, std
            )
        assert float(result[row]) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ((0.0, 0.0), (0.5, 0.3)),
        ((1.0, -0.7), (-0.2, 0.4)),
        ((0.3, 0.6), (0.3, -0.4)),
        ((-1.0, 0.2), (1.0, 0.2)),
    ],
)
def test_kl_is_the_integral_of_p_old_log_p_old_over_p_new(
    old: tuple[float, float], new: tuple[float, float]
) -> None:
    """In one dimension; the direction matters: KL(old ‖ new)."""
    (old_mean, old_log_std), (new_mean, new_log_std) = old, new
    old_std, new_std = math.exp(old_log_std), math.exp(new_log_std)

    def log_density(x: float, mean: float, std: float) -> float:
        return -0.5 * ((x - mean) / std) ** 2 - math.log(std * math.sqrt(2.0 * math.pi))

    expected = integral(
        lambda x: (
            density(x, old_mean, old_std)
            * (log_density(x, old_mean, old_std) - log_density(x, new_mean, new_std))
        ),
        old_mean,
        old_std,
    )
    result = GAUSSIAN.kl(
        packed([[old_mean]], [[old_log_std]]), packed([[new_mean]], [[new_log_std]])
    )
    assert float(result[0]) == pytest.approx(expected, rel=1e-6)


def test_kl_of_several_dimensions_is_the_sum_over_them() -> None:
    """For each dimension by the textbook formula log σ₂/σ₁ + (σ₁² + (μ₁ − μ₂)²)/(2σ₂²) − ½."""
    old_means, old_log_stds = gaussians(3)
    means, log_stds = gaussians(4)
    result = GAUSSIAN.kl(packed(old_means, old_log_stds), packed(means, log_stds))
    assert result.shape == (6,)
    for row in range(6):
        expected = sum(
            math.log(math.exp(s2) / math.exp(s1))
            + (math.exp(s1) ** 2 + (m1 - m2) ** 2) / (2 * math.exp(s2) ** 2)
            - 0.5
            for m1, s1, m2, s2 in zip(
                old_means[row], old_log_stds[row], means[row], log_stds[row], strict=True
            )
        )
        assert float(result[row]) == pytest.approx(expected, rel=1e-12)


def test_kl_of_a_gaussian_with_itself_is_zero_and_never_negative() -> None:
    means, log_stds = gaussians(5)
    np.testing.assert_array_equal(
        GAUSSIAN.kl(packed(means, log_stds), packed(means, log_stds)).numpy(), np.zeros(6)
    )
    others, other_log_stds = gaussians(6)
    assert (GAUSSIAN.kl(packed(means, log_stds), packed(others, other_log_stds)) > 0).all()


def test_log_probs_average_to_minus_the_entropy() -> None:
    """Monte Carlo with 20,000 draws: the two formulas belong to the same distribution."""
    draws = np.random.default_rng(0).normal(size=(20_000, 2))
    mean, log_std = np.array([0.5, -1.0]), np.array([0.3, -0.8])
    actions = mean + np.exp(log_std) * draws
    outputs = packed(mean, log_std)
    log_probs = GAUSSIAN.log_prob(outputs.expand(20_000, 4), doubles(actions))
    entropy = float(GAUSSIAN.entropy(outputs[None])[0])
    assert float(log_probs.mean()) == pytest.approx(-entropy, abs=0.03)


# Discrete actions


def logits(seed: int, samples: int = 6, actions: int = 4) -> list[list[float]]:
    stream = random.Random(seed)
    return [[stream.uniform(-3, 3) for _ in range(actions)] for _ in range(samples)]


def probabilities(row: list[float]) -> list[float]:
    total = math.fsum(math.exp(logit) for logit in row)
    return [math.exp(logit) / total for logit in row]


def test_categorical_log_prob_is_that_of_the_softmax() -> None:
    rows, actions = logits(0), [0, 1, 2, 3, 3, 0]
    result = CATEGORICAL.log_prob(doubles(rows), torch.tensor(actions))
    assert result.tolist() == pytest.approx(
        [math.log(probabilities(row)[action]) for row, action in zip(rows, actions, strict=True)],
        rel=1e-12,
    )


def test_categorical_entropy_and_kl_are_their_sums() -> None:
    old, new = logits(1), logits(2)
    entropy = [-math.fsum(p * math.log(p) for p in probabilities(row)) for row in old]
    kl = [
        math.fsum(
            p * math.log(p / q) for p, q in zip(probabilities(a), probabilities(b), strict=True)
        )
        for a, b in zip(old, new, strict=True)
    ]
    assert CATEGORICAL.entropy(doubles(old)).tolist() == pytest.approx(entropy, rel=1e-12)
    assert CATEGORICAL.kl(doubles(old), doubles(new)).tolist() == pytest.approx(kl, rel=1e-12)
    np.testing.assert_allclose(CATEGORICAL.kl(doubles(old), doubles(old)), 0.0, atol=1e-15)


def test_only_differences_of_logits_count() -> None:
    old, new, actions = doubles(logits(3)), doubles(logits(4)), torch.tensor([0, 1, 2, 3, 0, 1])
    for shift in (-50.0, 1000.0):
        torch.testing.assert_close(
            CATEGORICAL.log_prob(old + shift, actions), CATEGORICAL.log_prob(old, actions)
        )
        torch.testing.assert_close(CATEGORICAL.entropy(old + shift), CATEGORICAL.entropy(old))
        torch.testing.assert_close(CATEGORICAL.kl(old + shift, new), CATEGORICAL.kl(old, new))


def test_an_action_that_is_all_but_impossible_stays_finite() -> None:
    outputs = torch.tensor([[0.0, -200.0]])
    assert float(CATEGORICAL.log_prob(outputs, torch.tensor([1]))[0]) == -200.0
    assert float(CATEGORICAL.entropy(outputs)[0]) == 0.0
    assert float(CATEGORICAL.kl(outputs, -outputs)[0]) == 200.0


@pytest.mark.parametrize(
    ("distribution", "outputs", "actions"),
    [
        (
            GAUSSIAN,
            torch.randn(5, 6, generator=torch.Generator().manual_seed(0)),
            torch.zeros(5, 3),
        ),
        (
            CATEGORICAL,
            torch.randn(5, 6, generator=torch.Generator().manual_seed(0)),
            torch.arange(5),
        ),
    ],
)
def test_equals_torchs_distributions(
    distribution, outputs: torch.Tensor, actions: torch.Tensor
) -> None:
    def theirs(packed: torch.Tensor) -> torch.distributions.Distribution:
        if distribution is CATEGORICAL:
            return torch.distributions.Categorical(logits=packed)
        means, log_stds = packed.chunk(2, dim=-1)
        return torch.distributions.Independent(torch.distributions.Normal(means, log_stds.exp()), 1)

    other = outputs.flip(0)
    torch.testing.assert_close(
        distribution.log_prob(outputs, actions), theirs(outputs).log_prob(actions)
    )
    torch.testing.assert_close(distribution.entropy(outputs), theirs(outputs).entropy())
    torch.testing.assert_close(
        distribution.kl(other, outputs),
        torch.distributions.kl_divergence(theirs(other), theirs(outputs)),
    )


# Several choices per action

COUNTS = (3, 1, 4, 2)
SEVERAL = Categoricals(COUNTS)
SEVERAL_ACTIONS = [[0, 0, 3, 1], [2, 0, 0, 0], [1, 0, 2, 1], [0, 0, 1, 0]]


def joint(row: list[float]) -> dict[tuple[int, ...], float]:
    """Returns the probability of every combination, in plain Python."""
    parts, first = [], 0
    for count in COUNTS:
        parts.append(probabilities(row[first : first + count]))
        first += count
    return {
        chosen: math.prod(part[one] for part, one in zip(parts, chosen, strict=True))
        for chosen in itertools.product(*map(range, COUNTS))
    }


def test_several_choices_are_one_distribution_over_all_combinations() -> None:
    old, new = logits(6, 4, sum(COUNTS)), logits(7, 4, sum(COUNTS))
    joints, others = [joint(row) for row in old], [joint(row) for row in new]
    assert SEVERAL.log_prob(doubles(old), torch.tensor(SEVERAL_ACTIONS)).tolist() == pytest.approx(
        [math.log(row[tuple(chosen)]) for row, chosen in zip(joints, SEVERAL_ACTIONS, strict=True)],
        rel=1e-12,
    )
    assert SEVERAL.entropy(doubles(old)).tolist() == pytest.approx(
        [-math.fsum(p * math.log(p) for p in row.values()) for row in joints], rel=1e-12
    )
    assert SEVERAL.kl(doubles(old), doubles(new)).tolist() == pytest.approx(
        [
            math.fsum(p * math.log(p / other[chosen]) for chosen, p in row.items())
            for row, other in zip(joints, others, strict=True)
        ],
        rel=1e-12,
    )


@pytest.mark.parametrize("of_kl", [0.0, 0.3])
def test_slopes_of_several_choices_are_autograds(of_kl: float) -> None:
    outputs, old = (
        doubles(logits(8, 4, sum(COUNTS))).requires_grad_(),
        doubles(logits(9, 4, sum(COUNTS))),
    )
    actions, weights = torch.tensor(SEVERAL_ACTIONS), doubles([0.5, -2.0, 1.0, 3.0])
    (
        weights * SEVERAL.log_prob(outputs, actions)
        - 0.7 * SEVERAL.entropy(outputs)
        + of_kl * SEVERAL.kl(old, outputs)
    ).sum().backward()
    found = SEVERAL.slopes(outputs.detach(), actions, old, weights, -0.7, of_kl)
    torch.testing.assert_close(found, outputs.grad)


def test_curvature_of_several_choices_is_that_of_the_joint_distribution() -> None:
    """The detector differentiates twice. By hand, the Hessian of log π is −(diag p − p pᵀ) in each choice's logits."""
    row = doubles(logits(10, 1, sum(COUNTS)))
    hessian = torch.autograd.functional.hessian(
        lambda outputs: SEVERAL.log_prob(outputs, torch.tensor(SEVERAL_ACTIONS[:1])).sum(), row
    )[0, :, 0, :]
    blocks = [torch.softmax(part, 0) for part in row[0].split(COUNTS)]
    torch.testing.assert_close(
        hessian, -torch.block_diag(*(torch.diag(p) - torch.outer(p, p) for p in blocks))
    )


def test_one_choice_of_several_is_the_categorical() -> None:
    one, rows, actions = Categoricals([4]), doubles(logits(11)), torch.tensor([0, 1, 2, 3, 3, 0])
    torch.testing.assert_close(
        one.log_prob(rows, actions[:, None]), CATEGORICAL.log_prob(rows, actions)
    )
    torch.testing.assert_close(one.entropy(rows), CATEGORICAL.entropy(rows))


def test_the_spaces_choose_the_distribution() -> None:
    assert isinstance(make_distribution(Spaces((3,), action_size=2)), Gaussian)
    assert isinstance(make_distribution(Spaces((3,), action_count=2)), Categorical)
    assert isinstance(make_distribution(Spaces((3,), action_counts=(2, 3))), Categoricals)
    for spaces in (
        Spaces((3,), action_size=2),
        Spaces((3,), action_count=2),
        Spaces((3,), action_counts=(2, 3)),
    ):
        assert make_distribution(spaces).name == spaces.distribution
