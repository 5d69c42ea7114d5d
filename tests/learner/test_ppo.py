"""One PPO update against plain Python: ratios, loss, gradient, schedules, moments and checkpoints."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from lambda_actor import wire
from lambda_actor.policy import Policy
from lambda_actor.spaces import Spaces
from runtime.errors import CheckpointError
from runtime.learner import LearnerSpec
from runtime.learner.networks import PolicyNetwork, ValueNetwork
from runtime.learner.objective import adapted_kl_coefficient
from runtime.learner.ppo import Ppo
from runtime.learner.ppo_settings import PpoSettings
from runtime.learner.trained_network import TrainedNetwork
from runtime.ports.learning import Batch, State
from tests.learner import learning
from tests.learner.learning import assert_same, bandit, everything, joined, parameters_of, scramble

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


def make_double_learner(*, seed: int = 0, **options) -> Ppo:
    """Returns small networks in double precision with steep random weights, suitable for differences."""
    learner = make_learner(seed=seed, **options)
    spaces = Spaces((OBSERVATION_SIZE,), action_size=ACTION_SIZE)
    torch.manual_seed(seed)
    learner.policy = PolicyNetwork(spaces, "mlp tanh 5 4").double()
    learner.critic = ValueNetwork(spaces, "mlp tanh 5 4").double()
    for network in (learner.policy, learner.critic):
        scramble(network, 0.6)
    learner.trained = {
        "policy": TrainedNetwork(learner.policy, learning_rate=1.0),
        "critic": TrainedNetwork(learner.critic, learning_rate=1.0),
    }
    return learner


def roll(learner: Ppo, **options) -> Batch:
    """Returns a batch sampled by the learner's own published policy."""
    weights = learner.weights()
    observation_size = learner.policy.layers[0].in_features
    return learning.roll(weights, Spaces((observation_size,), action_size=ACTION_SIZE), **options)


def policy_size_of(learner: Ppo) -> int:
    """Returns the number of policy parameters in `parameters_of`; the critic's follow."""
    return sum(parameter.numel() for parameter in learner.policy.parameters())


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


# Oracles


def forward(
    network: torch.nn.Module, inputs: np.ndarray, parameters: dict[str, np.ndarray] | None = None
) -> np.ndarray:
    """A two-layer tanh network in numpy, double precision."""
    named = parameters or {
        name: p.detach().numpy().astype(np.float64) for name, p in network.named_parameters()
    }
    hidden = inputs.astype(np.float64)
    for layer in (0, 2):
        hidden = np.tanh(hidden @ named[f"layers.{layer}.weight"].T + named[f"layers.{layer}.bias"])
    return hidden @ named["layers.4.weight"].T + named["layers.4.bias"]


def log_density(action: list[float], mean: list[float], log_std: list[float]) -> float:
    return sum(
        -0.5 * ((a - m) / math.exp(s)) ** 2 - s - 0.5 * math.log(2 * math.pi)
        for a, m, s in zip(action, mean, log_std, strict=True)
    )


def clipped_surrogate(ratio: float, advantage: float, clip: float) -> float:
    """Returns equation 7 of Schulman et al. 2017 by cases."""
    if advantage >= 0.0:
        return (1.0 + clip if ratio > 1.0 + clip else ratio) * advantage
    return (1.0 - clip if ratio < 1.0 - clip else ratio) * advantage


def kl_divergence(
    old_mean: list[float], old_log_std: list[float], mean: list[float], log_std: list[float]
) -> float:
    return sum(
        s2 - s1 + (math.exp(s1) ** 2 + (m1 - m2) ** 2) / (2 * math.exp(s2) ** 2) - 0.5
        for m1, s1, m2, s2 in zip(old_mean, old_log_std, mean, log_std, strict=True)
    )


def plain_losses(
    means, log_std, values, minibatch: dict[str, np.ndarray], clip: float
) -> dict[str, float]:
    """Returns policy loss, value loss, entropy and KL of a minibatch, one sample at a time."""
    log_std = [float(s) for s in log_std]
    names = ("actions", "log_probs", "advantages", "value_targets", "old_outputs")
    rows = list(
        zip(
            *(minibatch[name].tolist() for name in names),
            means.tolist(),
            values.tolist(),
            strict=True,
        )
    )
    surrogates, squares, divergences = [], [], []
    for action, old_log_prob, advantage, target, old, mean, value in rows:
        old_mean, old_log_std = old[:ACTION_SIZE], old[ACTION_SIZE:]
        ratio = math.exp(log_density(action, mean, log_std) - old_log_prob)
        surrogates.append(clipped_surrogate(ratio, advantage, clip))
        squares.append(0.5 * (value - target) ** 2)
        divergences.append(kl_divergence(old_mean, old_log_std, mean, log_std))
    return {
        "policy": -math.fsum(surrogates) / len(rows),
        "value": math.fsum(squares) / len(rows),
        "entropy": sum(s + 0.5 * math.log(2 * math.pi * math.e) for s in log_std),
        "kl": math.fsum(divergences) / len(rows),
    }


