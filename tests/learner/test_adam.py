"""Adam against torch's own."""

from __future__ import annotations

import pytest
import torch

from runtime.learner.trained_network import Adam

pytestmark = pytest.mark.usefixtures("one_thread")


def test_it_is_torchs_own_bit_for_bit() -> None:
    torch.manual_seed(0)
    ours, gradient = torch.randn(20), torch.zeros(20)
    theirs = torch.nn.Parameter(ours.clone())
    optimizer = Adam(ours, gradient, learning_rate=1.0)
    oracle = torch.optim.Adam([theirs], lr=1.0, eps=1e-5, fused=True)
    for step in range(20):
        theirs.grad = gradient.normal_().clone()
        optimizer.learning_rate = oracle.param_groups[0]["lr"] = 0.1 / (step + 1)
        optimizer.step()
        oracle.step()
        assert torch.equal(ours, theirs)
