"""One PPO update against plain Python: ratios, loss, gradient, schedules, moments and checkpoints."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from lambda_actor import wire
from lambda_actor.spaces import Spaces
from runtime.learner import LearnerSpec
from runtime.learner.advantages import generalized_advantages
from runtime.learner.interfaces import Batch
from runtime.learner.objective import adapted_kl_coefficient
from runtime.learner.ppo import Ppo
from runtime.learner.ppo_settings import PpoSettings
from tests.learner import learning
from tests.learner.learning import (
    DISCRETE,
    VECTORS,
    joined,
    parameters_of,
    scramble,
)

pytestmark = pytest.mark.usefixtures("one_thread")
OBSERVATION_SIZE, ACTION_SIZE = 3, 2


def make_learner(
    *,
    seed: int = 0,
    epochs: int = 2,
    minibatch_steps: int = 16,
    observation_size: int = OBSERVATION_SIZE,
    action_size: int = ACTION_SIZE,
    normalize_observations: bool = True,
    **ppo,
) -> Ppo:
    section = PpoSettings(
        epochs=epochs,
        minibatch_steps=minibatch_steps,
        normalize_observations=normalize_observations,
        **ppo,
    )
    spaces = Spaces((observation_size,), action_size=action_size)
    return Ppo(LearnerSpec(section.model_copy(update={"kind": "ppo"}), spaces, seed=seed))


def roll(learner: Ppo, **options) -> Batch:
    """Returns a batch sampled by the learner's own published policy."""
    weights = learner.weights()
    observation_size = learner.policy.layers[0].in_features
    return learning.roll(weights, Spaces((observation_size,), action_size=ACTION_SIZE), **options)


def record_steps(learner: Ppo, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, np.ndarray]]:
    """Records every minibatch whose gradient is computed from now on, with its mean losses."""
    recorded = []
    original = learner.descend

    def spy(samples, minibatches):
        losses = original(samples, minibatches)
        recorded.extend(
            {name: tensor[indices].numpy() for name, tensor in samples.tensors.items()}
            | {"result": one.means.numpy()}
            for indices, one in zip(minibatches, losses, strict=True)
        )
        return losses

    monkeypatch.setattr(learner, "descend", spy)
    return recorded


# The first ratio, and the moments for normalization


