"""The actors' numpy policy equals the learner's torch policy."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch

from lambda_actor.errors import SchemaError
from lambda_actor.frames import floats
from lambda_actor.policy import Policy, default_network
from lambda_actor.spaces import Spaces
from runtime.learner.normaliser import moments_of
from tests.environments import policy_arrays
from tests.learner.learning import COMBINED, make, random_observations, scramble

COUNT = 20
SPACES = {
    "continuous": Spaces((17,), action_size=6),
    "discrete": Spaces((17,), action_count=5),
    "several choices": Spaces((17,), action_counts=(3, 1, 4)),
    "pixels": Spaces((3, 84, 84), (1, 84, 84), 3, action_count=5),
    "a wide picture": Spaces((2, 17, 50), (2, 17, 50), 1, action_size=6),
    "signs": COMBINED,
    "signs and numbers": replace(COMBINED, beside_shape=(1, 31, 31), action_count=0, action_size=2),
}


def observations_of(spaces: Spaces) -> np.ndarray:
    """Returns vectors with an outlier, or noisy pictures, some with numbers."""
    random = np.random.default_rng(5)
    if spaces.is_pixels:
        return random_observations(random, spaces, (COUNT,))
    drawn = 2.0 * random.standard_normal((COUNT, *spaces.observation_shape)) ** 3
    drawn[0, 0] = 500.0
    return drawn.astype(np.float32)


@pytest.mark.parametrize(
    ("name", "network", "is_normalised"),
    [
        ("continuous", "mlp", True),
        ("continuous", "mlp relu 8", False),
        ("discrete", "mlp", False),
        ("several choices", "mlp", True),
        ("pixels", "conv", False),
        ("pixels", "mlp relu 9 8 7", False),
        ("a wide picture", "conv", False),
        ("signs", "combined relu 12", False),
        ("signs", "combined", True),
        ("signs and numbers", "combined tanh 20 10", True),
    ],
)
def test_it_acts_as_the_learners_torch_policy(name: str, network: str, is_normalised: bool) -> None:
    """After a round trip through the message, with steep weights and active moments."""
    spaces = SPACES[name]
    learner = make("ppo", spaces, network, normalize_observations=is_normalised)
    scramble(learner.policy, 0.05)
    observations = observations_of(spaces)
    if is_normalised:
        learner.moments.add(*moments_of(floats(observations[1:], spaces)))
    policy = Policy.from_bytes(learner.weights())
    policy.check(spaces)
    before = observations.copy()
    outputs = np.array([policy.outputs(observation) for observation in observations])
    assert (outputs.dtype, outputs.shape) == (np.float32, (COUNT, spaces.output_size))
    expected = learner.evaluate(learner.policy, observations)
    np.testing.assert_allclose(outputs, expected[:, : spaces.output_size], rtol=1e-6, atol=1e-4)
    assert outputs.std(axis=0).min() > 2e-3, "outputs must depend on the observation"
    noise = policy.noise(np.random.default_rng(3), COUNT)
    actions = np.array([policy.sample(*drawn) for drawn in zip(outputs, noise, strict=True)])
    log_probs = learner.distribution.log_prob(*map(torch.from_numpy, (expected, actions))).numpy()
    found = policy.log_probs(outputs, actions, noise)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, log_probs, rtol=1e-5, atol=1e-4)
    # Buffers of other numbers of observations leave nothing behind.
    for count in (1, COUNT, 3):
        together = policy.outputs_together(list(observations[:count]))
        kept = together.copy()
        policy.outputs_together(list(observations[-count:]))
        assert together.tobytes() == kept.tobytes() == outputs[:count].tobytes()
        sampled = policy.sample_together(together, noise[:count])
        np.testing.assert_array_equal(sampled, actions[:count], strict=True)
    np.testing.assert_array_equal(observations, before)


def test_several_choices_are_drawn_independently_as_often_as_they_are_likely() -> None:
    policy = Policy(policy_arrays(spaces=SPACES["several choices"]))
    parts = [np.array([0.5, 0.1, 0.4]), np.array([1.0]), np.array([0.25, 1e-9, 0.7, 0.05])]
    logits = np.float32(np.concatenate([np.log(part) - 9 * len(part) for part in parts]))
    noise = policy.noise(np.random.default_rng(3), 20_000)
    actions = np.array(policy.sample_together(np.tile(logits, (20_000, 1)), noise))
    joint = np.zeros((3, 1, 4))
    np.add.at(joint, tuple(actions.T), 1 / 20_000)
    np.testing.assert_allclose(joint, np.einsum("a,b,c->abc", *parts), atol=0.012)


def test_the_best_action_of_several_choices_is_the_likeliest() -> None:
    spaces = SPACES["several choices"]
    policy = Policy(policy_arrays(spaces=spaces))
    observation = observations_of(spaces)[0]
    every = np.array(list(np.ndindex(spaces.choice_counts)))
    outputs = np.tile(policy.outputs(observation), (len(every), 1))
    likely = policy.log_probs(outputs, every, np.zeros(every.shape))
    np.testing.assert_array_equal(policy.best_action(observation), every[likely.argmax()])


@pytest.mark.parametrize(("of", "environment"), list(permutations(SPACES, 2)))
def test_a_policy_of_other_spaces_is_refused(of: str, environment: str) -> None:
    policy = Policy(policy_arrays(spaces=SPACES[of], network=default_network(SPACES[of])))
    policy.check(SPACES[of])
    with pytest.raises(SchemaError, match="WEIGHTS"):
        policy.check(SPACES[environment])