def plain_losses_of(learner: Ppo, minibatch: dict[str, np.ndarray]) -> dict[str, float]:
    means = forward(learner.policy, minibatch["observations"])
    values = forward(learner.critic, minibatch["observations"])[:, 0]
    return plain_losses(
        means, learner.policy.log_std.tolist(), values, minibatch, learner.settings.clip
    )


# The first ratio, and the moments for normalization


@pytest.mark.parametrize("rounds_before", [0, 1, 3])
def test_the_first_ratio_is_one(monkeypatch: pytest.MonkeyPatch, rounds_before: int) -> None:
    """True if no moments are merged, since they change the function that is trained."""
    learner = make_learner(normalize_observations=False, learning_rate=1e-3)
    for round_index in range(rounds_before):
        learner.update(roll(learner, seed=round_index, offset=5.0 * round_index), progress=0.0)
    batch = roll(learner, seed=77, offset=-3.0)
    seen = []
    original = learner.surrogate

    def spy(log_probs, samples):
        seen.append(torch.exp(log_probs - samples["log_probs"]).numpy())
        return original(log_probs, samples)

    monkeypatch.setattr(learner, "surrogate", spy)
    learner.update(batch, progress=0.0)
    np.testing.assert_allclose(seen[0], 1.0, atol=1e-4)
    assert max(float(np.abs(ratios - 1.0).max()) for ratios in seen[1:]) > 1e-3


@pytest.mark.parametrize("rounds_before", [0, 1, 3])
def test_the_first_ratio_is_that_of_the_merge(
    monkeypatch: pytest.MonkeyPatch, rounds_before: int
) -> None:
    """Compares the same weights under all data's moments with the acting policy. The first step corrects the change."""
    learner = make_learner()
    for round_index in range(rounds_before):
        learner.update(roll(learner, seed=round_index, offset=5.0 * round_index), progress=0.0)
    batch, weights = roll(learner, seed=77, offset=-3.0), copy.deepcopy(learner.policy)
    seen = []
    original = learner.surrogate

    def spy(log_probs, samples):
        seen.append((log_probs, {name: tensor.clone() for name, tensor in samples.items()}))
        return original(log_probs, samples)

    monkeypatch.setattr(learner, "surrogate", spy)
    learner.update(batch, progress=0.0)
    log_probs, samples = seen[0]
    with torch.no_grad():
        outputs = weights(samples["observations"])
    np.testing.assert_allclose(
        log_probs, learner.distribution.log_prob(outputs, samples["actions"]), atol=1e-4
    )
    log_ratios = log_probs - samples["log_probs"]
    assert float(log_ratios.abs().max()) > 1e-3
    of_acting = learner.distribution.log_prob(samples["old_outputs"], samples["actions"])
    np.testing.assert_allclose(of_acting, samples["log_probs"], atol=1e-4)


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


def test_without_normalisation_there_are_no_moments() -> None:
    learner = make_learner(normalize_observations=False)
    learner.update(roll(learner), progress=0.0)
    published = wire.decode(learner.weights(), wire.Kind.WEIGHTS)
    assert published["observation_mean"].shape == published["observation_std"].shape == (0,)
    assert float(published["observation_clip"]) > 1e30


def test_the_published_policy_acts_as_the_learner_does() -> None:
    """The actors' numpy inference equals the torch policy within 1e-5, with moments and clipping active."""
    learner = make_learner()
    learner.update(roll(learner, seed=1, trajectories=12), progress=0.0)
    batch = roll(learner, seed=2, trajectories=12)
    samples = learner.samples(batch).arrays
    policy = Policy.from_bytes(learner.weights())
    means = [policy.outputs(observation) for observation in samples.observations]
    np.testing.assert_allclose(samples.old_outputs[:, :ACTION_SIZE], means, atol=1e-5)
    np.testing.assert_array_equal(
        samples.old_outputs[:, ACTION_SIZE:],
        np.tile(learner.policy.log_std.detach().numpy(), (144, 1)),
    )


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