def test_moments_hold_the_batch_that_is_trained_on_and_are_those_of_the_next_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    learner = make_learner()
    neutral = wire.decode(learner.weights(), wire.Kind.WEIGHTS)
    np.testing.assert_array_equal(neutral["observation_mean"], np.zeros(OBSERVATION_SIZE))
    np.testing.assert_array_equal(neutral["observation_std"], np.ones(OBSERVATION_SIZE))
    assert int(neutral["policy_version"]) == learner.policy_version == 0

    steps = record_steps(learner, monkeypatch)
    seen = np.empty((0, OBSERVATION_SIZE))
    for version, offset in ((1, 2.0), (2, 9.0)):
        steps.clear()
        # Its outlier is more than ten deviations away.
        batch = roll(learner, seed=version, offset=offset, trajectories=12)
        learner.update(batch, progress=0.0)
        rows = batch.observations.reshape(-1, OBSERVATION_SIZE).astype(np.float64)
        seen = np.concatenate([seen, rows])
        used = np.concatenate([step["observations"] for step in steps[: len(steps) // 2]])
        expected = np.clip((rows - seen.mean(0)) / seen.std(0), -10.0, 10.0)
        assert expected.max() == 10.0
        np.testing.assert_allclose(np.sort(used, axis=0), np.sort(expected, axis=0), atol=1e-4)
        published = wire.decode(learner.weights(), wire.Kind.WEIGHTS)
        assert int(published["policy_version"]) == learner.policy_version == version
        np.testing.assert_allclose(published["observation_mean"], seen.mean(0), rtol=1e-5)
        np.testing.assert_allclose(published["observation_std"], seen.std(0), rtol=1e-5)
        assert float(published["observation_clip"]) == 10.0


def test_an_algorithm_that_was_not_fitted_is_refused() -> None:
    with pytest.raises(ValueError, match="fit the experiment"):
        Ppo(LearnerSpec(PpoSettings(kind="ppo"), Spaces((3,), action_size=2)))


def test_several_policy_versions_are_refused() -> None:
    learner = make_learner()
    first = roll(learner)
    learner.update(first, progress=0.0)
    before = parameters_of(learner)
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        learner.update(joined(first, roll(learner)), progress=0.0)
    np.testing.assert_array_equal(parameters_of(learner), before)


# Advantages and value targets


def test_samples_are_generalized_advantages_scaled_over_the_whole_batch() -> None:
    """Value targets are not scaled. Estimates are in double precision, those of the critic in single."""
    learner = make_learner(discount=0.9, gae_lambda=0.8)
    learner.update(roll(learner, seed=5), progress=0.0)
    batch = roll(learner, seed=8, steps=14, trajectories=4)
    assert batch.terminated.any() and batch.bootstrap_mask[:-1].any()
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


# The loss and its gradient


@pytest.mark.parametrize("spaces", [VECTORS, DISCRETE])
def test_the_gradient_is_that_of_the_written_out_loss(spaces: Spaces) -> None:
    """The surrogate is min(r·Â, clip(r, 1 − ε, 1 + ε)·Â), r = π/μ."""
    section = PpoSettings(
        kind="ppo",
        normalize_observations=True,
        clip=0.2,
        value_coefficient=0.6,
        entropy_coefficient=0.05,
        kl_coefficient=0.4,
        max_gradient_norm=None,
    )
    learner = Ppo(LearnerSpec(section, spaces))
    samples = learner.samples(learning.roll(learner.weights(), spaces, steps=40))
    advantages, acted = samples.tensors["advantages"], samples.tensors["log_probs"]
    scramble(learner.policy, 0.03)
    scramble(learner.critic, 0.03)

    def surrogate(log_probs: torch.Tensor) -> torch.Tensor:
        ratios = torch.exp(log_probs - acted)
        for side in (ratios > 1.2, ratios < 0.8, (ratios - 1.0).abs() < 0.2):
            assert (side & (advantages > 0.0)).any() and (side & (advantages < 0.0)).any()
        return torch.minimum(ratios * advantages, ratios.clip(0.8, 1.2) * advantages)

    learning.check_gradient(learner, spaces, samples, surrogate)


def test_the_gradient_is_clipped_for_each_network_by_itself() -> None:
    """Each network's step has the greatest allowed length. A joint norm would leave the smaller one almost nothing."""
    free, clipped, loose = (one_plain_step(norm_max) for norm_max in (None, 1e-2, 1e6))
    for part in (0, 1):
        np.testing.assert_array_equal(loose[part], free[part])
        length = float(np.linalg.norm(free[part]))
        assert length > 1e-2
        assert float(np.linalg.norm(clipped[part])) == pytest.approx(1e-2, rel=1e-3)
        np.testing.assert_allclose(clipped[part], free[part] * (1e-2 / length), atol=1e-6)


def one_plain_step(max_gradient_norm: float | None) -> tuple[np.ndarray, np.ndarray]:
    """Returns the changes of policy and critic in one step of plain descent with learning rate 1."""
    learner = make_learner(
        epochs=1, minibatch_steps=1000, max_gradient_norm=max_gradient_norm, learning_rate=1.0
    )
    learning.descend_plainly(learner)
    before = parameters_of(learner)
    learner.update(roll(learner), progress=0.0)
    lost = before - parameters_of(learner)
    size = learner.trained["policy"].values.numel()
    return lost[:size], lost[size:]


# Schedules


@pytest.mark.parametrize(
    ("schedule", "progress", "expected"),
    [
        ("constant", 0.75, 4e-4),
        ("linear", 0.25, 3e-4),
        ("linear", 1.2, 0.0),
    ],
)
def test_learning_rate_schedule(schedule: str, progress: float, expected: float) -> None:
    """The rate is both reported and used: Adam's first step is as large as the learning rate."""
    learner = make_learner(
        epochs=1, minibatch_steps=1000, learning_rate=4e-4, learning_rate_schedule=schedule
    )
    before = parameters_of(learner)
    metrics = learner.update(roll(learner), progress=progress).metrics
    assert metrics.learning_rate == pytest.approx(expected, rel=1e-9, abs=1e-15)
    assert float(np.abs(parameters_of(learner) - before).max()) == pytest.approx(
        expected, rel=0.02, abs=1e-15
    )


@pytest.mark.parametrize(
    ("kl", "factor"),
    [
        (0.0049, 0.5),
        (0.0051, 1.0),
        (0.0199, 1.0),
        (0.0201, 1.5),
    ],
)
def test_the_kl_coefficient_adapts(kl: float, factor: float) -> None:
    """Target 0.01: ×1.5 above twice the target, ×0.5 below half of it, otherwise unchanged."""
    assert adapted_kl_coefficient(0.2, kl=kl, kl_target=0.01) == pytest.approx(0.2 * factor)


def test_metrics_are_those_of_the_last_epoch_and_of_the_policy_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Losses and entropy are means over the last epoch's samples; KL is over the whole batch after the update."""
    learner = make_learner(
        epochs=3, minibatch_steps=10, learning_rate=1e-3, normalize_observations=False
    )
    batch = roll(learner, steps=11)
    before = learner.samples(batch)
    steps = record_steps(learner, monkeypatch)
    metrics = learner.update(batch, progress=0.0).metrics
    last_epoch = steps[-len(steps) // 3 :]
    sizes = [len(step["advantages"]) for step in last_epoch]
    assert len(steps) == 12 and sum(sizes) == 33 and len(set(sizes)) == 2
    means = np.average([step["result"] for step in last_epoch], axis=0, weights=sizes)
    assert [metrics.policy_loss, metrics.value_loss, metrics.entropy] == pytest.approx(
        means, rel=1e-5, abs=1e-7
    )
    new = learning.distribution_of(VECTORS, learner.policy(before.tensors["observations"]).detach())
    old = learning.distribution_of(VECTORS, before.tensors["old_outputs"])
    kl = float(torch.distributions.kl_divergence(old, new).mean())
    assert metrics.kl == pytest.approx(kl, rel=1e-3)
    targets = before.arrays.value_targets
    assert metrics.explained_variance == pytest.approx(
        1.0 - float(np.var(targets - before.values)) / float(np.var(targets)), rel=1e-5, abs=1e-6
    )


# Minibatches


@pytest.mark.parametrize("minibatch_steps", [1, 7, 36, 4096])
def test_minibatches_are_a_partition_of_everything(
    monkeypatch: pytest.MonkeyPatch, minibatch_steps: int
) -> None:
    """In every epoch. None is larger than requested, and a smaller batch is a single minibatch.

    Paper: Nitro §8.1 (4096 = SGD minibatch, or the whole batch if smaller).
    """
    learner = make_learner(epochs=3, minibatch_steps=minibatch_steps)
    batch = roll(learner, steps=12, trajectories=3)
    steps = record_steps(learner, monkeypatch)
    samples = learner.update(batch, progress=0.0).samples
    per_epoch = math.ceil(36 / minibatch_steps)
    assert len(steps) == 3 * per_epoch
    by_action = {tuple(action): row for row, action in enumerate(samples.actions.tolist())}
    orders = []
    for epoch in range(3):
        part = steps[epoch * per_epoch : (epoch + 1) * per_epoch]
        assert all(1 <= len(step["advantages"]) <= minibatch_steps for step in part)
        rows = [by_action[tuple(action)] for step in part for action in step["actions"].tolist()]
        assert sorted(rows) == list(range(36))
        orders.append(tuple(rows))
        for name in ("log_probs", "advantages", "value_targets", "old_outputs"):
            np.testing.assert_array_equal(
                np.concatenate([step[name] for step in part]), getattr(samples, name)[rows]
            )
    assert len(set(orders)) == 3


def test_the_order_depends_on_seed_version_and_epoch_alone() -> None:
    batch = roll(make_learner())

    def order(seed: int, version: int, epoch: int) -> list[int]:
        learner = make_learner(seed=seed)
        moved = Batch(**{**vars(batch), "policy_versions": np.full(3, version)})
        return torch.cat(learner.minibatches(moved, epoch)).tolist()

    assert order(0, 0, 0) == order(0, 0, 0)
    others = [order(1, 0, 0), order(0, 1, 0), order(0, 0, 1)]
    assert order(0, 0, 0) not in others
    assert sorted(others[0]) == sorted(order(0, 0, 0)) == list(range(36))


# Reproducibility
