"""IMPALA: whole fragments, the written-out gradient, old policies, and learning."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lambda_actor.spaces import Spaces
from runtime.learner import LearnerSpec
from runtime.learner.impala import Impala
from runtime.learner.impala_settings import ImpalaSettings
from runtime.learner.interfaces import Batch
from runtime.learner.vtrace import vtrace
from tests.learner.learning import (
    DISCRETE,
    VECTORS,
    check_gradient,
    distribution_of,
    joined,
    roll,
    scramble,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def make_learner(
    spaces: Spaces = VECTORS, *, seed: int = 0, network: str = "mlp", **impala
) -> Impala:
    options = {"normalize_observations": not spaces.is_pixels, "minibatch_steps": 24} | impala
    return Impala(LearnerSpec(ImpalaSettings(kind="impala", **options), spaces, network, seed))


def log_probs_of(
    learner: Impala, spaces: Spaces, observations: np.ndarray, actions: np.ndarray
) -> np.ndarray:
    """Returns log π of the published policy from torch's distributions, ``[N]``."""
    outputs = torch.from_numpy(learner.evaluate(learner.policy, observations))
    return distribution_of(spaces, outputs).log_prob(torch.from_numpy(actions)).numpy()


def stale_batch(learner: Impala, spaces: Spaces) -> Batch:
    """Returns samples of the old and the current policy, with moments that changed in between."""
    older = roll(learner.weights(), spaces, seed=1)
    learner.update(older, progress=0.0)
    scramble(learner.policy, 0.01, seed=3)
    return joined(older, roll(learner.weights(), spaces, seed=2))


@pytest.mark.parametrize("spaces", [VECTORS, DISCRETE])
def test_samples_are_vtrace_of_the_present_policy(spaces: Spaces) -> None:
    """Ratios are those between the published and the acting policy. Values are the current critic's, not normalized."""
    learner = make_learner(spaces, discount=0.9)
    batch = stale_batch(learner, spaces)
    training_samples = learner.samples(batch)
    samples = training_samples.arrays
    shape = batch.rewards.shape
    observations = batch.observations.reshape(-1, 3)
    ours = log_probs_of(
        learner, spaces, observations, batch.actions.reshape(-1, *batch.actions.shape[2:])
    )
    ratios = ours.reshape(shape) - batch.log_probs
    assert np.abs(ratios[:, :3]).max() > 1e-3 and np.abs(ratios[:, 3:]).max() < 1e-4

    expected_values, next_values = learner.state_values(batch)
    targets, advantages = vtrace(
        batch.rewards,
        expected_values,
        next_values,
        ratios,
        batch.terminated,
        batch.bootstrap_mask,
        discount=0.9,
    )
    np.testing.assert_array_equal(training_samples.values, expected_values.reshape(-1))
    np.testing.assert_allclose(samples.advantages, advantages.reshape(-1), atol=1e-4)
    np.testing.assert_allclose(samples.value_targets, targets.reshape(-1), atol=1e-4)
    np.testing.assert_array_equal(samples.log_probs, batch.log_probs.reshape(-1))


def test_values_follow_the_sequences() -> None:
    """Returns V of the next observation, or of the one beyond the cut, looked up one by one."""
    learner = make_learner()
    batch = stale_batch(learner, VECTORS)
    values, next_values = learner.state_values(batch)

    def value(observation: np.ndarray) -> float:
        return float(learner.evaluate(learner.critic, observation[None])[0])

    beyond = iter(batch.bootstrap_observations)
    for column in range(6):
        for step in range(12):
            assert values[step, column] == pytest.approx(
                value(batch.observations[step, column]), abs=1e-5
            )
            if batch.bootstrap_mask[step, column]:
                assert next_values[step, column] == pytest.approx(value(next(beyond)), abs=1e-5)
            elif not batch.terminated[step, column]:
                assert next_values[step, column] == values[step + 1, column]


@pytest.mark.parametrize("spaces", [VECTORS, DISCRETE])
def test_the_gradient_is_that_of_the_written_out_loss(spaces: Spaces) -> None:
    """The surrogate is log π·Â. Â and the value targets are held fixed, and there is no penalty."""
    learner = make_learner(
        spaces, entropy_coefficient=0.03, value_coefficient=0.7, max_gradient_norm=None
    )
    samples = learner.samples(stale_batch(learner, spaces))
    check_gradient(
        learner, spaces, samples, lambda log_probs: log_probs * samples.tensors["advantages"]
    )


@pytest.mark.parametrize(
    ("minibatch_steps", "sizes"),
    [
        (1, [1] * 6),
        (24, [2] * 3),
        (59, [3, 3]),
        (10_000, [6]),
    ],
)
def test_minibatches_are_whole_fragments(minibatch_steps: int, sizes: list[int]) -> None:
    learner = make_learner(minibatch_steps=minibatch_steps)
    batch = stale_batch(learner, VECTORS)
    parts = learner.minibatches(batch)
    assert [part.batch.rewards.shape for part in parts] == [(12, size) for size in sizes]
    found = [column for part in parts for column in part.batch.rewards.T.tolist()]
    assert sorted(found) == sorted(batch.rewards.T.tolist())
    assert found == [
        column for part in learner.minibatches(batch) for column in part.batch.rewards.T.tolist()
    ]
    learner.policy_version += 1
    assert found != [
        column for part in learner.minibatches(batch) for column in part.batch.rewards.T.tolist()
    ]


def test_what_an_update_tells() -> None:
    learner = make_learner(minibatch_steps=10_000, learning_rate=1e-3)
    batch = stale_batch(learner, VECTORS)
    observations, actions = batch.observations.reshape(-1, 3), batch.actions.reshape(-1, 2)
    version, moments = learner.policy_version, learner.moments.copy()
    update = learner.update(batch, progress=0.0)
    np.testing.assert_array_equal(np.sort(update.staleness), [0, 0, 0, 1, 1, 1])
    assert not update.is_replay and learner.policy_version == version + 1
    assert learner.replay(progress=0.0) is None
    kl = float(
        np.mean(batch.log_probs.reshape(-1) - log_probs_of(learner, VECTORS, observations, actions))
    )
    assert update.metrics.kl == pytest.approx(kl, rel=1e-3, abs=1e-5)
    moments.merge(observations)
    np.testing.assert_allclose(learner.moments.mean, moments.mean)
    assert learner.moments.count == moments.count
