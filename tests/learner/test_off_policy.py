"""IMPACT and IMPALA: V-trace of whole fragments of older policies, the target network, and the buffer's bounds."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from lambda_actor.policy import Policy
from lambda_actor.spaces import Spaces
from runtime.learner.advantages import vtrace
from runtime.learner.interfaces import Batch, TrainingSamples
from runtime.learner.normaliser import moments_of
from tests.learner.learning import (
    DISCRETE,
    VECTORS,
    assert_same,
    distribution_of,
    joined,
    make,
    parameters_of,
    ragged,
    roll,
    scramble,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def drifted(kind: str, spaces: Spaces = VECTORS, **options: Any) -> tuple[Any, Batch]:
    """Returns a learner whose policy, target and actors all differ, including moments, and samples of two versions."""
    learner = make(kind, spaces, discount=0.9, **options)
    first = roll(learner.weights(), spaces, seed=1)
    learner.update(first, progress=0.0)
    if kind == "impact":
        learner.target.load_state_dict(learner.policy.state_dict())
        learner.target_moments = learner.moments.copy()
        scramble(learner.target, 0.01, seed=3)
    scramble(learner.policy, 0.01, seed=4)
    learner.moments.add(*moments_of(first.observations.reshape(-1, 3) + 1.0))
    return learner, joined(first, roll(learner.weights(), spaces, seed=2))


@pytest.mark.parametrize("spaces", [VECTORS, DISCRETE])
@pytest.mark.parametrize("kind", ["impact", "impala"])
def test_samples_are_vtrace_of_the_reference_policy(kind: str, spaces: Spaces) -> None:
    """IMPACT's target acts with its own earlier moments. IMPALA's policy and any critic have the present ones."""
    learner, batch = drifted(kind, spaces)
    training = learner.samples(batch)
    reference, moments = learner.policy, learner.moments
    if kind == "impact":
        reference, moments = learner.target, learner.target_moments
    observations = batch.observations.reshape(-1, 3).astype(np.float64)
    normalised = np.clip((observations - moments.mean) / moments.std, -10.0, 10.0)
    outputs = reference(torch.from_numpy(normalised.astype(np.float32))).detach()
    np.testing.assert_allclose(training.arrays.old_outputs, outputs, atol=1e-5)
    actions = torch.from_numpy(batch.actions.reshape(-1, *batch.actions.shape[2:]))
    log_probs = distribution_of(spaces, outputs).log_prob(actions).numpy()
    values, next_values = learner.state_values(batch)
    targets, advantages = vtrace(
        batch.rewards,
        values,
        next_values,
        log_probs.reshape(12, 6) - batch.log_probs,
        batch.terminated,
        batch.bootstrap_mask,
        discount=0.9,
    )
    np.testing.assert_array_equal(training.values, values.reshape(-1))
    np.testing.assert_allclose(training.arrays.advantages, advantages.reshape(-1), atol=1e-4)
    np.testing.assert_allclose(training.arrays.value_targets, targets.reshape(-1), atol=1e-4)
    np.testing.assert_array_equal(training.arrays.log_probs, batch.log_probs.reshape(-1))


def test_values_follow_the_sequences() -> None:
    """V of the next observation, or of the one beyond the cut, looked up one by one."""
    learner = make("impala")
    batch, _ = ragged(roll(learner.weights(), VECTORS), (12, 5, 9))
    values, next_values = learner.state_values(batch)

    def value(observation: np.ndarray) -> Any:
        return pytest.approx(
            float(learner.evaluate(learner.critic, observation[None])[0]), abs=1e-5
        )

    beyond = iter(batch.bootstrap_observations)
    for column, step in np.argwhere(batch.is_step.T):
        assert values[step, column] == value(batch.observations[step, column])
        if batch.bootstrap_mask[step, column]:
            assert next_values[step, column] == value(next(beyond))
        elif not batch.terminated[step, column]:
            assert next_values[step, column] == values[step + 1, column]
    assert next(beyond, None) is None


@pytest.mark.parametrize(
    ("minibatch_steps", "sizes"), [(1, [1] * 6), (24, [2] * 3), (59, [3, 3]), (10_000, [6])]
)
def test_minibatches_are_whole_fragments(minibatch_steps: int, sizes: list[int]) -> None:
    """In an order that is the version's own."""
    learner, batch = drifted("impala", minibatch_steps=minibatch_steps)

    def drawn() -> list[list[float]]:
        parts = learner.minibatches(batch)
        assert [part.batch.rewards.shape for part in parts] == [(12, size) for size in sizes]
        return [column for part in parts for column in part.batch.rewards.T.tolist()]

    order = drawn()
    assert sorted(order) == sorted(batch.rewards.T.tolist()) and order == drawn()
    learner.policy_version += 1
    assert order != drawn()


