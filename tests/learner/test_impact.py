"""IMPACT: the clipped surrogate with the target network, target updates, the buffer's bounds, and learning."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from lambda_actor.policy import Policy
from lambda_actor.spaces import Spaces
from runtime.learner import LearnerSpec
from runtime.learner.impact import Impact
from runtime.learner.impact_settings import ImpactSettings
from runtime.learner.interfaces import Batch, TrainingSamples
from runtime.learner.vtrace import vtrace
from tests.learner.learning import (
    DISCRETE,
    VECTORS,
    assert_same,
    check_gradient,
    distribution_of,
    joined,
    parameters_of,
    roll,
    scramble,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def make_learner(
    spaces: Spaces = VECTORS,
    *,
    seed: int = 0,
    network: str = "mlp",
    staleness_max: int = 32,
    **impact,
) -> Impact:
    options = {"normalize_observations": not spaces.is_pixels, "minibatch_steps": 36} | impact
    section = ImpactSettings(kind="impact", staleness_max=staleness_max, **options)
    return Impact(LearnerSpec(section, spaces, network, seed))


def drifted(spaces: Spaces, **options) -> tuple[Impact, Batch]:
    """Returns a learner whose policy, target and actors all differ, including moments, and a batch of such actors."""
    learner = make_learner(spaces, **options)
    first = roll(learner.weights(), spaces, seed=1)
    learner.update(first, progress=0.0)
    learner.target.load_state_dict(learner.policy.state_dict())
    learner.target_moments = learner.moments.copy()
    scramble(learner.target, 0.01, seed=3)
    scramble(learner.policy, 0.01, seed=4)
    learner.moments.merge(first.observations.reshape(-1, 3) + 1.0)
    return learner, joined(first, roll(learner.weights(), spaces, seed=2))


def outputs_of(network: torch.nn.Module, observations: np.ndarray, moments) -> torch.Tensor:
    """Returns raw observations normalized by these moments in double precision."""
    normalised = np.clip(
        (observations.astype(np.float64) - moments.mean) / moments.std, -10.0, 10.0
    )
    return network(torch.from_numpy(normalised.astype(np.float32)))


# The objective


@pytest.mark.parametrize("spaces", [VECTORS, DISCRETE])
def test_samples_are_vtrace_of_the_target_network(spaces: Spaces) -> None:
    """The target acts with its own earlier moments. The critic is the current one, with the current moments."""
    learner, batch = drifted(spaces, discount=0.9)
    samples = learner.samples(batch).arrays
    observations = batch.observations.reshape(-1, 3)
    target = outputs_of(learner.target, observations, learner.target_moments).detach()
    np.testing.assert_allclose(samples.old_outputs, target, atol=1e-5)
    stale_moments = outputs_of(learner.target, observations, learner.moments).detach()
    assert float((stale_moments - target).abs().max()) > 1e-3

    actions = torch.from_numpy(batch.actions.reshape(-1, *batch.actions.shape[2:]))
    ratios = (
        distribution_of(spaces, target).log_prob(actions).numpy().reshape(12, 6) - batch.log_probs
    )
    values = (
        outputs_of(learner.critic, observations, learner.moments).detach().numpy().reshape(12, 6)
    )
    _, next_values = learner.state_values(batch)
    targets, advantages = vtrace(
        batch.rewards,
        values,
        next_values,
        ratios,
        batch.terminated,
        batch.bootstrap_mask,
        discount=0.9,
    )
    np.testing.assert_allclose(samples.advantages, advantages.reshape(-1), atol=1e-4)
    np.testing.assert_allclose(samples.value_targets, targets.reshape(-1), atol=1e-4)


@pytest.mark.parametrize("spaces", [VECTORS, DISCRETE])
def test_the_gradient_is_that_of_the_written_out_loss(spaces: Spaces) -> None:
    """The surrogate is min(r·Â, clip(r, 1 − ε, 1 + ε)·Â), r = clip(μ/π_target, 0, c)·π/μ."""
    learner, batch = drifted(
        spaces,
        clip=0.1,
        entropy_coefficient=0.03,
        value_coefficient=0.7,
        kl_coefficient=0.4,
        max_gradient_norm=None,
    )
    scramble(learner.target, 0.1, seed=6)
    learner.kl_coefficient = 0.4
    samples = learner.samples(batch)
    tensors = samples.tensors
    advantages, acted = tensors["advantages"], torch.exp(tensors["log_probs"])
    target = distribution_of(spaces, tensors["old_outputs"])
    weight = torch.clip(acted / torch.exp(target.log_prob(tensors["actions"])), 0.0, 2.0)

    def surrogate(log_probs: torch.Tensor) -> torch.Tensor:
        ratio = weight * torch.exp(log_probs) / acted
        middle = (ratio > 0.9) & (ratio < 1.1)
        for side in (ratio > 1.1, ratio < 0.9, middle, weight == 2.0, weight < 1.0):
            assert bool((side & (advantages > 0)).any()) and bool((side & (advantages < 0)).any())
        return torch.minimum(advantages * ratio, advantages * torch.clip(ratio, 0.9, 1.1))

    check_gradient(learner, spaces, samples, surrogate)
    assert learner.kl(samples) > 0.0


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize(
    ("log_acted", "log_target"), [(-500.0, -0.1), (-0.1, -500.0), (-500.0, -500.0)]
)
def test_policies_that_have_nothing_in_common_stay_finite(
    log_acted: float, log_target: float, advantage: float
) -> None:
    learner = make_learner(Spaces((1,), action_count=2))
    surrogate, slopes = learner.surrogate(
        torch.tensor([-0.05]),
        {
            "actions": torch.tensor([0]),
            "log_probs": torch.tensor([log_acted]),
            "advantages": torch.tensor([advantage]),
            "old_outputs": torch.tensor([[log_target, 0.0]]),
        },
    )
    assert torch.isfinite(surrogate).all() and torch.isfinite(slopes).all()


# The target network


def test_the_target_is_renewed_when_enough_was_trained_on() -> None:
    """Frequency 2 · N 3 · K 2 · minibatches of 36 steps = 432 trained steps: 12 minibatches, including replays."""
    learner = make_learner(
        target_update_frequency=2.0, buffer_batches=3, uses_max=2, learning_rate=1e-3
    )
    start = {name: tensor.clone() for name, tensor in learner.target.state_dict().items()}
    for _ in range(6):
        learner.update(roll(learner.weights(), VECTORS), progress=0.0)
        assert learner.replay(progress=0.0).is_replay
        assert_same(learner.target.state_dict(), start)
    assert learner.steps_since_target == 432
    published = Policy.from_bytes(learner.weights())
    batch = roll(learner.weights(), VECTORS, seed=9)
    update = learner.update(batch, progress=0.0)
    assert learner.steps_since_target == 36
    outputs = np.stack(
        [published.outputs(observation) for observation in update.samples.observations]
    )
    np.testing.assert_allclose(update.samples.old_outputs[:, :2], outputs, atol=1e-5)
    kept = {name: tensor.clone() for name, tensor in learner.target.state_dict().items()}
    moments = learner.target_moments.mean.copy()
    learner.update(batch, progress=0.0)
    assert_same(learner.target.state_dict(), kept)
    np.testing.assert_array_equal(learner.target_moments.mean, moments)
    assert (learner.moments.mean != moments).all()


def test_the_kl_is_that_to_the_target_after_the_update_and_adapts_the_coefficient() -> None:
    for share, factor in ((3.0, 0.5), (1.0, 1.0), (0.3, 1.5)):
        learner = make_learner(learning_rate=1e-3)
        batch = roll(learner.weights(), VECTORS)
        kl = learner.update(batch, progress=0.0).metrics.kl
        learner = make_learner(learning_rate=1e-3, kl_target=kl * share)
        update = learner.update(batch, progress=0.0)
        moments = learner.moments.copy()
        after = outputs_of(learner.policy, update.samples.observations, moments).detach()
        expected = torch.distributions.kl_divergence(
            distribution_of(VECTORS, torch.from_numpy(update.samples.old_outputs)),
            distribution_of(VECTORS, after),
        )
        assert update.metrics.kl == kl == pytest.approx(float(expected.mean()), rel=1e-3)
        assert learner.kl_coefficient == pytest.approx(factor)


def test_the_kl_coefficient_does_not_vanish() -> None:
    """From its lowest value after small updates, it returns to its initial value within 20 updates."""
    learner = make_learner(kl_coefficient=2.0, kl_target=1e9)
    learner.kl_coefficient *= 1e-3
    learner.update(roll(learner.weights(), VECTORS), progress=0.0)
    assert learner.kl_coefficient * 1.5**20 >= 2.0


# The circular buffer


def tagged(learner: Impact, tags: list[float]) -> Batch:
    """Returns fragments of the current policy whose rewards all equal their tag."""
    batch = roll(learner.weights(), VECTORS, trajectories=len(tags), seed=learner.policy_version)
    return Batch(**{**vars(batch), "rewards": np.tile(np.array(tags), (12, 1))})


def spy_on_training(learner: Impact, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Records the tags of all minibatches trained on from now on."""
    found: list[float] = []
    original = learner.samples

    def spy(minibatch: Batch) -> TrainingSamples:
        found.extend(minibatch.rewards[0].tolist())
        return original(minibatch)

    monkeypatch.setattr(learner, "samples", spy)
    return found


