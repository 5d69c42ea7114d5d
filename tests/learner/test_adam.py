"""Adam against torch's own."""

from __future__ import annotations

import pytest
import torch

from runtime.learner.trained_network import Adam
from tests.learner.learning import VECTORS, make, parameters_of, roll

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("epsilon", [1e-5, 1e-8])
def test_it_is_torchs_own_bit_for_bit(epsilon: float) -> None:
    torch.manual_seed(0)
    ours, gradient = torch.randn(20), torch.zeros(20)
    theirs = torch.nn.Parameter(ours.clone())
    optimizer = Adam(ours, gradient, learning_rate=1.0, epsilon=epsilon)
    oracle = torch.optim.Adam([theirs], lr=1.0, eps=epsilon, fused=True)
    for step in range(20):
        theirs.grad = gradient.normal_().clone()
        optimizer.learning_rate = oracle.param_groups[0]["lr"] = 0.1 / (step + 1)
        optimizer.step()
        oracle.step()
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("network", ["mlp", "mlp relu 8"])
def test_a_learner_has_its_epsilon_in_both_networks(network: str) -> None:
    """With ε far above any gradient, steps become tiny."""
    for epsilon, is_tiny in ((1e-5, False), (1e6, True)):
        learner = make(network=network, adam_epsilon=epsilon, entropy_coefficient=0.1)
        before = parameters_of(learner)
        learner.update(roll(learner.weights(), VECTORS), progress=0.0)
        moved = abs(parameters_of(learner) - before)
        for part in (moved[: len(moved) // 2], moved[len(moved) // 2 :]):
            assert (part.max() < 1e-8) == is_tiny
