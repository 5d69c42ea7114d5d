"""Shared parts of all algorithms: the gradient step, the factory, and the algorithm that the docs add."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from lambda_actor.policy import Policy
from lambda_actor.spaces import Spaces
from runtime.errors import CheckpointError
from runtime.experiment.loading import experiment_from_tree
from runtime.learner import LearnerSpec, make_learner
from runtime.learner.actor_critic import ActorCritic
from runtime.learner.advantages import discounted_so_far
from runtime.learner.impact import Impact
from runtime.learner.impact_settings import ImpactSettings
from runtime.learner.impala import Impala
from runtime.learner.impala_settings import ImpalaSettings
from runtime.learner.ppo import Ppo
from runtime.learner.ppo_settings import PpoSettings
from runtime.records.state import State
from tests.helpers import ROOT
from tests.learner import learning
from tests.learner.learning import (
    DISCRETE,
    MASKED,
    PIXELS,
    SEVERAL,
    SEVERAL_MASKED,
    VECTORS,
    assert_same,
    descend_plainly,
    everything,
    flat,
    parameters_of,
    ragged,
    roll,
    scramble,
)

ALGORITHMS = [
    (Ppo, "ppo", PpoSettings),
    (Impact, "impact", ImpactSettings),
    (Impala, "impala", ImpalaSettings),
]


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("spaces", [VECTORS, PIXELS], ids=["vectors", "pixels"])
@pytest.mark.parametrize(
    ("kind", "name", "settings"), ALGORITHMS, ids=[name for _, name, _ in ALGORITHMS]
)
def test_padding_of_shorter_trajectories_is_trained_on_nowhere(
    kind: type[ActorCritic], name: str, settings: type, spaces: Spaces
) -> None:
    options = {"normalize_observations": not spaces.is_pixels, "normalize_rewards": True}
    section = settings(**options).model_copy(update={"kind": name, "staleness_max": 4})
    learner = kind(LearnerSpec(section, spaces, "conv" if spaces.is_pixels else "mlp"))
    batch, alone = ragged(roll(learner.weights(), spaces), (12, 5, 9))
    learner.begin([batch], progress=0.0)
    assert learner.return_moments.count == batch.env_steps == 26
    assert learner.moments.count == (0 if spaces.is_pixels else 26)
    found, parts = learner.samples(batch), [learner.samples(one) for one in alone]
    order = np.argsort(found.arrays.log_probs)
    for field, array in (vars(found.arrays) | {"values": found.values}).items():
        each = [vars(part.arrays).get(field, part.values) for part in parts]
        if (name, field) == ("ppo", "advantages"):
            # Each part's own are normalized over that part.
            each = [part.arrays.value_targets - part.values for part in parts]
            mean, std = np.concatenate(each).mean(), np.concatenate(each).std()
            each = [(one - mean) / std for one in each]
        expected = np.concatenate(each)[
            np.argsort(np.concatenate([part.arrays.log_probs for part in parts]))
        ]
        np.testing.assert_allclose(array[order], expected, rtol=1e-5, atol=1e-5, err_msg=field)
    update = learner.update(batch, progress=0.0)
    assert len(update.samples.advantages) == 26
    assert len(update.staleness) == 3


# The gradient


@pytest.mark.parametrize(
    ("network", "spaces"),
    [
        ("mlp relu 12", VECTORS),
        ("mlp tanh 9 8 7", Spaces((21,), action_size=17)),
        ("mlp", DISCRETE),
        ("conv", PIXELS),
    ],
)
@pytest.mark.parametrize(("algorithm", "kind", "section"), ALGORITHMS)
@pytest.mark.parametrize("size", [1, 257])
def test_the_gradient_is_autograds_of_the_loss(
    algorithm, kind: str, section, network: str, spaces: Spaces, size: int
) -> None:
    """Equal up to rounding, far from the policy that acted, on minibatches of any size."""
    settings = section(
        normalize_observations=not spaces.is_pixels,
        max_gradient_norm=None,
        entropy_coefficient=0.03,
        value_coefficient=0.7,
    )
    learner = algorithm(
        LearnerSpec(settings.model_copy(update={"kind": kind, "staleness_max": 8}), spaces, network)
    )
    samples = learner.samples(roll(learner.weights(), spaces, steps=100))
    learner.kl_coefficient = 0.4
    for one in (learner.policy, learner.critic):
        scramble(one, 0.05)
    indices = torch.from_numpy(np.random.default_rng(size).permutation(300)[:size])
    minibatch = {name: tensor[indices] for name, tensor in samples.tensors.items()}
    outputs, values = (one(minibatch["observations"]) for one in (learner.policy, learner.critic))
    loss = learner.objective.loss(outputs, values, minibatch)
    expected = torch.autograd.grad(loss, list(learning.parameters(learner).values()))
    found = learning.gradients(learner, samples, indices)
    assert list(found) == list(learning.parameters(learner))
    for (name, gradient), one in zip(found.items(), expected, strict=True):
        scale = float(one.abs().max()) + 1e-6
        np.testing.assert_allclose(gradient / scale, one / scale, atol=5e-5, err_msg=name)


@pytest.mark.parametrize("network", ["mlp", "conv"])
def test_threads_change_nothing(network: str) -> None:
    """Policy and critic, each on its own thread, end the same as one after the other."""
    settings = PpoSettings(normalize_observations=False, minibatch_steps=5)
    one, two = (
        Ppo(
            LearnerSpec(
                settings.model_copy(update={"kind": "ppo"}), PIXELS, network, threads=threads
            )
        )
        for threads in (1, 2)
    )
    batch = roll(one.weights(), PIXELS)
    metrics = [vars(learner.update(batch, progress=0.0).metrics) for learner in (one, two)]
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-4, abs=1e-6)
    if network == "mlp":
        assert two.weights() == one.weights()
        assert np.array_equal(parameters_of(two), parameters_of(one))
    else:
        np.testing.assert_allclose(parameters_of(two), parameters_of(one), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("network", "minibatches"), [("mlp", 100_000), ("conv", 1_000)])
def test_what_ends_the_policys_thread_ends_the_critics(network: str, minibatches: int) -> None:
    """A signal, for example, need not wait for steps that are no longer wanted."""
    section = PpoSettings(kind="ppo", normalize_observations=False)
    learner = CutShort(LearnerSpec(section, PIXELS, network, threads=2))
    samples = learner.samples(roll(learner.weights(), PIXELS))
    with pytest.raises(KeyboardInterrupt):
        learner.descend(samples, [torch.arange(1)] * minibatches)
    assert learner.trained["critic"].optimizer.steps < minibatches


class CutShort(Ppo):
    """Raises KeyboardInterrupt at its first step."""

    def surrogate(self, log_probs, samples):
        raise KeyboardInterrupt


@pytest.mark.parametrize("norm_max", [None, 0.5])
def test_descending_is_one_gradient_and_one_step_after_the_other(norm_max: float | None) -> None:
    """Equal bit for bit, though the critic's steps are one call."""
    settings = PpoSettings(
        normalize_observations=True, value_coefficient=0.03, max_gradient_norm=norm_max
    )
    one, other = (
        Ppo(LearnerSpec(settings.model_copy(update={"kind": "ppo"}), VECTORS)) for _ in range(2)
    )
    batch = roll(one.weights(), VECTORS)
    samples, minibatches = one.samples(batch), [*torch.arange(15).split(4), None]
    losses = one.descend(samples, minibatches)
    for indices, loss in zip(minibatches, losses, strict=True):
        gradients = other.gradients(samples.tensors, indices)
        other.apply([(gradients, 1.0)])
        assert torch.equal(gradients.losses.means, loss.means)
    assert_same(everything(one), everything(other))


