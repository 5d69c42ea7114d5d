"""The actors' numpy policy equals the learner's torch policy."""

from __future__ import annotations

from functools import cache
from itertools import permutations

import numpy as np
import pytest
import torch

from lambda_actor import wire
from lambda_actor.errors import SchemaError
from lambda_actor.frames import combined
from lambda_actor.policy import Policy, default_network
from lambda_actor.spaces import Spaces
from runtime.learner.distributions import Categoricals
from runtime.learner.networks import PolicyNetwork, layer_arrays
from tests.environments import policy_arrays

VECTOR, ACTIONS, CHOICES, COUNTS = 17, 6, 5, (3, 1, 4)
CLIP = 3.0
OFFSETS = np.linspace(-4.0, 4.0, VECTOR)
SCALES = np.geomspace(0.1, 20.0, VECTOR)
SPACES = {
    "vectors, continuous": Spaces((VECTOR,), action_size=ACTIONS),
    "vectors, discrete": Spaces((VECTOR,), action_count=CHOICES),
    "vectors, several choices": Spaces((VECTOR,), action_counts=COUNTS),
    "pixels, continuous": Spaces((3, 84, 84), (1, 84, 84), 3, action_size=ACTIONS),
    "pixels, discrete": Spaces((3, 84, 84), (1, 84, 84), 3, action_count=CHOICES),
    "a wide picture": Spaces((2, 17, 50), (2, 17, 50), 1, action_count=CHOICES),
    "signs": Spaces((1, 1, 132), (1, 1, 132), beside_shape=(1, 4, 32), action_count=CHOICES),
}
NETWORKS = [
    ("vectors, continuous", "mlp"),
    ("vectors, continuous", "mlp relu 8"),
    ("vectors, discrete", "mlp"),
    ("vectors, several choices", "mlp"),
    ("pixels, continuous", "conv"),
    ("pixels, discrete", "mlp relu 9 8 7 6"),
    ("a wide picture", "conv"),
    ("signs", "combined relu 12"),
]


def observations_of(spaces: Spaces, count: int, seed: int) -> np.ndarray:
    """Returns vectors with a separate offset and scale per feature, or pictures with edges and noise."""
    random = np.random.default_rng(seed)
    if spaces.is_combined:
        pictures = random.integers(256, size=(count, *spaces.beside_shape), dtype=np.uint8)
        vectors = random.normal(0.0, 2.0, (count, spaces.vector_size)).astype(np.float32)
        return np.stack([combined(*one) for one in zip(pictures, vectors, strict=True)])
    if not spaces.is_pixels:
        return (OFFSETS + SCALES * random.standard_normal((count, VECTOR))).astype(np.float32)
    pictures = random.integers(256, size=(count, *spaces.observation_shape)).astype(np.uint8)
    pictures[::2, :, : spaces.observation_shape[1] // 2] = 255
    pictures[1::4] //= 64
    return pictures


def assert_together_is_alone(policy: Policy, observations: np.ndarray, outputs: np.ndarray) -> None:
    """Checks bits, and that buffers of other numbers of observations leave nothing behind."""
    noise = policy.noise(np.random.default_rng(3), len(outputs))
    before = observations.copy()
    for count in (1, len(outputs), 3):
        found = policy.outputs_together(list(observations[:count]))
        kept = found.copy()
        policy.outputs_together(list(observations[-count:]))
        assert found.tobytes() == kept.tobytes() == outputs[:count].tobytes()
        actions = policy.sample_together(found, noise[:count])
        for action, *drawn in zip(actions, found, noise, strict=False):
            np.testing.assert_array_equal(action, policy.sample(*drawn), strict=True)
    np.testing.assert_array_equal(observations, before)


@cache
def torch_policy(spaces: Spaces, network: str) -> PolicyNetwork:
    """Returns a network far from its initial weights, the same each time."""
    torch.manual_seed(1)
    policy = PolicyNetwork(spaces, network)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape))
    return policy


def message(
    policy: PolicyNetwork, spaces: Spaces, network: str, *, normalize: bool = False
) -> bytes:
    moments = VECTOR if normalize else 0
    log_std = np.zeros(0, np.float32) if policy.log_std is None else policy.log_std.detach().numpy()
    return wire.encode(
        wire.Kind.WEIGHTS,
        {
            "policy_version": np.int64(7),
            "network": wire.text_field(network),
            "distribution": wire.text_field(spaces.distribution),
            "log_std": log_std,
            "observation_mean": OFFSETS[:moments].astype(np.float32),
            "observation_std": SCALES[:moments].astype(np.float32),
            "observation_clip": np.float32(CLIP),
            **{name: array.detach().numpy() for name, array in layer_arrays(policy).items()},
        },
    )


