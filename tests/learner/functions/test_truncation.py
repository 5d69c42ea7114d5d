"""The truncated loss: truncated samples have no gradient, and the others have autograd's."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from lambda_actor.policy import FORBIDDEN
from lambda_actor.spaces import Spaces
from runtime.learner.functions.gradients import compute
from tests.learner.learning import MASKED, VECTORS, make, roll, scramble


@pytest.mark.parametrize("spaces", [VECTORS, MASKED])
def test_the_samples_that_are_cut_are_those_at_which_the_pulled_policy_exceeds_the_least_of_all(
    spaces: Spaces,
) -> None:
    learner, acting = make(spaces=spaces), make(spaces=spaces)
    samples = acting.samples(roll(acting.weights(), spaces)).arrays
    policies, log_probs = {}, {}
    for version in (1, 2, 3):
        scramble(acting.policy, 0.3, seed=version)
        policies[version] = acting.snapshot()
        outputs = torch.from_numpy(acting.evaluate(acting.policy, samples.observations))
        if spaces.has_action_mask:
            outputs = outputs.where(torch.from_numpy(samples.old_outputs > FORBIDDEN), -1e9)
        log_probs[version] = acting.distribution.log_prob(
            outputs, torch.from_numpy(samples.actions)
        ).numpy()
    least = np.minimum.reduce(list(log_probs.values()))
    counts = set()
    for truncation, pulled in itertools.product((1e-30, 1.0), policies):
        sent = compute(
            learner,
            samples,
            np.arange(len(samples.advantages)),
            policies,
            pulled=pulled,
            published=[1, 2, 3],
            truncation=truncation,
        )
        caps = np.maximum(least, samples.log_probs + np.log(truncation))
        assert sent.values["truncated"] == (log_probs[pulled] > caps).sum()
        counts.add(sent.values["truncated"])
    assert len(counts) > 2