# Steps of an update


def make(
    algorithm: type[ActorCritic],
    kind: str,
    section,
    spaces: Spaces = VECTORS,
    *,
    normalize_rewards: bool = False,
) -> ActorCritic:
    settings = section(
        normalize_observations=True,
        learning_rate=1e-3,
        max_gradient_norm=None,
        normalize_rewards=normalize_rewards,
    )
    return algorithm(
        LearnerSpec(settings.model_copy(update={"kind": kind, "staleness_max": 8}), spaces)
    )


@pytest.mark.parametrize(("algorithm", "kind", "section"), ALGORITHMS)
def test_each_gradient_is_a_step_with_its_own_learning_rate(algorithm, kind: str, section) -> None:
    learner = make(algorithm, kind, section)
    descend_plainly(learner)
    batch = roll(learner.weights(), VECTORS)
    learner.begin([batch], progress=0.0)
    samples = learner.samples(batch)
    gradients = [
        learner.gradients(samples.tensors, indices) for indices in torch.arange(36).split(18)
    ]
    before = parameters_of(learner)
    learner.apply(list(zip(gradients, (1.0, 0.25), strict=True)))
    moved = -1e-3 * (flat(gradients[0].tensors) + 0.25 * flat(gradients[1].tensors))
    np.testing.assert_allclose(parameters_of(learner) - before, moved, atol=1e-7)
    assert learner.policy_version == 0, "until the update is finished"
    update = learner.finish(samples, [one.losses for one in gradients])
    assert learner.policy_version == 1
    assert update.metrics.policy_loss == pytest.approx(
        float(np.mean([one.losses.means[0] for one in gradients])), abs=1e-6
    )


