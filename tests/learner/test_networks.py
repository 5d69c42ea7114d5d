"""The networks against plain Python, and their weights in the actors' numpy inference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from lambda_actor.policy import Policy
from lambda_actor.spaces import Spaces
from runtime.learner import make_learner
from runtime.learner.networks import PolicyNetwork, ValueNetwork, layer_arrays
from runtime.learner.normaliser import moments_of
from runtime.learner.spec import spec_of, spec_values
from tests.learner import learning
from tests.learner.learning import (
    COMBINED,
    PIXELS,
    VECTORS,
    make,
    random_observations,
    roll,
    scramble,
)

pytestmark = pytest.mark.usefixtures("one_thread")
ATARI = Spaces((3, 84, 84), frame_shape=(1, 84, 84), frame_stack=3, action_count=6)


def test_the_convolutions_have_the_papers_shapes() -> None:
    """84 → 21 → 11 → 1. Paper: Nitro §8.1 (16 filters of 8×8, 32 of 4×4, 256 of 11×11)."""
    network = PolicyNetwork(ATARI, "conv")
    shapes = [list(array.shape) for array in layer_arrays(network).values()]
    assert shapes[::2] == [[16, 3, 8, 8], [32, 16, 4, 4], [256, 32, 11, 11], [6, 256]]


@pytest.mark.parametrize(
    ("spaces", "kind"),
    [
        (VECTORS, "mlp"),
        (PIXELS, "mlp"),
        (ATARI, "conv"),
        (Spaces((4, 33, 40), frame_shape=(4, 33, 40), frame_stack=1, action_size=2), "conv"),
        (COMBINED, "combined"),
        (COMBINED, "combined relu 40"),
        (
            replace(COMBINED, beside_shape=(1, 31, 31), action_count=0, action_size=2),
            "combined tanh 20 10",
        ),
    ],
)
def test_actors_compute_the_same(spaces: Spaces, kind: str) -> None:
    """Within 1e-4 after a round trip through the message, with steep weights and active moments."""
    learner = make("ppo", spaces, kind)
    scramble(learner.policy, 0.02)
    random = np.random.default_rng(0)
    observations = random.normal(2.0, 5.0, (8, *spaces.observation_shape)).astype(np.float32)
    if spaces.is_combined:
        observations = random_observations(random, spaces, (8,))
        learner.update(roll(learner.weights(), spaces), progress=0.0)
        assert (learner.moments.mean[1:] != 0.0).all() and learner.moments.mean[0] == 0.0
    elif spaces.is_pixels:
        observations = random.integers(0, 256, (8, *spaces.observation_shape), dtype=np.uint8)
    else:
        learner.moments.add(*moments_of(observations))
    expected = learner.evaluate(learner.policy, observations)
    policy = Policy.from_bytes(learner.weights())
    policy.check(spaces)
    actual = np.stack([policy.outputs(observation) for observation in observations])
    np.testing.assert_allclose(actual, expected[:, : spaces.output_size], atol=1e-4)
    assert float(np.abs(expected[:, : spaces.output_size]).max()) > 0.05
    noise = policy.noise(random, 8)
    actions = np.array(
        [policy.sample(output, row) for output, row in zip(actual, noise, strict=True)]
    )
    log_probs = learner.distribution.log_prob(torch.from_numpy(expected), torch.from_numpy(actions))
    np.testing.assert_allclose(policy.log_probs(actual, actions, noise), log_probs, atol=1e-4)


@torch.no_grad()
def test_networks_begin_orthogonal_and_a_new_policy_hardly_looks() -> None:
    layers = PolicyNetwork(VECTORS).layers
    shapes = [tuple(layers[index].weight.shape) for index in (0, 2, 4)]
    assert shapes == [(256, 3), (256, 256), (2, 256)], "paper: Nitro §8.1"
    for index, gain in ((0, 2.0), (2, 2.0), (4, 1e-4)):
        weight = layers[index].weight if index < 4 else layers[index].weight.T
        torch.testing.assert_close(
            weight.T @ weight, gain * torch.eye(weight.shape[1]), atol=1e-5, rtol=0.0
        )
    assert float(ValueNetwork(VECTORS).layers[4].weight.norm()) == pytest.approx(1.0, rel=1e-5)


def test_continuous_actions_begin_with_the_initial_deviation_in_every_process() -> None:
    spec = replace(learning.spec_of(), initial_std=0.5)
    for one in (spec, spec_of(spec_values(spec))):
        policy = make_learner(one, device="cpu").policy
        assert torch.equal(torch.exp(policy.log_std), torch.full((VECTORS.action_size,), 0.5))