def test_staleness_is_told_and_nothing_is_replayed() -> None:
    learner = make_learner()
    batch = roll(learner)
    assert learner.update(batch, progress=0.0).staleness.tolist() == [0, 0, 0]
    update = learner.update(batch, progress=0.0)
    assert update.staleness.tolist() == [1, 1, 1] and not update.is_replay
    assert learner.replay(progress=0.0) is None


# Advantages and value targets


@pytest.mark.parametrize("merged_before", [False, True])
def test_truncations_bootstrap_and_terminations_do_not(merged_before: bool) -> None:
    """Returns targets of a whole batch as explicit double sums over the critic's own values."""
    discount, gae_lambda = 0.9, 0.8
    learner = make_learner(discount=discount, gae_lambda=gae_lambda)
    mean, std, clip = np.zeros(3), np.ones(3), 10.0
    if merged_before:
        earlier = roll(learner, seed=5)
        learner.update(earlier, progress=0.0)
        rows = earlier.observations.reshape(-1, 3).astype(np.float64)
        mean, std = rows.mean(0), rows.std(0)
    batch = roll(learner, seed=8, steps=14, trajectories=4)
    assert batch.terminated.any() and batch.bootstrap_mask[:-1].any()
    samples = learner.samples(batch).arrays

    def value(observation: np.ndarray) -> float:
        normalised = np.clip((observation.astype(np.float64) - mean) / std, -clip, clip)
        return float(forward(learner.critic, normalised[None])[0, 0])

    places = [
        (step, column)
        for column in range(4)
        for step in range(14)
        if batch.bootstrap_mask[step, column]
    ]
    beyond = {
        place: value(observation)
        for place, observation in zip(places, batch.bootstrap_observations, strict=True)
    }
    values = {(t, b): value(batch.observations[t, b]) for t in range(14) for b in range(4)}

    def delta(step: int, column: int) -> float:
        if batch.terminated[step, column]:
            following = 0.0
        elif (step, column) in beyond:
            following = beyond[step, column]
        else:
            following = values[step + 1, column]
        return float(batch.rewards[step, column]) + discount * following - values[step, column]

    for step, column in values:
        last = step
        while not (batch.terminated[last, column] or batch.bootstrap_mask[last, column]):
            last += 1
        expected = sum(
            (discount * gae_lambda) ** (later - step) * delta(later, column)
            for later in range(step, last + 1)
        )
        row = step * 4 + column
        assert float(samples.value_targets[row]) == pytest.approx(
            expected + values[step, column], abs=1e-4
        )


def test_advantages_are_scaled_over_the_whole_batch_and_value_targets_are_not() -> None:
    learner = make_learner()
    batch = roll(learner, reward=lambda actions: 50.0 + 10.0 * actions[..., 0].astype(np.float64))
    samples = learner.samples(batch)
    numbers = (samples.arrays.value_targets - samples.values).tolist()
    mean = math.fsum(numbers) / len(numbers)
    std = math.sqrt(math.fsum((x - mean) ** 2 for x in numbers) / len(numbers))
    np.testing.assert_allclose(
        samples.arrays.advantages, [(x - mean) / std for x in numbers], rtol=1e-4, atol=1e-4
    )


def test_equal_advantages_do_not_become_nan() -> None:
    learner = make_learner(observation_size=1, action_size=1)
    one = Batch(
        policy_versions=np.zeros(1, np.int64),
        lengths=np.ones(1, np.int64),
        observations=np.ones((1, 1, 1), np.float32),
        actions=np.ones((1, 1, 1), np.float32),
        log_probs=np.full((1, 1), -1.4, np.float32),
        rewards=np.ones((1, 1)),
        terminated=np.ones((1, 1), np.bool_),
        bootstrap_mask=np.zeros((1, 1), np.bool_),
        bootstrap_observations=np.empty((0, 1), np.float32),
    )
    update = learner.update(one, progress=0.0)
    metrics, samples = update.metrics, update.samples
    assert np.isfinite(parameters_of(learner)).all()
    assert samples.advantages.tolist() == [0.0]
    assert metrics.explained_variance is None


