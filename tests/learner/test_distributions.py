"""Distributions over actions against torch's own, and their slopes against autograd."""

from __future__ import annotations

import pytest
import torch

from lambda_actor.spaces import Spaces
from runtime.learner.distributions import Categorical, make_distribution
from tests.learner.learning import DISCRETE, SEVERAL_MASKED, VECTORS, distribution_of


@pytest.mark.parametrize("spaces", [VECTORS, DISCRETE, SEVERAL_MASKED])
@pytest.mark.parametrize("of_kl", [0.0, 0.3])
def test_equals_torchs_distributions(spaces: Spaces, of_kl: float) -> None:
    ours, stream = make_distribution(spaces), torch.Generator().manual_seed(0)
    size = spaces.output_size * (1 if spaces.is_discrete else 2)
    outputs, old = (torch.randn(6, size, generator=stream).double() for _ in range(2))
    theirs, theirs_old = (distribution_of(spaces, one) for one in (outputs.requires_grad_(), old))
    actions, weights = theirs.sample(), torch.randn(6, generator=stream).double()
    expected = (
        theirs.log_prob(actions),
        theirs.entropy(),
        torch.distributions.kl_divergence(theirs_old, theirs),
    )
    found = (ours.log_prob(outputs, actions), ours.entropy(outputs), ours.kl(old, outputs))
    torch.testing.assert_close(found, expected)
    (weights * expected[0] - 0.7 * expected[1] + of_kl * expected[2]).sum().backward()
    slopes = ours.slopes(outputs.detach(), actions, old, weights, -0.7, of_kl)
    torch.testing.assert_close(slopes, outputs.grad)


def test_an_action_that_is_all_but_impossible_stays_finite() -> None:
    outputs = torch.tensor([[0.0, -200.0]])
    assert float(Categorical().log_prob(outputs, torch.tensor([1]))[0]) == -200.0
    assert float(Categorical().entropy(outputs)[0]) == 0.0
    assert float(Categorical().kl(outputs, -outputs)[0]) == 200.0