@pytest.mark.parametrize(("buffer_batches", "uses_max"), [(1, 1), (3, 2), (2, 4)])
def test_each_minibatch_is_used_so_often_at_most(
    buffer_batches: int, uses_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = make_learner(buffer_batches=buffer_batches, uses_max=uses_max, minibatch_steps=12)
    trained = spy_on_training(learner, monkeypatch)
    for k in range(4):
        learner.update(tagged(learner, [3.0 * k, 3.0 * k + 1.0, 3.0 * k + 2.0]), progress=0.0)
        learner.replay(progress=0.0)
    replays = 0
    while learner.replay(progress=0.0) is not None:
        replays += 1
    counts = Counter(trained)
    assert set(counts) == set(range(12)) and max(counts.values()) <= uses_max
    # The buffer's final contents are used up to their limit: nothing is withheld.
    assert replays <= buffer_batches * (uses_max - 1)
    assert sum(count == uses_max for count in counts.values()) >= min(buffer_batches, 12)


def test_nothing_stale_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fragments of version 0 may be 3 versions behind, and no more."""
    learner = make_learner(staleness_max=3, uses_max=100, minibatch_steps=12)
    learner.update(tagged(learner, [0.0]), progress=0.0)
    staleness = []
    while (update := learner.replay(progress=0.0)) is not None:
        staleness += update.staleness.tolist()
        assert update.is_replay
    assert staleness == [1, 2, 3]
    assert learner.policy_version == 4


def test_replays_move_the_policy_and_leave_the_moments() -> None:
    learner = make_learner()
    learner.update(tagged(learner, [1.0, 2.0, 3.0]), progress=0.0)
    before, count = parameters_of(learner), learner.moments.count
    update = learner.replay(progress=0.0)
    assert (parameters_of(learner) != before).any()
    assert learner.moments.count == count and learner.policy_version == 2
    assert update.staleness.tolist() == [1, 1, 1]


def test_draws_are_random_and_follow_from_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    orders = []
    for seed in (0, 0, 1, 2):
        learner = make_learner(seed=seed, uses_max=3, minibatch_steps=12)
        trained = spy_on_training(learner, monkeypatch)
        learner.update(tagged(learner, list(map(float, range(6)))), progress=0.0)
        while learner.replay(progress=0.0) is not None:
            pass
        orders.append(trained)
    assert orders[0] == orders[1]
    assert len({tuple(order) for order in orders}) == 3
    for order in orders:
        first, replays = order[:6], order[6:]
        assert replays != [tag for tag in first for _ in range(2)] and sorted(replays) == sorted(
            2 * first
        )