def test_the_samples_lie_in_the_order_of_the_batch() -> None:
    learner = make_learner()
    batch = roll(learner, steps=5, trajectories=3)
    samples = learner.update(batch, progress=0.0).samples
    for step in range(5):
        for column in range(3):
            row = step * 3 + column
            np.testing.assert_array_equal(
                samples.observations[row], batch.observations[step, column]
            )
            np.testing.assert_array_equal(samples.actions[row], batch.actions[step, column])
            assert samples.log_probs[row] == batch.log_probs[step, column]
    assert {name: array.dtype.name for name, array in vars(samples).items()} == dict.fromkeys(
        vars(samples), "float32"
    )


# The loss and its gradient


@pytest.mark.parametrize("kl_coefficient", [0.0, 0.7])
def test_the_loss_equals_plain_python(kl_coefficient: float) -> None:
    """Returns −surrogate + c_v·½(V − target)² − c_H·H + β·KL(old ‖ new), with ratios clipped on both sides."""
    learner = make_learner(
        clip=0.2, value_coefficient=0.6, entropy_coefficient=0.05, kl_coefficient=kl_coefficient
    )
    samples = learner.samples(roll(learner, steps=20))
    tensors = samples.tensors
    torch.manual_seed(1)
    scramble(learner.policy, 0.03)
    minibatch = {name: tensor.numpy().copy() for name, tensor in tensors.items()}
    ratios = ratios_of(learner, minibatch)
    for side in (ratios > 1.2, ratios < 0.8, np.abs(ratios - 1.0) < 0.2):
        for sign in (1.0, -1.0):
            assert (side & (sign * minibatch["advantages"] > 0.0)).any()
    expected = plain_losses_of(learner, minibatch)
    outputs, values = (
        learner.policy(tensors["observations"]),
        learner.critic(tensors["observations"]),
    )
    loss = learner.objective.loss(outputs, values, tensors)
    policy_loss, value_loss, entropy = learner.gradients(samples).losses.means.tolist()
    assert policy_loss == pytest.approx(expected["policy"], rel=1e-4, abs=1e-5)
    assert value_loss == pytest.approx(expected["value"], rel=1e-4)
    assert entropy == pytest.approx(expected["entropy"], rel=1e-5)
    assert expected["kl"] > 0.05
    total = (
        expected["policy"]
        + 0.6 * expected["value"]
        - 0.05 * expected["entropy"]
        + kl_coefficient * expected["kl"]
    )
    assert loss.item() == pytest.approx(total, rel=1e-4, abs=1e-5)


def ratios_of(learner: Ppo, minibatch: dict[str, np.ndarray]) -> np.ndarray:
    means, log_std = (
        forward(learner.policy, minibatch["observations"]).tolist(),
        learner.policy.log_std.tolist(),
    )
    return np.array(
        [
            math.exp(log_density(action, mean, log_std) - old)
            for action, mean, old in zip(
                minibatch["actions"].tolist(), means, minibatch["log_probs"].tolist(), strict=True
            )
        ]
    )


