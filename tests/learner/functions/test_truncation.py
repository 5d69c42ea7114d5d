"""The truncated loss: truncated samples have no gradient, and the others have autograd's."""

from __future__ import annotations

import numpy as np
import torch

from runtime.learner.functions.gradients import compute
from tests.learner.learning import VECTORS, make, roll, scramble


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