def test_impala_tells_how_far_the_acting_policies_were() -> None:
    learner, batch = drifted("impala")
    update = learner.update(batch, progress=0.0)
    np.testing.assert_array_equal(np.sort(update.staleness), [0, 0, 0, 1, 1, 1])
    assert learner.policy_version == 2 and learner.replay(progress=0.0) is None
    outputs = torch.from_numpy(learner.evaluate(learner.policy, update.samples.observations))
    now = distribution_of(VECTORS, outputs).log_prob(torch.from_numpy(update.samples.actions))
    kl = float(np.mean(update.samples.log_probs - now.numpy()))
    assert update.metrics.kl == pytest.approx(kl, rel=1e-3, abs=1e-5) and kl > 0.0


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize(
    ("log_acted", "log_target"), [(-500.0, -0.1), (-0.1, -500.0), (-500.0, -500.0)]
)
def test_policies_that_have_nothing_in_common_stay_finite(
    log_acted: float, log_target: float, advantage: float
) -> None:
    learner = make("impact", Spaces((1,), action_count=2))
    found = learner.surrogate(
        torch.tensor([-0.05]),
        {
            "actions": torch.tensor([0]),
            "log_probs": torch.tensor([log_acted]),
            "advantages": torch.tensor([advantage]),
            "old_outputs": torch.tensor([[log_target, 0.0]]),
        },
    )
    assert torch.stack(found).isfinite().all()


# The target network


def test_the_target_is_renewed_when_enough_was_trained_on() -> None:
    """Frequency 2 · N 3 · K 2 · minibatches of 36 steps = 432 trained steps: 12 minibatches, including replays."""
    learner = make(
        "impact", minibatch_steps=36, target_update_frequency=2.0, buffer_batches=3, uses_max=2
    )
    start = {name: tensor.clone() for name, tensor in learner.target.state_dict().items()}
    for _ in range(6):
        learner.update(roll(learner.weights(), VECTORS), progress=0.0)
        assert learner.replay(progress=0.0).is_replay
        assert_same(learner.target.state_dict(), start)
    published = Policy.from_bytes(learner.weights())
    batch = roll(learner.weights(), VECTORS, seed=9)
    for _ in range(2):
        samples = learner.update(batch, progress=0.0).samples
        outputs = np.stack([published.outputs(one) for one in samples.observations])
        np.testing.assert_allclose(samples.old_outputs[:, :2], outputs, atol=1e-5)


def test_the_kl_coefficient_does_not_vanish() -> None:
    """From its lowest value after small updates, it returns to its initial value within 20 updates."""
    learner = make("impact", kl_coefficient=2.0, kl_target=1e9)
    learner.kl_coefficient *= 1e-3
    for _ in range(4):
        learner.update(roll(learner.weights(), VECTORS), progress=0.0)
    assert learner.kl_coefficient * 1.5**20 >= 2.0


# The circular buffer


def spied(monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[Any, list[float]]:
    """Returns a learner, and the tags of all minibatches that it trains on from now on."""
    learner, found = make("impact", minibatch_steps=12, **options), list[float]()
    original = learner.samples

    def spy(minibatch: Batch) -> TrainingSamples:
        found.extend(minibatch.rewards[0].tolist())
        return original(minibatch)

    monkeypatch.setattr(learner, "samples", spy)
    return learner, found


def update_tagged(learner: Any, *tags: float) -> None:
    """Trains on fragments of the current policy whose rewards all equal their tag."""
    batch = roll(learner.weights(), VECTORS, trajectories=len(tags), seed=learner.policy_version)
    learner.update(replace(batch, rewards=np.tile(tags, (12, 1))), progress=0.0)


@pytest.mark.parametrize(("buffer_batches", "uses_max"), [(1, 1), (3, 2), (2, 4)])
def test_each_minibatch_is_used_so_often_in_an_order_that_follows_from_the_seed(
    buffer_batches: int, uses_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The buffer's final contents are used up to their limit."""
    orders = []
    for seed in (0, 0, 1):
        options = {"buffer_batches": buffer_batches, "uses_max": uses_max, "seed": seed}
        learner, trained = spied(monkeypatch, **options)
        for k in range(4):
            update_tagged(learner, 3.0 * k, 3.0 * k + 1.0, 3.0 * k + 2.0)
            learner.replay(progress=0.0)
        while learner.replay(progress=0.0) is not None:
            pass
        counts = Counter(trained)
        assert set(counts) == set(range(12)) and max(counts.values()) == uses_max
        assert sum(count == uses_max for count in counts.values()) >= buffer_batches
        orders.append(trained)
    assert orders[0] == orders[1] != orders[2]


def test_replays_move_the_policy_leave_the_moments_and_are_never_stale() -> None:
    """Fragments of version 0 may be 3 versions behind, and no more."""
    learner = make("impact", minibatch_steps=12, staleness_max=3, uses_max=100)
    update_tagged(learner, 0.0)
    staleness, count = [], learner.moments.count
    before = parameters_of(learner)
    while (update := learner.replay(progress=0.0)) is not None:
        staleness += update.staleness.tolist()
        assert update.is_replay and (parameters_of(learner) != before).any()
        before = parameters_of(learner)
    assert staleness == [1, 2, 3]
    assert learner.policy_version == 4 and learner.moments.count == count


def test_a_minibatch_of_several_versions_is_as_stale_as_its_oldest_fragment() -> None:
    learner, batch = drifted("impact", staleness_max=3, uses_max=100)
    staleness = set(learner.update(batch, progress=0.0).staleness.tolist())
    while (update := learner.replay(progress=0.0)) is not None:
        staleness |= set(update.staleness.tolist())
    assert max(staleness) == 3 and learner.policy_version > 3
