"""PPO against plain Python: moments, advantages, epochs, schedules and what an update reports."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from lambda_actor import wire
from lambda_actor.spaces import Spaces
from runtime.learner.advantages import generalized_advantages
from tests.learner.learning import (
    DISCRETE,
    SEVERAL,
    VECTORS,
    distribution_of,
    make,
    parameters_of,
    roll,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def test_moments_hold_the_batch_that_is_trained_on_and_are_those_of_the_next_version() -> None:
    """The old policy is the one that acted, with the moments that it had then."""
    learner = make()
    seen = np.empty((0, 3))
    for version, offset in ((1, 2.0), (2, 9.0)):
        # Its outlier is more than ten deviations away.
        batch = roll(learner.weights(), VECTORS, seed=version, offset=offset, trajectories=12)
        samples = learner.update(batch, progress=0.0).samples
        acted = distribution_of(VECTORS, torch.from_numpy(samples.old_outputs))
        log_probs = acted.log_prob(torch.from_numpy(samples.actions))
        np.testing.assert_allclose(log_probs, samples.log_probs, atol=1e-4)
        rows = batch.observations.reshape(-1, 3).astype(np.float64)
        seen = np.concatenate([seen, rows])
        expected = np.clip((rows - seen.mean(0)) / seen.std(0), -10.0, 10.0)
        assert expected.max() == 10.0
        np.testing.assert_allclose(
            learner.samples(batch).tensors["observations"], expected, atol=1e-4
        )
        published = wire.decode(learner.weights(), wire.Kind.WEIGHTS)
        assert int(published["policy_version"]) == learner.policy_version == version
        np.testing.assert_allclose(published["observation_mean"], seen.mean(0), rtol=1e-5)
        np.testing.assert_allclose(published["observation_std"], seen.std(0), rtol=1e-5)
        assert float(published["observation_clip"]) == 10.0


def test_samples_are_generalized_advantages_scaled_over_the_whole_batch() -> None:
    """Value targets are not scaled. Estimates are in double precision, those of the critic in single."""
    learner = make(discount=0.9, gae_lambda=0.8)
    batch = roll(learner.weights(), VECTORS, seed=8, steps=14, trajectories=4)
    values, next_values = learner.state_values(batch)
    advantages = generalized_advantages(
        batch.rewards,
        values,
        next_values,
        batch.terminated,
        batch.bootstrap_mask,
        discount=0.9,
        gae_lambda=0.8,
    )
    samples = learner.samples(batch)
    np.testing.assert_allclose(
        samples.arrays.value_targets, (advantages + values).ravel(), rtol=1e-5, atol=1e-5
    )
    scaled = (advantages - advantages.mean()) / advantages.std()
    np.testing.assert_allclose(samples.arrays.advantages, scaled.ravel(), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(samples.values, values.ravel())


def test_the_gradient_is_clipped_for_each_network_by_itself() -> None:
    """A joint norm would leave the smaller one almost nothing."""
    free, clipped, loose = (
        learner.gradients(learner.samples(roll(learner.weights(), VECTORS)).tensors)[0]
        for learner in (make(max_gradient_norm=norm_max) for norm_max in (None, 1e-2, 1e6))
    )
    for name, gradient in free.items():
        assert torch.equal(loose[name], gradient)
        length = float(gradient.norm())
        assert length > 1e-2
        torch.testing.assert_close(clipped[name], gradient * (1e-2 / length), rtol=1e-3, atol=1e-7)


@pytest.mark.parametrize(
    ("schedule", "progress", "expected"),
    [("constant", 0.75, 4e-4), ("linear", 0.25, 3e-4), ("linear", 1.2, 0.0)],
)
def test_learning_rate_schedule(schedule: str, progress: float, expected: float) -> None:
    """The rate is both reported and used: Adam's first step is as large as the learning rate."""
    learner = make(
        epochs=1, minibatch_steps=1000, learning_rate=4e-4, learning_rate_schedule=schedule
    )
    before = parameters_of(learner)
    metrics = learner.update(roll(learner.weights(), VECTORS), progress=progress).metrics
    moved = float(np.abs(parameters_of(learner) - before).max())
    assert metrics.learning_rate == pytest.approx(expected, rel=1e-9, abs=1e-15)
    assert moved == pytest.approx(expected, rel=0.02, abs=1e-15)


@pytest.mark.parametrize(
    ("kind", "spaces"),
    [("ppo", VECTORS), ("ppo", SEVERAL), ("impact", VECTORS), ("impact", DISCRETE)],
)
def test_the_kl_is_that_of_the_policy_after_the_update_and_adapts_its_coefficient(
    kind: str, spaces: Spaces
) -> None:
    """×1.5 above twice the target, ×0.5 below half of it, otherwise unchanged."""
    for above, factor in ((0.49, 0.5), (0.51, 1.0), (1.99, 1.0), (2.01, 1.5)):
        kl_target = 1.0
        for _ in range(2):
            learner = make(
                kind, spaces, kl_coefficient=0.2, kl_target=kl_target, learning_rate=1e-3
            )
            batch = roll(learner.weights(), spaces)
            update = learner.update(batch, progress=0.0)
            kl_target = update.metrics.kl / above
        after = torch.from_numpy(learner.evaluate(learner.policy, update.samples.observations))
        old = torch.from_numpy(update.samples.old_outputs)
        expected = torch.distributions.kl_divergence(
            distribution_of(spaces, old), distribution_of(spaces, after)
        )
        assert update.metrics.kl == pytest.approx(float(expected.mean()), rel=1e-3)
        assert learner.kl_coefficient == pytest.approx(0.2 * factor)


@pytest.mark.parametrize("minibatch_steps", [7, 33, 4096])
def test_an_update_reports_its_last_epoch(minibatch_steps: int) -> None:
    """Paper: Nitro §8.1 (4096 = SGD minibatch, or the whole batch if smaller)."""
    learner, other = (make(epochs=3, minibatch_steps=minibatch_steps) for _ in range(2))
    batch = roll(learner.weights(), VECTORS, steps=11)
    metrics = learner.update(batch, progress=0.0).metrics
    other.begin([batch], progress=0.0)
    epochs = [other.minibatches(batch, epoch) for epoch in range(3)]
    losses = other.descend(other.samples(batch), [one for epoch in epochs for one in epoch])
    np.testing.assert_array_equal(parameters_of(learner), parameters_of(other))
    for epoch in epochs:
        assert sorted(torch.cat(epoch).tolist()) == list(range(33))
        assert max(map(len, epoch)) <= minibatch_steps and len(epoch) == -(-33 // minibatch_steps)
    means = [one.means.numpy() for one in losses[-len(epochs[2]) :]]
    expected = np.average(means, axis=0, weights=[len(one) for one in epochs[2]])
    found = [metrics.policy_loss, metrics.value_loss, metrics.entropy]
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-7)


def test_the_order_depends_on_seed_version_and_epoch_and_there_is_one_version() -> None:
    batch = roll(make().weights(), VECTORS)

    def order(seed: int, version: int, epoch: int) -> list[int]:
        moved = replace(batch, policy_versions=np.full(3, version))
        return torch.cat(make(seed=seed).minibatches(moved, epoch)).tolist()

    others = [order(1, 0, 0), order(0, 1, 0), order(0, 0, 1)]
    assert order(0, 0, 0) == order(0, 0, 0) and order(0, 0, 0) not in others
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        make().update(replace(batch, policy_versions=np.array([0, 1, 0])), progress=0.0)
