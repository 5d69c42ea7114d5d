"""Gaussians and categorical distributions against plain Python."""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch

from runtime.learner.distributions import Categorical, Categoricals, Gaussian

GAUSSIAN, CATEGORICAL = Gaussian(), Categorical()


def doubles(rows) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


# Discrete actions


def logits(seed: int, samples: int = 6, actions: int = 4) -> list[list[float]]:
    stream = random.Random(seed)
    return [[stream.uniform(-3, 3) for _ in range(actions)] for _ in range(samples)]


def probabilities(row: list[float]) -> list[float]:
    total = math.fsum(math.exp(logit) for logit in row)
    return [math.exp(logit) / total for logit in row]


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