def test_the_gradient_is_the_slope_of_the_plain_loss() -> None:
    """Compares every parameter's gradient with a central difference of the plain loss, without autodiff."""
    learner = make_double_learner(
        seed=3,
        value_coefficient=0.6,
        entropy_coefficient=0.05,
        kl_coefficient=0.4,
        max_gradient_norm=None,
    )
    source = make_learner(seed=3)
    samples = source.samples(roll(source))
    samples = replace(
        samples, tensors={name: tensor.double() for name, tensor in samples.tensors.items()}
    )
    minibatch = {name: tensor.numpy().copy() for name, tensor in samples.tensors.items()}
    named = {
        (which, name): parameter.detach().numpy().copy()
        for which, network in (("policy", learner.policy), ("critic", learner.critic))
        for name, parameter in network.named_parameters()
    }

    def plain_loss() -> float:
        policy, critic = (
            {name: array for (owner, name), array in named.items() if owner == which}
            for which in ("policy", "critic")
        )
        parts = plain_losses(
            forward(learner.policy, minibatch["observations"], policy),
            policy["log_std"].tolist(),
            forward(learner.critic, minibatch["observations"], critic)[:, 0],
            minibatch,
            0.2,
        )
        return parts["policy"] + 0.6 * parts["value"] - 0.05 * parts["entropy"] + 0.4 * parts["kl"]

    slopes = {}
    for key, array in named.items():
        slope = np.empty_like(array)
        for place in np.ndindex(*array.shape):
            kept = array[place]
            array[place] = kept + 1e-5
            above = plain_loss()
            array[place] = kept - 1e-5
            slope[place] = (above - plain_loss()) / 2e-5
            array[place] = kept
        slopes[key] = slope
    gradients = learning.gradients(learner, samples)
    assert set(gradients) == {".".join(key) for key in slopes}
    for (which, name), slope in slopes.items():
        np.testing.assert_allclose(
            gradients[f"{which}.{name}"], slope, rtol=1e-4, atol=1e-6, err_msg=f"{which}.{name}"
        )
    assert max(float(np.abs(slope).max()) for slope in slopes.values()) > 0.1


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "slope"),
    [
        (1.0, 2.0, 2.0, 1),
        (1.1, 2.0, 2.2, 1),
        (1.5, 2.0, 2.4, 0),
        (0.5, 2.0, 1.0, 1),
        (1.0, -2.0, -2.0, 1),
        (0.9, -2.0, -1.8, 1),
        (0.5, -2.0, -1.6, 0),
        (1.5, -2.0, -3.0, 1),
    ],
)
def test_the_ratio_is_clipped_only_where_that_lowers_the_objective(
    ratio: float, advantage: float, expected: float, slope: int
) -> None:
    """ε = 0.2; if the ratio is clipped, the objective no longer changes the policy."""
    surrogate, slopes = make_learner(clip=0.2).surrogate(
        torch.tensor([math.log(ratio) - 3.0]),
        {"advantages": torch.tensor([advantage]), "log_probs": torch.tensor([-3.0])},
    )
    assert float(surrogate) == pytest.approx(expected, rel=1e-6)
    # d(ratio·Â)/d log π = ratio·Â
    assert float(slopes) == pytest.approx(slope * ratio * advantage, rel=1e-6)


def test_entropy_bonus_widens_the_policy() -> None:
    """∂H/∂log σ = 1 in every dimension, so plain descent raises log σ by the coefficient and changes nothing else."""
    changed = {}
    for coefficient in (0.0, 0.25):
        learner = make_learner(
            epochs=1,
            minibatch_steps=1000,
            entropy_coefficient=coefficient,
            max_gradient_norm=None,
            learning_rate=0.1,
        )
        learning.descend_plainly(learner)
        learner.update(roll(learner), progress=0.0)
        changed[coefficient] = {
            name: p.detach().numpy().copy() for name, p in learner.policy.named_parameters()
        }
    np.testing.assert_allclose(
        changed[0.25].pop("log_std") - changed[0.0].pop("log_std"), 0.1 * 0.25, atol=1e-6
    )
    for name, array in changed[0.0].items():
        np.testing.assert_array_equal(changed[0.25][name], array)


def test_the_value_coefficient_scales_the_critics_step_and_nothing_else() -> None:
    moved = {}
    for coefficient in (0.0, 1.0, 0.25):
        learner = make_learner(
            epochs=1,
            minibatch_steps=1000,
            value_coefficient=coefficient,
            max_gradient_norm=None,
            learning_rate=0.01,
        )
        learning.descend_plainly(learner)
        before = parameters_of(learner)
        learner.update(roll(learner), progress=0.0)
        moved[coefficient] = parameters_of(learner) - before
    policy = policy_size_of(learner)
    np.testing.assert_array_equal(moved[0.0][policy:], 0.0)
    assert np.abs(moved[1.0][policy:]).max() > 1e-4
    np.testing.assert_allclose(moved[0.25][policy:], 0.25 * moved[1.0][policy:], atol=2e-7)
    for coefficient in (1.0, 0.25):
        np.testing.assert_array_equal(moved[coefficient][:policy], moved[0.0][:policy])


def test_the_gradient_is_clipped_for_each_network_by_itself() -> None:
    """Each network's step has the greatest allowed length. A joint norm would leave the smaller one almost nothing."""
    free, clipped = (one_plain_step(max_gradient_norm) for max_gradient_norm in (None, 1e-2))
    for part in (0, 1):
        length = float(np.linalg.norm(free[part]))
        assert length > 1e-2
        assert float(np.linalg.norm(clipped[part])) == pytest.approx(1e-2, rel=1e-3)
        np.testing.assert_allclose(clipped[part], free[part] * (1e-2 / length), atol=1e-6)


def test_a_gradient_within_the_limit_is_left_alone() -> None:
    free, clipped = (one_plain_step(max_gradient_norm) for max_gradient_norm in (None, 1e6))
    for part in (0, 1):
        np.testing.assert_array_equal(clipped[part], free[part])


