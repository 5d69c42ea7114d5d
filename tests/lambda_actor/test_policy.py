"""The actors' numpy policy equals the learner's torch policy."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from lambda_actor import wire
from lambda_actor.errors import SchemaError
from lambda_actor.policy import Architecture, Policy, parameter_shapes
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
}
NETWORKS = [
    (name, network)
    for name, spaces in SPACES.items()
    for network in ("mlp", "conv")
    if network == "mlp" or spaces.is_pixels
]


def observations_of(spaces: Spaces, count: int, seed: int) -> np.ndarray:
    """Returns vectors with a separate offset and scale per feature, or pictures with edges and noise."""
    random = np.random.default_rng(seed)
    if not spaces.is_pixels:
        return (OFFSETS + SCALES * random.standard_normal((count, VECTOR))).astype(np.float32)
    pictures = random.integers(256, size=(count, *spaces.observation_shape)).astype(np.uint8)
    pictures[::2, :, : spaces.observation_shape[1] // 2] = 255
    pictures[1::4] //= 64
    return pictures


@cache
def torch_policy(spaces: Spaces, network: str) -> PolicyNetwork:
    """Returns a network far from its initial weights, the same each time."""
    torch.manual_seed(1)
    # Orthogonal weights for all pixels would take seconds.
    policy = PolicyNetwork(
        spaces, f"{network} tanh 24 16" if spaces.is_pixels and network != "conv" else network
    )
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
def test_outputs_are_equal(name: str, network: str) -> None:
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
    assert expected.std(axis=0).min() > 0.01, "outputs must depend on the observation"


@pytest.mark.parametrize(
    "network", ["mlp relu 24 16", "mlp tanh 40", "mlp relu 8", "mlp tanh 9 8 7 6"]
)
@pytest.mark.parametrize("name", ["vectors, continuous", "pixels, discrete"])
def test_outputs_of_other_sizes_and_activations_are_equal(name: str, network: str) -> None:
    spaces = SPACES[name]
    torch.manual_seed(1)
    learned = PolicyNetwork(spaces, network)
    # The last layer begins so small that outputs hardly depend on the observation.
    learned.layers[-1].weight.data *= 30.0
    assert parameter_shapes(spaces, network) == {
        key: tuple(array.shape) for key, array in layer_arrays(learned).items()
    }
    policy = Policy.from_bytes(message(learned, spaces, network))
    policy.check(spaces)
    observations = observations_of(spaces, 20, seed=5)
    expected = torch_outputs(learned, observations)
    np.testing.assert_allclose(
        [policy.outputs(one) for one in observations], expected, rtol=0.0, atol=1e-4
    )
    assert expected.std(axis=0).min() > 2e-3, "outputs must depend on the observation"
    other = (
        network.replace("relu", "tanh") if "relu" in network else network.replace("tanh", "relu")
    )
    mistaken = Policy.from_bytes(message(learned, spaces, other))
    assert np.abs(mistaken.outputs(observations[0]) - expected[0]).max() > 1e-3, (
        "the activation counts"
    )


@pytest.mark.parametrize(
    "text", ["mlp", "conv", "mlp relu 256 256", "mlp tanh 64", "mlp tanh 1 2 3"]
)
def test_an_architecture_is_a_text(text: str) -> None:
    assert str(Architecture.parse(text)) == text


@pytest.mark.parametrize(
    "text", ["", "mlp 64", "mlp relu", "mlp relu 0", "mlp gelu 64", "conv relu 64", "mlp  relu 6"]
)
def test_other_texts_are_no_architectures(text: str) -> None:
    with pytest.raises(SchemaError, match="known: mlp"):
        Architecture.parse(text)


@pytest.mark.parametrize("name", ["vectors, continuous", "vectors, discrete"])
def test_normalised_outputs_are_equal_and_clipped_where_torchs_are(name: str) -> None:
    spaces = SPACES[name]
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


@pytest.mark.parametrize(("name", "network"), NETWORKS)
def test_inference_leaves_the_observation_and_what_it_gave_before_alone(
    name: str, network: str
) -> None:
    spaces = SPACES[name]
    policy = Policy.from_bytes(message(torch_policy(spaces, network), spaces, network))
    observation, other = observations_of(spaces, 2, seed=9)
    before = observation.copy()
    first = policy.outputs(observation)
    kept = first.copy()
    policy.outputs(other)
    np.testing.assert_array_equal(observation, before)
    np.testing.assert_array_equal(first, kept)
    np.testing.assert_array_equal(
        policy.outputs(observation), kept, "nothing stays behind in a buffer"
    )


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


def test_categorical_log_probabilities_are_torchs() -> None:
    spaces = SPACES["vectors, discrete"]
    policy = Policy(policy_arrays(spaces=spaces))
    logits = np.random.default_rng(1).normal(0.0, 5.0, (50, CHOICES)).astype(np.float32)
    actions = np.arange(50) % CHOICES
    expected = torch.distributions.Categorical(logits=torch.from_numpy(logits)).log_prob(
        torch.from_numpy(actions)
    )
    found = policy.log_probs(logits, actions, np.zeros(50))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected.numpy(), rtol=0.0, atol=1e-5)


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


# Weights of no policy, or of another environment


@pytest.mark.parametrize(
    ("of", "network", "environment"),
    [
        (of, network, environment)
        for of, network in NETWORKS
        for environment in SPACES
        if environment != of
    ],
)
def test_a_policy_of_other_spaces_is_refused(of: str, network: str, environment: str) -> None:
    policy = Policy(policy_arrays(spaces=SPACES[of], network=network, hidden=8))
    policy.check(SPACES[of])
    with pytest.raises(SchemaError, match="WEIGHTS"):
        policy.check(SPACES[environment])


def test_one_choice_is_not_several_with_as_many_values() -> None:
    policy = Policy(policy_arrays(spaces=Spaces((VECTOR,), action_counts=(2, 3))))
    with pytest.raises(SchemaError, match="'categorical 2 3'; .* need 'categorical'"):
        policy.check(Spaces((VECTOR,), action_count=5))