@pytest.mark.parametrize(("algorithm", "kind", "section"), ALGORITHMS)
def test_a_restored_learner_continues_bit_for_bit(algorithm, kind: str, section) -> None:
    """Also through JSON, whatever the global generators do. A state does not change when the learner goes on."""
    options = {"kl_coefficient": 0.2, "kl_target": 1e-6} if kind != "impala" else {}
    options |= {"target_update_frequency": 0.01, "buffer_batches": 1} if kind == "impact" else {}
    settings = section(
        kind=kind, normalize_observations=True, learning_rate=1e-3, staleness_max=8, **options
    )
    original, restored = (algorithm(LearnerSpec(settings, VECTORS, seed=4)) for _ in range(2))
    for seed in range(2):
        original.update(roll(original.weights(), VECTORS, seed=seed), progress=0.1)
    state = original.get_state()
    kept = {name: array.copy() for name, array in state.arrays.items()}
    saved = State(kept, json.loads(json.dumps(state.values)))
    restored.update(roll(restored.weights(), VECTORS, seed=9), progress=0.0)
    restored.set_state(saved)
    assert restored.replay(progress=0.0) is None, "minibatches are not kept"
    for seed in range(2, 4):
        batch = roll(original.weights(), VECTORS, seed=seed)
        update = original.update(batch, progress=0.2)
        torch.manual_seed(seed)
        np.random.seed(seed)
        before = torch.get_rng_state()
        again = restored.update(batch, progress=0.2)
        assert torch.equal(torch.get_rng_state(), before)
        assert update.metrics == again.metrics
        assert_same(vars(update.samples), vars(again.samples))
    assert_same(everything(original), everything(restored))
    assert_same(state.arrays, kept)
    counters = {"impact": ("target.log_std", "target_moments.mean", "steps_since_target")}
    assert {*counters.get(kind, ()), "kl_coefficient"} <= everything(original).keys()


@pytest.mark.parametrize("foreign", ["network", "arrays", "values", "algorithm"])
def test_a_state_of_another_network_is_refused(foreign: str) -> None:
    spaces = Spaces((5,), action_size=2) if foreign == "network" else VECTORS
    state = make(*ALGORITHMS[0], spaces).get_state()
    arrays = {} if foreign == "arrays" else state.arrays
    values = {"values": {}, "algorithm": {**state.values, "algorithm": "impala"}}
    with pytest.raises(CheckpointError, match="does not fit"):
        make(*ALGORITHMS[0]).set_state(State(arrays, values.get(foreign, state.values)))


# The factory


def make_spec(kind: str, spaces: Spaces, **overrides) -> LearnerSpec:
    tree = {
        "environment": {"id": "some:thing"},
        "budget": {"usd": 1.0},
        "algorithm": {"kind": kind},
    }
    experiment = (
        experiment_from_tree(tree, source="test").resolved().fitted(spaces, preprocessing="none")
    )
    return LearnerSpec(
        experiment.algorithm, spaces, **{"network": experiment.network.kind, "seed": 3, **overrides}
    )


@pytest.mark.parametrize(("algorithm", "kind", "section"), ALGORITHMS)
def test_normalised_rewards_have_no_unit(algorithm, kind: str, section) -> None:
    """Rewards a thousand times as large train the same. The moments are part of the state, and a replay merges none."""
    learners = []
    for unit in (1.0, 1000.0):
        learner = make(algorithm, kind, section, normalize_rewards=True)
        for seed in range(3):
            batch = roll(learner.weights(), VECTORS, seed=seed)
            learner.update(replace(batch, rewards=unit * batch.rewards), progress=0.0)
        learners.append((learner, batch))
    (one, batch), (other, _) = learners
    np.testing.assert_allclose(parameters_of(one), parameters_of(other), atol=1e-4)
    returns = discounted_so_far(
        batch.rewards, batch.terminated | batch.bootstrap_mask, discount=one.settings.discount
    )
    assert one.return_moments.count == 3 * returns.size and 0.5 < one.return_moments.std[0] < 5.0
    np.testing.assert_allclose(one.rewards(batch) * one.return_moments.std, batch.rewards)
    assert np.abs(one.rewards(replace(batch, rewards=1e9 * batch.rewards))).max() == 10.0
    restored = make(algorithm, kind, section, normalize_rewards=True)
    restored.set_state(one.get_state())
    assert_same(everything(restored), everything(one))
    one.begin([batch], progress=0.0, is_replay=True)
    assert one.return_moments.count == 3 * returns.size
    plain = make(algorithm, kind, section)
    assert (
        plain.rewards(batch) is batch.rewards
        and "return_moments.mean" not in plain.get_state().arrays
    )


@pytest.mark.parametrize("spaces", [VECTORS, DISCRETE, SEVERAL, PIXELS, MASKED, SEVERAL_MASKED])
@pytest.mark.parametrize(("algorithm", "kind", "section"), ALGORITHMS)
def test_any_algorithm_takes_any_spaces(algorithm, kind: str, section, spaces: Spaces) -> None:
    """Made only from a fitted experiment. Its weights act in these spaces, before and after an update."""
    spec = make_spec(kind, spaces)
    learner = make_learner(spec, device="cpu")
    assert type(learner) is algorithm
    learner.update(roll(learner.weights(), spaces), progress=0.0)
    policy = Policy.from_bytes(learner.weights())
    policy.check(spaces)
    assert policy.policy_version == learner.policy_version == 1
    assert policy.network == spec.network


def test_the_package_does_not_import_torch() -> None:
    """Code that only names an algorithm starts quickly."""
    subprocess.run(
        [sys.executable, "-c", "import runtime.learner, sys; assert 'torch' not in sys.modules"],
        cwd=ROOT,
        check=True,
    )