def one_plain_step(max_gradient_norm: float | None) -> tuple[np.ndarray, np.ndarray]:
    """Returns the changes of policy and critic in one step of plain descent with learning rate 1."""
    learner = make_learner(
        epochs=1, minibatch_steps=1000, max_gradient_norm=max_gradient_norm, learning_rate=1.0
    )
    learning.descend_plainly(learner)
    before = parameters_of(learner)
    learner.update(roll(learner), progress=0.0)
    lost = before - parameters_of(learner)
    return lost[: policy_size_of(learner)], lost[policy_size_of(learner) :]


def test_the_optimiser_is_adam() -> None:
    """Its first step is the learning rate against the gradient's sign, for a gradient of any size."""
    learner = make_learner(
        epochs=1, minibatch_steps=1000, max_gradient_norm=None, learning_rate=1e-3
    )
    gradient = np.concatenate(one_plain_step(None))
    before = parameters_of(learner)
    learner.update(roll(learner), progress=0.0)
    moved = parameters_of(learner) - before
    steep = np.abs(gradient) > 1e-3
    assert steep.sum() > 1000
    np.testing.assert_allclose(moved[steep], -1e-3 * np.sign(gradient[steep]), rtol=0.02)
    assert np.abs(moved).max() <= 1.001e-3


# Schedules


