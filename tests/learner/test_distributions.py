"""Distributions over actions at extremes; test_actor_critic.py and test_ppo.py compare them with torch's own."""

from __future__ import annotations

import torch

from runtime.learner.distributions import Categorical


def test_an_action_that_is_all_but_impossible_stays_finite() -> None:
    outputs = torch.tensor([[0.0, -200.0]])
    assert float(Categorical().log_prob(outputs, torch.tensor([1]))[0]) == -200.0
    assert float(Categorical().entropy(outputs)[0]) == 0.0
    assert float(Categorical().kl(outputs, -outputs)[0]) == 200.0
