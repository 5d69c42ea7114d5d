"""Adam against torch's own."""

from __future__ import annotations

import pytest
import torch

from runtime.learner.adam import Adam

pytestmark = pytest.mark.usefixtures("one_thread")


def test_it_is_torchs_own_bit_for_bit_also_after_a_resumption() -> None:
    torch.manual_seed(0)
    ours = [torch.nn.Parameter(torch.randn(shape)) for shape in ((5, 3), (4,), ())]
    theirs = [torch.nn.Parameter(one.detach().clone()) for one in ours]
    optimizer = Adam(ours, learning_rate=1.0, epsilon=1e-5)
    oracle = torch.optim.Adam(theirs, lr=1.0, eps=1e-5, fused=True)
    for step in range(20):
        if step == 10:
            state, optimizer = optimizer.get_state(), Adam(ours, learning_rate=1.0, epsilon=1e-5)
            optimizer.set_state(state)
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn(one.shape)
            other.grad = one.grad.clone()
        if step == 5:
            ours[1].grad = theirs[1].grad = None
        optimizer.learning_rate = oracle.param_groups[0]["lr"] = 0.1 / (step + 1)
        optimizer.step()
        oracle.step()
        assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))
    optimizer.zero_grad()
    assert [one.grad for one in ours] == [None] * 3
