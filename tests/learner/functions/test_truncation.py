"""The truncated loss: truncated samples have no gradient, and the others have autograd's."""

from __future__ import annotations

import numpy as np
import torch

from runtime.learner.functions.gradients import compute
from tests.learner.learning import VECTORS, make, roll, scramble


def test_what_is_cut_has_no_slope_and_the_rest_that_of_autograd() -> None:
    learner = make(clip=0.2)
    stream = torch.Generator().manual_seed(0)
    log_ratios, caps = (0.5 * torch.randn(512, generator=stream) for _ in range(2))
    caps[:64] = log_ratios[:64]
    advantages, old = torch.randn(512, generator=stream), torch.randn(512, generator=stream)
    surrogate, slopes = learner.surrogate(
        log_ratios + old, {"log_probs": old, "advantages": advantages, "log_caps": caps}
    )
    variable = (log_ratios + old).requires_grad_()
    ratios = torch.exp(variable - old)
    limits = torch.exp(caps)
    cut = torch.where(variable - old <= caps, ratios, limits)
    free, held = cut * advantages, cut.clamp(0.8, 1.2) * advantages
    expected = torch.where(free <= held, free, held)
    expected.sum().backward()
    torch.testing.assert_close(surrogate, expected.detach())
    torch.testing.assert_close(slopes, variable.grad)
    assert (slopes[(variable - old).detach() > caps] == 0).all()
    assert 0 < (slopes == 0).sum() < 512


def test_the_samples_that_are_cut_are_those_at_which_the_pulled_policy_exceeds_the_least_of_all() -> (
    None
):
    learner, acting = make(), make()
    samples = acting.samples(roll(acting.weights(), VECTORS)).arrays
    policies, log_probs = {}, {}
    for version in (1, 2, 3):
        scramble(acting.policy, 0.3, seed=version)
        policies[version] = acting.snapshot()
        outputs = torch.from_numpy(acting.evaluate(acting.policy, samples.observations))
        log_probs[version] = acting.distribution.log_prob(
            outputs, torch.from_numpy(samples.actions)
        ).numpy()
    least = np.minimum.reduce(list(log_probs.values()))
    counts = {}
    for pulled in policies:
        sent = compute(
            learner,
            samples,
            np.arange(len(samples.advantages)),
            policies,
            pulled=pulled,
            published=[1, 2, 3],
            truncation=1e-30,
        )
        counts[pulled] = sent.values["truncated"]
        assert sent.values["truncated"] == (log_probs[pulled] > least).sum()
    assert len(set(counts.values())) > 1
