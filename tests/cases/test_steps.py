"""What an environment's step returns or raises long after the trial has passed."""

from __future__ import annotations

import re
from typing import Any

import gymnasium
import numpy as np
import pytest

from lambda_actor.environments import make_environment
from lambda_actor.errors import UnusableEnvironmentError, describe_error
from lambda_actor.rollout import roll_out
from lambda_actor.trial import random_policy, random_weights
from runtime.training.evaluation import Evaluator


class Late(gymnasium.Env):
    """Returns ``fault`` as its reward, or an observation of that size, or raises, at the ninth step of an episode."""

    observation_space = gymnasium.spaces.Dict(
        {"a": gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)}
    )
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, fault: float | str | None) -> None:
        self.fault = fault

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return {"a": np.zeros(1)}, {}

    def step(self, action):
        self.count += 1
        is_late = self.count == 9
        if is_late and self.fault == "raise":
            raise RuntimeError("the motor is on fire")
        reward: Any = self.fault if is_late and self.fault is None else 1.0
        size = self.fault if is_late and isinstance(self.fault, float) else 0.0
        return {"a": np.full(1, size)}, reward, False, self.count == 12, {}


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (None, r"Late returned a reward None; allowed: .*, at step 9 of its episode"),
        (1e39, r"Late returned an observation with 1e\+39, which is too large for float32.*step 9"),
        ("raise", r"RuntimeError: the motor is on fire, in .*, line \d+, at step 9 of its episode"),
    ],
)
def test_the_step_is_named(fault: float | str | None, words: str) -> None:
    """Gymnasium PR #1621, Ray #7923: in rollouts of fragments that continue episodes, and in evaluations."""
    environment = make_environment(f"{__name__}:Late", options={"kwargs": {"fault": fault}})
    with pytest.raises((UnusableEnvironmentError, RuntimeError)) as caught:
        roll_out(
            environment,
            random_policy(environment),
            fragment_steps=20,
            seed=1,
            round_index=1,
            slot=1,
        )
    assert re.search(words, describe_error(caught.value))
    evaluate = Evaluator(environment, episodes=1, seed=1)
    with pytest.raises(UnusableEnvironmentError, match=words):
        evaluate(random_weights(environment.spaces))