@pytest.mark.parametrize(
    ("schedule", "progress", "expected"),
    [
        ("constant", 0.0, 4e-4),
        ("constant", 0.75, 4e-4),
        ("constant", 1.0, 4e-4),
        ("linear", 0.0, 4e-4),
        ("linear", 0.25, 3e-4),
        ("linear", 0.75, 1e-4),
        ("linear", 1.0, 0.0),
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


def test_the_linear_schedule_does_not_compound() -> None:
    learner = make_learner(epochs=1, learning_rate=1e-3, learning_rate_schedule="linear")
    rates = [
        learner.update(roll(learner, seed=k), progress=k / 4).metrics.learning_rate
        for k in range(4)
    ]
    assert rates == pytest.approx([1e-3, 7.5e-4, 5e-4, 2.5e-4])


@pytest.mark.parametrize(
    ("kl", "factor"),
    [
        (0.0, 0.5),
        (0.0049, 0.5),
        (0.0051, 1.0),
        (0.01, 1.0),
        (0.0199, 1.0),
        (0.0201, 1.5),
        (5.0, 1.5),
    ],
)
def test_the_kl_coefficient_adapts(kl: float, factor: float) -> None:
    """Target 0.01: ×1.5 above twice the target, ×0.5 below half of it, otherwise unchanged."""
    assert adapted_kl_coefficient(0.2, kl=kl, kl_target=0.01) == pytest.approx(0.2 * factor)


@pytest.mark.parametrize(("target_share", "factor"), [(3.0, 0.5), (1.0, 1.0), (0.3, 1.5)])
def test_the_update_adapts_to_the_kl_that_it_reports(target_share: float, factor: float) -> None:
    kl = make_and_update(kl_coefficient=0.2)[1].kl
    learner, metrics = make_and_update(kl_coefficient=0.2, kl_target=kl * target_share)
    assert metrics.kl == kl > 0.0
    assert learner.kl_coefficient == pytest.approx(0.2 * factor)


@pytest.mark.parametrize("kl_target", [1e-9, 1e9])
def test_a_kl_coefficient_of_zero_stays_zero(kl_target: float) -> None:
    learner, _ = make_and_update(kl_coefficient=0.0, kl_target=kl_target)
    assert learner.kl_coefficient == 0.0


def make_and_update(**options):
    learner = make_learner(learning_rate=1e-3, **options)
    return learner, learner.update(roll(learner), progress=0.0).metrics


def test_the_kl_penalty_holds_the_policy_back() -> None:
    free, held = (
        make_and_update(epochs=10, kl_coefficient=coefficient)[1].kl for coefficient in (0.0, 100.0)
    )
    assert held < 0.5 * free


# Metrics


def test_metrics_equal_plain_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """KL over the whole batch after the update; losses and entropy are means over the last epoch's samples."""
    learner = make_learner(
        epochs=3, minibatch_steps=10, learning_rate=1e-3, normalize_observations=False
    )
    batch = roll(learner, steps=11)
    values = learner.samples(batch).values
    steps = record_steps(learner, monkeypatch)
    update = learner.update(batch, progress=0.0)
    metrics, samples = update.metrics, update.samples
    last_epoch = steps[-len(steps) // 3 :]
    sizes = [len(step["advantages"]) for step in last_epoch]
    assert len(steps) == 12 and sum(sizes) == 33 and len(set(sizes)) == 2
    means = [
        math.fsum(step["result"][part] * size for step, size in zip(last_epoch, sizes, strict=True))
        / 33
        for part in range(3)
    ]
    assert [metrics.policy_loss, metrics.value_loss, metrics.entropy] == pytest.approx(
        means, rel=1e-5, abs=1e-7
    )

    normalised = np.concatenate([step["observations"] for step in last_epoch])
    old_outputs = np.concatenate([step["old_outputs"] for step in last_epoch])
    old_means, old_log_std = (
        old_outputs[:, :ACTION_SIZE].tolist(),
        old_outputs[0, ACTION_SIZE:].tolist(),
    )
    new_means = forward(learner.policy, normalised).tolist()
    log_std = learner.policy.log_std.tolist()
    kl = (
        math.fsum(
            kl_divergence(old, old_log_std, new, log_std)
            for old, new in zip(old_means, new_means, strict=True)
        )
        / 33
    )
    assert metrics.kl == pytest.approx(kl, rel=1e-3)
    residual = samples.value_targets - values
    assert metrics.explained_variance == pytest.approx(
        1.0 - float(np.var(residual)) / float(np.var(samples.value_targets)), rel=1e-5, abs=1e-6
    )


def test_metrics_of_a_single_step_are_those_before_it() -> None:
    learner = make_learner(epochs=1, minibatch_steps=1000, normalize_observations=False)
    batch = roll(learner)
    minibatch = {
        name: tensor.numpy().copy() for name, tensor in learner.samples(batch).tensors.items()
    }
    expected = plain_losses_of(learner, minibatch)
    metrics = learner.update(batch, progress=0.0).metrics
    assert metrics.policy_loss == pytest.approx(expected["policy"], abs=1e-5)
    assert metrics.value_loss == pytest.approx(expected["value"], rel=1e-4)
    assert metrics.entropy == pytest.approx(expected["entropy"], rel=1e-5)
    assert all(isinstance(number, float) for number in vars(metrics).values())


# Minibatches


@pytest.mark.parametrize("minibatch_steps", [1, 7, 12, 35, 36, 37, 4096])
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


def test_the_same_seed_gives_the_same_learner_bit_for_bit() -> None:
    """Results do not depend on the global random generators, and do not advance them."""
    learners = []
    for global_seed in (1, 2):
        torch.manual_seed(global_seed)
        np.random.seed(global_seed)
        before = torch.get_rng_state()
        learner = make_learner(seed=9, kl_coefficient=0.2)
        for k in range(2):
            learner.update(roll(learner, seed=k), progress=0.1 * k)
        assert torch.equal(torch.get_rng_state(), before)
        learners.append(learner)
    assert_same(everything(learners[0]), everything(learners[1]))
    assert learners[0].weights() == learners[1].weights()


def test_another_seed_gives_another_learner() -> None:
    assert make_learner(seed=1).weights() != make_learner(seed=2).weights()


def test_a_restored_learner_continues_bit_for_bit() -> None:
    """Networks, Adam's moments and step counts, observation moments, β and version. Values travel as JSON."""
    options = {
        "kl_coefficient": 0.2,
        "kl_target": 1e-6,
        "learning_rate": 1e-3,
        "learning_rate_schedule": "linear",
    }
    original = make_learner(seed=4, **options)
    for k in range(2):
        original.update(roll(original, seed=k), progress=0.1 * k)
    assert original.kl_coefficient == pytest.approx(0.2 * 1.5**2)
    state = original.get_state()
    saved = State(
        {name: array.copy() for name, array in state.arrays.items()},
        json.loads(json.dumps(state.values)),
    )
    restored = make_learner(seed=4, **options)
    restored.set_state(saved)
    assert restored.weights() == original.weights()
    assert restored.policy_version == 2 and restored.kl_coefficient == original.kl_coefficient
    for k in (2, 3):
        batch = roll(original, seed=k)
        update, again = (
            learner.update(batch, progress=0.1 * k) for learner in (original, restored)
        )
        assert update.metrics == again.metrics
        assert_same(vars(update.samples), vars(again.samples))
    assert_same(everything(original), everything(restored))
    assert any(
        name.startswith("optimizer.") and name.endswith("exp_avg_sq") for name in saved.arrays
    )


def test_restoring_copies_the_state() -> None:
    """A learner that continues does not write to the arrays that restored it."""
    state = make_and_update()[0].get_state()
    saved = State({name: array.copy() for name, array in state.arrays.items()}, dict(state.values))
    kept = {name: array.copy() for name, array in saved.arrays.items()}
    restored = make_learner()
    restored.set_state(saved)
    restored.update(roll(restored, seed=1), progress=0.0)
    assert_same(saved.arrays, kept)


def test_a_state_does_not_change_when_the_learner_goes_on() -> None:
    """A state describes the learner at the time of the call, whatever happens later."""
    learner, _ = make_and_update()
    state = learner.get_state()
    kept = {name: array.copy() for name, array in state.arrays.items()}
    learner.update(roll(learner, seed=1), progress=0.0)
    assert_same(state.arrays, kept)


def test_a_state_before_the_first_update() -> None:
    fresh, restored = make_learner(seed=5), make_learner(seed=5)
    restored.set_state(fresh.get_state())
    batch = roll(fresh)
    fresh.update(batch, progress=0.0)
    restored.update(batch, progress=0.0)
    assert_same(everything(fresh), everything(restored))


@pytest.mark.parametrize("foreign", ["observations", "actions", "arrays", "values", "algorithm"])
def test_a_state_of_another_network_is_refused(foreign: str) -> None:
    sizes = {"observations": {"observation_size": 5}, "actions": {"action_size": 4}}
    state = make_learner(**sizes.get(foreign, {})).get_state()
    if foreign == "arrays":
        state = State({}, state.values)
    if foreign == "values":
        state = State(state.arrays, {})
    if foreign == "algorithm":
        state = State(state.arrays, {**state.values, "algorithm": "impala"})
    with pytest.raises(CheckpointError, match="does not fit"):
        make_learner().set_state(state)


# Learning


def test_the_better_action_becomes_likelier() -> None:
    """A bandit pays 1 for a positive action: the probability Φ(μ/σ) rises from about ½ to nearly 1."""
    learner = make_learner(
        observation_size=1, action_size=1, epochs=5, minibatch_steps=32, learning_rate=3e-3
    )

    def chance() -> float:
        mean = float(Policy.from_bytes(learner.weights()).best_action(np.ones(1, np.float32))[0])
        return 0.5 * (
            1.0 + math.erf(mean / math.exp(learner.policy.log_std.tolist()[0]) / math.sqrt(2.0))
        )

    chances = [chance()]
    for k in range(12):
        learner.update(
            bandit(
                learner.weights(),
                Spaces((1,), action_size=1),
                seed=100 + k,
                pays=lambda observations, actions: actions[..., 0] > 0.0,
            ),
            progress=0.0,
        )
        chances.append(chance())
    assert chances[0] == pytest.approx(0.5, abs=0.05)
    assert chances[3] > chances[0] + 0.05
    assert chances[-1] > 0.9


def test_the_critic_learns_the_reward() -> None:
    """With γ = 0, the value of every observation is its reward, here 1."""
    learner = make_learner(epochs=20, learning_rate=1e-3, discount=0.0)
    batch = roll(learner, reward=lambda actions: np.ones(actions.shape[:2]))
    losses = [learner.update(batch, progress=0.0).metrics.value_loss for _ in range(4)]
    assert losses[-1] < 0.25 * losses[0]


def test_discrete_actions_are_chosen_by_what_is_seen() -> None:
    """Action 2 pays if the feature is positive, action 0 if it is negative."""
    spaces = Spaces((1,), action_count=3)
    learner = Ppo(
        LearnerSpec(
            PpoSettings(
                kind="ppo",
                epochs=5,
                minibatch_steps=32,
                learning_rate=3e-3,
                normalize_observations=True,
            ),
            spaces,
        )
    )
    for k in range(12):
        learner.update(
            bandit(
                learner.weights(),
                spaces,
                seed=k,
                pays=lambda observations, actions: (
                    actions == np.where(observations[..., 0] > 0.0, 2, 0)
                ),
            ),
            progress=0.0,
        )
    policy = Policy.from_bytes(learner.weights())
    assert [policy.best_action(np.array([x], np.float32)) for x in (-1.0, 1.0)] == [0, 2]
