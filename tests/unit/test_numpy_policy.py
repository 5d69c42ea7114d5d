"""The actors' numpy policy is the learner's torch policy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lambda_actor.policy import GaussianPolicy
from runtime.config import AlgorithmSection, PpoSection
from runtime.interfaces import DetectorSamples
from runtime.learner.networks import gaussian_log_prob
from runtime.learner.ppo import Ppo

OBSERVATION_SIZE, ACTION_SIZE = 17, 6
CLIP = 3.0
OFFSETS = np.linspace(-4.0, 4.0, OBSERVATION_SIZE)
SCALES = np.geomspace(0.1, 20.0, OBSERVATION_SIZE)


def observations_like_training(count: int, seed: int) -> np.ndarray:
    """float32 ``[count, O]``, each feature at an offset and a scale of its own."""
    normal = np.random.default_rng(seed).standard_normal((count, OBSERVATION_SIZE))
    return (OFFSETS + SCALES * normal).astype(np.float32)


def make_learner(*, normalize: bool, perturbed: bool = True) -> Ppo:
    """A learner in the middle of its training: moments of two batches, weights far from their start."""
    ppo = PpoSection(normalize_observations=normalize, observation_clip=CLIP)
    learner = Ppo(OBSERVATION_SIZE, ACTION_SIZE, AlgorithmSection(ppo=ppo), seed=1)
    if normalize:
        learner.moments.merge(observations_like_training(300, seed=2))
        learner.moments.merge(observations_like_training(100, seed=3))
    learner.policy_version = 7
    if perturbed:
        generator = torch.Generator().manual_seed(4)
        with torch.no_grad():
            for parameter in learner.policy.parameters():
                parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    return learner


def torch_gaussian(learner: Ppo, observations: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Means and log σ of the learner's own network on raw observations, ``[N, A]`` each."""
    count = len(observations)
    nothing = np.zeros(count, np.float32)
    actions = np.zeros((count, ACTION_SIZE), np.float32)
    problem = learner.curvature_problem("log_prob", DetectorSamples(
        observations=observations, actions=actions, log_probs=nothing, advantages=nothing, value_targets=nothing,
        old_means=actions, old_log_stds=actions[0]))
    with torch.no_grad():
        means, log_stds = problem.module(problem.inputs).chunk(2, dim=-1)
    return means, log_stds


def numpy_means(policy: GaussianPolicy, observations: np.ndarray) -> np.ndarray:
    return np.array([policy.mean_action(observation) for observation in observations])


@pytest.mark.parametrize("normalize", [True, False], ids=["normalised", "raw"])
@pytest.mark.parametrize("perturbed", [True, False], ids=["trained", "fresh"])
def test_mean_actions_are_equal(normalize: bool, perturbed: bool) -> None:
    learner = make_learner(normalize=normalize, perturbed=perturbed)
    policy = GaussianPolicy.from_bytes(learner.weights())
    observations = observations_like_training(200, seed=5)
    expected = torch_gaussian(learner, observations)[0].numpy()
    means = numpy_means(policy, observations)
    assert means.dtype == np.float32
    np.testing.assert_allclose(means, expected, rtol=0.0, atol=1e-5)
    if perturbed:
        assert np.abs(expected).mean() > 0.1, "outputs near 0 would be equal whatever is computed"
        assert expected.std(axis=0).min() > 0.01, "outputs must depend on the observation"


@pytest.mark.parametrize("normalize", [True, False], ids=["normalised", "raw"])
def test_log_probs_of_sampled_actions_are_equal(normalize: bool) -> None:
    learner = make_learner(normalize=normalize)
    policy = GaussianPolicy.from_bytes(learner.weights())
    observations = observations_like_training(200, seed=6)
    noise = np.random.default_rng(7).standard_normal((200, ACTION_SIZE), dtype=np.float32)
    actions = numpy_means(policy, observations) + policy.std * noise
    log_probs = policy.log_probs(noise)
    expected = gaussian_log_prob(*torch_gaussian(learner, observations), torch.from_numpy(actions)).numpy()
    assert log_probs.dtype == np.float32
    np.testing.assert_allclose(log_probs, expected, rtol=0.0, atol=2e-5)
    assert expected.std() > 0.5


def test_log_probs_of_a_case_done_by_hand() -> None:
    learner = make_learner(normalize=False, perturbed=False)
    with torch.no_grad():
        learner.policy.log_std.copy_(torch.log(torch.tensor([1.0, 2.0, 0.5, 1.0, 1.0, 1.0])))
    policy = GaussianPolicy.from_bytes(learner.weights())
    noise = np.array([[0.0] * 6, [1.0, -2.0, 0.0, 0.0, 3.0, 0.0]], np.float32)
    at_the_mean = -0.5 * ACTION_SIZE * np.log(2.0 * np.pi) - np.log(2.0) - np.log(0.5)
    np.testing.assert_allclose(policy.log_probs(noise), [at_the_mean, at_the_mean - 0.5 * (1 + 4 + 9)], rtol=1e-6)


def test_weights_say_what_they_are_of() -> None:
    policy = GaussianPolicy.from_bytes(make_learner(normalize=True).weights())
    assert (policy.policy_version, policy.observation_size, policy.action_size) == (7, OBSERVATION_SIZE, ACTION_SIZE)


def test_normalisation_uses_the_moments_of_everything_merged() -> None:
    policy = GaussianPolicy.from_bytes(make_learner(normalize=True).weights())
    other = make_learner(normalize=True)
    other.moments.merge(observations_like_training(400, seed=8) + 5.0)
    shifted = GaussianPolicy.from_bytes(other.weights())
    observation = observations_like_training(1, seed=9)[0]
    assert np.abs(policy.mean_action(observation) - shifted.mean_action(observation)).max() > 0.01


def test_extreme_observations_are_clipped_as_torch_clips_them() -> None:
    learner = make_learner(normalize=True)
    policy = GaussianPolicy.from_bytes(learner.weights())
    signs = np.where(np.arange(OBSERVATION_SIZE) % 2, 1.0, -1.0)
    far, farther, inside = ((OFFSETS + factor * SCALES * signs).astype(np.float32) for factor in (50.0, 1e6, 1.0))
    means = numpy_means(policy, np.array([far, farther, inside]))
    np.testing.assert_array_equal(means[0], means[1])
    assert np.abs(means[0] - means[2]).max() > 0.01
    expected = torch_gaussian(learner, np.array([far, farther, inside]))[0].numpy()
    np.testing.assert_allclose(means, expected, rtol=0.0, atol=1e-5)


def test_without_normalisation_nothing_is_clipped() -> None:
    learner = make_learner(normalize=False)
    policy = GaussianPolicy.from_bytes(learner.weights())
    # So small in all features but one that no tanh unit saturates at values well above the clip.
    observations = np.zeros((2, OBSERVATION_SIZE), np.float32)
    observations[:, 0] = 2.0 * CLIP, 4.0 * CLIP
    means = numpy_means(policy, observations)
    assert np.abs(means[0] - means[1]).max() > 1e-3
    np.testing.assert_allclose(means, torch_gaussian(learner, observations)[0].numpy(), rtol=0.0, atol=1e-5)


def test_inference_leaves_the_observation_alone() -> None:
    policy = GaussianPolicy.from_bytes(make_learner(normalize=True).weights())
    observation = observations_like_training(1, seed=9)[0]
    before = observation.copy()
    first = policy.mean_action(observation)
    kept = first.copy()
    policy.mean_action(observation + 1.0)
    np.testing.assert_array_equal(observation, before)
    np.testing.assert_array_equal(first, kept)
