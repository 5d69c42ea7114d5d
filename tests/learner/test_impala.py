"""IMPALA: whole fragments, the written-out gradient, old policies, and learning."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
import torch

from lambda_actor.policy import Policy
from lambda_actor.spaces import Spaces
from runtime.errors import CheckpointError
from runtime.learner import LearnerSpec
from runtime.learner.batch import select_trajectories
from runtime.learner.impala import Impala
from runtime.learner.impala_settings import ImpalaSettings
from runtime.learner.vtrace import vtrace
from runtime.ports.learning import Batch, State
from tests.learner import learning
from tests.learner.learning import (
    DISCRETE,
    PIXELS,
    VECTORS,
    assert_same,
    everything,
    flat,
    joined,
    learn_the_better_action,
    learn_the_better_sign,
    parameters_of,
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
    policy = Policy.from_bytes(learner.weights())
    outputs = torch.from_numpy(
        np.stack([policy.outputs(observation) for observation in observations])
    )
    if spaces.is_discrete:
        return (
            torch.distributions.Categorical(logits=outputs)
            .log_prob(torch.from_numpy(actions))
            .numpy()
        )
    return (
        torch.distributions.Normal(outputs, learner.policy.log_std.detach().exp())
        .log_prob(torch.from_numpy(actions))
        .sum(1)
        .numpy()
    )


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
    """Returns −mean log π·Â + c_v·½·mean (V − v)² − c_H·mean H, with Â and v held fixed."""
    learner = make_learner(
        spaces, entropy_coefficient=0.03, value_coefficient=0.7, max_gradient_norm=None
    )
    samples = learner.samples(stale_batch(learner, spaces))
    tensors = samples.tensors
    outputs, values = (
        learner.policy(tensors["observations"]),
        learner.critic(tensors["observations"]),
    )
    if spaces.is_discrete:
        distribution = torch.distributions.Categorical(logits=outputs)
    else:
        means, log_stds = outputs.chunk(2, dim=1)
        distribution = torch.distributions.Independent(
            torch.distributions.Normal(means, log_stds.exp()), 1
        )
    parts = [
        -(distribution.log_prob(tensors["actions"]) * tensors["advantages"]).mean(),
        0.5 * ((values - tensors["value_targets"]) ** 2).mean(),
        distribution.entropy().mean(),
    ]
    loss = parts[0] + 0.7 * parts[1] - 0.03 * parts[2]
    parameters = learning.parameters(learner)
    expected = dict(
        zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True)
    )
    gradients = learner.gradients(samples)
    np.testing.assert_allclose(flat(gradients.tensors), flat(expected), rtol=1e-3, atol=1e-6)
    assert gradients.losses.means.tolist() == pytest.approx(
        [float(part.detach()) for part in parts], rel=1e-5
    )


@pytest.mark.parametrize(
    ("minibatch_steps", "sizes"),
    [
        (1, [1] * 6),
        (12, [1] * 6),
        (23, [1] * 6),
        (24, [2] * 3),
        (59, [3, 3]),
        (72, [6]),
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


def test_each_minibatch_is_estimated_by_the_policy_that_it_trains() -> None:
    """Targets do not use the policy from before the update: two single updates equal one with two minibatches."""
    once, twice = (make_learner(normalize_observations=False, minibatch_steps=36) for _ in range(2))
    batch = joined(roll(once.weights(), VECTORS, seed=1), roll(once.weights(), VECTORS, seed=2))
    parts = once.minibatches(batch)
    assert len(parts) == 2
    update = once.update(batch, progress=0.0)
    singles = [twice.update(part.batch, progress=0.0) for part in parts]
    np.testing.assert_allclose(parameters_of(once), parameters_of(twice), atol=1e-6)
    for name in ("advantages", "value_targets"):
        np.testing.assert_allclose(
            np.sort(vars(update.samples)[name]),
            np.sort(np.concatenate([vars(one.samples)[name] for one in singles])),
            atol=1e-4,
        )
    assert update.metrics.policy_loss == pytest.approx(
        np.mean([one.metrics.policy_loss for one in singles]), rel=1e-5, abs=1e-7
    )
    assert once.policy_version == 1 and twice.policy_version == 2


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


def test_pixels_and_discrete_actions() -> None:
    learner = make_learner(PIXELS, network="conv")
    before = parameters_of(learner)
    update = learner.update(roll(learner.weights(), PIXELS), progress=0.0)
    assert update.samples.observations.dtype == np.uint8
    assert np.isfinite(parameters_of(learner)).all() and (parameters_of(learner) != before).any()
    assert learner.moments.count == 0


def test_old_policies_are_weighed_less() -> None:
    """Actions that the current policy would hardly take teach nothing."""
    learner = make_learner()
    batch = roll(learner.weights(), VECTORS)
    unlikely = Batch(**{**vars(batch), "log_probs": batch.log_probs + 50.0})
    samples = learner.samples(unlikely)
    np.testing.assert_allclose(samples.arrays.advantages, 0.0, atol=1e-12)
    np.testing.assert_array_equal(samples.arrays.value_targets, samples.values)


@pytest.mark.parametrize("stale", [0, 3])
def test_the_better_action_becomes_likelier(stale: int) -> None:
    learn_the_better_action(
        partial(make_learner, minibatch_steps=16, learning_rate=5e-3), stale, updates=25, share=0.8
    )


def test_continuous_actions_are_learned() -> None:
    learn_the_better_sign(partial(make_learner, minibatch_steps=16, learning_rate=5e-3))


def test_a_restored_learner_continues_bit_for_bit() -> None:
    original, restored = make_learner(DISCRETE), make_learner(DISCRETE)
    first = roll(original.weights(), DISCRETE)
    original.update(first, progress=0.0)
    state = original.get_state()
    restored.set_state(State(state.arrays, json.loads(json.dumps(state.values))))
    batch = joined(first, roll(original.weights(), DISCRETE, seed=1))
    for learner in (original, restored):
        learner.update(batch, progress=0.5)
    assert_same(everything(original), everything(restored))


def test_another_algorithms_state_is_refused() -> None:
    state = make_learner().get_state()
    with pytest.raises(CheckpointError, match="ppo"):
        make_learner().set_state(State(state.arrays, {**state.values, "algorithm": "ppo"}))


def test_select_and_train_leave_the_batch_alone() -> None:
    learner = make_learner()
    batch = roll(learner.weights(), VECTORS)
    kept = {name: np.copy(array) for name, array in vars(batch).items()}
    learner.update(select_trajectories(batch, np.arange(3)), progress=0.0)
    learner.update(batch, progress=0.0)
    assert_same(vars(batch), kept)