def torch_outputs(
    policy: PolicyNetwork, observations: np.ndarray, *, normalize: bool = False
) -> np.ndarray:
    """Returns means or logits, ``[N, …]``."""
    if normalize:
        observations = np.clip((observations - OFFSETS) / SCALES, -CLIP, CLIP).astype(np.float32)
    with torch.no_grad():
        found = policy(torch.from_numpy(observations)).numpy()
    return found if policy.log_std is None else found[:, : found.shape[1] // 2]


# Networks


@pytest.mark.parametrize(("name", "network"), NETWORKS)
def test_outputs_are_torchs_alone_and_together(name: str, network: str) -> None:
    spaces = SPACES[name]
    learned = torch_policy(spaces, network)
    policy = Policy.from_bytes(message(learned, spaces, network))
    policy.check(spaces)
    observations = observations_of(spaces, 20, seed=5)
    expected = torch_outputs(learned, observations)
    outputs = np.array([policy.outputs(observation) for observation in observations])
    assert (outputs.dtype, outputs.shape) == (np.float32, (20, spaces.output_size))
    np.testing.assert_allclose(outputs, expected, rtol=0.0, atol=1e-4)
    assert np.abs(expected).mean() > 0.05, "outputs near 0 would always be equal"
    assert expected.std(axis=0).min() > 2e-3, "outputs must depend on the observation"
    assert_together_is_alone(policy, observations, outputs)


def test_normalised_outputs_are_equal_and_clipped_where_torchs_are() -> None:
    spaces = SPACES["vectors, continuous"]
    learned = torch_policy(spaces, "mlp")
    policy = Policy.from_bytes(message(learned, spaces, "mlp", normalize=True))
    policy.check(spaces)
    observations = observations_of(spaces, 100, seed=6)
    observations[0], observations[1] = OFFSETS + 50.0 * SCALES, OFFSETS + 1e6 * SCALES
    outputs = np.array([policy.outputs(observation) for observation in observations])
    np.testing.assert_allclose(
        outputs, torch_outputs(learned, observations, normalize=True), rtol=0.0, atol=1e-4
    )
    np.testing.assert_array_equal(outputs[0], outputs[1])
    assert np.abs(outputs[0] - outputs[2]).max() > 0.01
    assert_together_is_alone(policy, observations, outputs)


# Distributions


def test_gaussian_actions_and_their_log_probabilities_are_torchs() -> None:
    spaces = SPACES["vectors, continuous"]
    learned = torch_policy(spaces, "mlp")
    policy = Policy.from_bytes(message(learned, spaces, "mlp"))
    observations = observations_of(spaces, 200, seed=6)
    noise = policy.noise(np.random.default_rng(7), 200)
    outputs = np.array([policy.outputs(observation) for observation in observations])
    actions = np.array([policy.sample(*row) for row in zip(outputs, noise, strict=True)])
    log_std = learned.log_std.detach()
    expected = torch.distributions.Independent(
        torch.distributions.Normal(
            torch.from_numpy(torch_outputs(learned, observations)), log_std.exp()
        ),
        1,
    ).log_prob(torch.from_numpy(actions))
    log_probs = policy.log_probs(outputs, actions, noise)
    assert log_probs.dtype == np.float32
    np.testing.assert_allclose(log_probs, expected.numpy(), rtol=0.0, atol=1e-4)
    np.testing.assert_allclose((actions - outputs).std(0), log_std.exp(), rtol=0.25)
    np.testing.assert_array_equal(policy.best_action(observations[0]), outputs[0])


def test_several_choices_are_drawn_independently_as_often_as_they_are_likely() -> None:
    policy = Policy(policy_arrays(spaces=SPACES["vectors, several choices"]))
    parts = [np.array([0.5, 0.1, 0.4]), np.array([1.0]), np.array([0.25, 0.0, 0.7, 0.05])]
    with np.errstate(divide="ignore"):
        logits = np.concatenate(
            [np.log(part) + shift for part, shift in zip(parts, (0, 9, -50), strict=True)]
        )
    noise = policy.noise(np.random.default_rng(3), 20_000)
    actions = np.array([policy.sample(logits.astype(np.float32), row) for row in noise])
    assert (actions.shape, actions.dtype) == ((20_000, 3), np.int64)
    joint = np.zeros(COUNTS)
    np.add.at(joint, tuple(actions.T), 1 / 20_000)
    np.testing.assert_allclose(joint, np.einsum("a,b,c->abc", *parts), atol=0.012)
    assert (joint[:, :, 1] == 0).all()


def test_log_probabilities_and_best_of_several_choices_are_torchs() -> None:
    policy = Policy(policy_arrays(spaces=SPACES["vectors, several choices"]))
    random = np.random.default_rng(1)
    logits, actions = (
        random.normal(0.0, 5.0, (50, 8)).astype(np.float32),
        random.integers(COUNTS, size=(50, 3)),
    )
    torchs = Categoricals(COUNTS).log_prob(torch.from_numpy(logits), torch.from_numpy(actions))
    found = policy.log_probs(logits, actions, np.zeros((50, 3)))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, torchs.numpy(), rtol=0.0, atol=1e-5)
    observation = observations_of(SPACES["vectors, several choices"], 1, seed=2)[0]
    best = policy.best_action(observation)
    every = np.array(list(np.ndindex(COUNTS)))
    likeliest = policy.log_probs(
        np.tile(policy.outputs(observation), (len(every), 1)), every, np.zeros(every.shape)
    )
    assert best.tolist() == every[likeliest.argmax()].tolist()


# Weights of another environment


@pytest.mark.parametrize(("of", "environment"), list(permutations(SPACES, 2)))
def test_a_policy_of_other_spaces_is_refused(of: str, environment: str) -> None:
    policy = Policy(policy_arrays(spaces=SPACES[of], network=default_network(SPACES[of])))
    policy.check(SPACES[of])
    with pytest.raises(SchemaError, match="WEIGHTS"):
        policy.check(SPACES[environment])
