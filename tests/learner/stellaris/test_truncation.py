"""The truncated loss: what is cut has no gradient, and the rest has autograd's."""

from __future__ import annotations

import torch

from runtime.config.schema import AlgorithmSection
from runtime.learner import LearnerSpec
from runtime.learner.ppo import Ppo
from runtime.learner.ppo_settings import PpoSettings
from tests.learner.learning import VECTORS


def test_what_is_cut_has_no_slope_and_the_rest_that_of_autograd() -> None:
    learner = Ppo(LearnerSpec(AlgorithmSection(ppo=PpoSettings(normalize_observations=True, clip=0.2)), VECTORS))
    stream = torch.Generator().manual_seed(0)
    log_ratios, caps = (0.5 * torch.randn(512, generator=stream) for _ in range(2))
    caps[:64] = log_ratios[:64]
    advantages, old = torch.randn(512, generator=stream), torch.randn(512, generator=stream)
    surrogate, slopes = learner.surrogate(
        log_ratios + old, {"log_probs": old, "advantages": advantages, "log_caps": caps})
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
