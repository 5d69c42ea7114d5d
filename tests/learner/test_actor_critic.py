"""What all algorithms share: the papers' losses and their gradient, steps, states, and any spaces."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from lambda_actor.policy import FORBIDDEN, Policy
from lambda_actor.spaces import Spaces
from runtime.errors import CheckpointError
from runtime.experiment.loading import experiment_from_tree
from runtime.learner import LearnerSpec, make_learner
from runtime.learner.advantages import discounted_so_far
from runtime.learner.interfaces import DetectorSamples
from runtime.learner.ppo import Ppo
from runtime.learner.ppo_settings import PpoSettings
from runtime.records.state import State
from tests.helpers import ROOT
from tests.learner.learning import (
    DISCRETE,
    MASKED,
    PIXELS,
    SEVERAL,
    SEVERAL_MASKED,
    VECTORS,
    assert_same,
    distribution_of,
    everything,
    make,
    parameters,
    parameters_of,
    ragged,
    roll,
    scramble,
)

pytestmark = pytest.mark.usefixtures("one_thread")
BY_KIND = pytest.mark.parametrize("kind", ["ppo", "impact", "impala"])


@BY_KIND
@pytest.mark.parametrize("spaces", [VECTORS, PIXELS], ids=["vectors", "pixels"])
def test_padding_of_shorter_trajectories_is_trained_on_nowhere(kind: str, spaces: Spaces) -> None:
    learner, other = (make(kind, spaces, normalize_rewards=True) for _ in range(2))
    batch, _ = ragged(roll(learner.weights(), spaces), (12, 5, 9))
    spoiled = copy.deepcopy(batch)
    for array in (spoiled.observations, spoiled.log_probs, spoiled.rewards):
        array[~batch.is_step] = 77
    update = learner.update(batch, progress=0.0)
    other.update(spoiled, progress=0.0)
    assert_same(everything(learner), everything(other))
    assert learner.return_moments.count == batch.env_steps == len(update.samples.advantages) == 26
    assert learner.moments.count == (0 if spaces.is_pixels else 26)
    assert len(update.staleness) == 3


# The gradient


@pytest.mark.parametrize(
    ("network", "spaces"),
    [
        ("mlp relu 12", VECTORS),
        ("mlp tanh 9 8 7", Spaces((21,), action_size=17)),
        ("mlp", DISCRETE),
        ("mlp", MASKED),
        ("mlp", SEVERAL_MASKED),
        ("conv", PIXELS),
    ],
)
@BY_KIND
@pytest.mark.parametrize("size", [1, 257])
def test_losses_and_their_gradient_are_those_of_the_papers(
    kind: str, network: str, spaces: Spaces, size: int
) -> None:
    """Autograd of − mean surrogate + c_v·½·mean (V − target)² − c_H·mean H + β·mean KL(old ‖ π), written out.

    Far from the policy that acted, on minibatches of any size.
    """
    learner = make(
        kind,
        spaces,
        network,
        max_gradient_norm=None,
        entropy_coefficient=0.03,
        value_coefficient=0.7,
    )
    learner.kl_coefficient = 0.4
    batch = roll(learner.weights(), spaces, steps=100)
    for seed, one in enumerate(learner.networks().values()):
        if kind != "ppo" or one is learner.critic:
            scramble(one, 0.05, seed=seed)
    samples = learner.samples(batch)
    scramble(learner.policy, 0.03, seed=7)
    indices = torch.from_numpy(np.random.default_rng(size).permutation(300)[:size])
    part = {name: tensor[indices] for name, tensor in samples.tensors.items()}
    outputs = learner.policy(part["observations"])
    if spaces.has_action_mask:
        masks = torch.from_numpy(batch.action_masks.reshape(300, -1))[indices]
        assert torch.equal(part["old_outputs"] > 0.5 * FORBIDDEN, masks)
        outputs = torch.where(masks, outputs, float(FORBIDDEN))
    policy, old = (distribution_of(spaces, one) for one in (outputs, part["old_outputs"]))
    surrogate = written_out(
        kind,
        policy.log_prob(part["actions"]),
        old.log_prob(part["actions"]),
        part,
        learner.settings,
    )
    values = learner.critic(part["observations"])
    means = [
        -surrogate.mean(),
        0.5 * ((values - part["value_targets"]) ** 2).mean(),
        policy.entropy().mean(),
    ]
    kl = torch.distributions.kl_divergence(old, policy).mean()
    loss = means[0] + 0.7 * means[1] - 0.03 * means[2] + 0.4 * kl
    found = learner.gradients(samples.tensors, indices)
    assert found.losses.means.tolist() == pytest.approx(
        [one.item() for one in means], rel=1e-3, abs=1e-5
    )
    expected = torch.autograd.grad(loss, list(parameters(learner).values()))
    for (name, parameter), one in zip(parameters(learner).items(), expected, strict=True):
        scale = float(one.abs().max()) + 1e-6
        np.testing.assert_allclose(parameter.grad / scale, one / scale, atol=2e-4, err_msg=name)


def written_out(
    kind: str,
    log_probs: torch.Tensor,
    of_target: torch.Tensor,
    samples: dict[str, torch.Tensor],
    settings: Any,
) -> torch.Tensor:
    """Returns each sample's surrogate.

    PPO: min(r·Â, clip(r, 1 − ε, 1 + ε)·Â), r = π/μ. IMPACT: r = clip(μ/π_target, 0, 2)·π/μ. IMPALA: log π·Â.
    """
    advantages, acted = samples["advantages"], samples["log_probs"]
    if kind == "impala":
        return log_probs * advantages
    ratios = torch.exp(log_probs - acted)
    if kind == "impact":
        ratios = torch.exp(acted - of_target).clip(max=2.0) * ratios
    limited = ratios.clip(1.0 - settings.clip, 1.0 + settings.clip)
    if len(ratios) > 1 and samples["observations"].dim() == 2:
        for side in (limited < ratios, limited > ratios, limited == ratios):
            assert (side & (advantages > 0)).any() and (side & (advantages < 0)).any()
    return torch.minimum(ratios * advantages, limited * advantages)


@pytest.mark.parametrize("network", ["mlp", "conv"])
def test_threads_change_nothing(network: str) -> None:
    """Policy and critic, each on its own thread, end the same as one after the other."""
    one, two = (
        make("ppo", PIXELS, network, threads=threads, minibatch_steps=5, epochs=2)
        for threads in (1, 2)
    )
    batch = roll(one.weights(), PIXELS)
    metrics = [vars(learner.update(batch, progress=0.0).metrics) for learner in (one, two)]
    assert metrics[0] == pytest.approx(metrics[1], rel=1e-4, abs=1e-6)
    rounding = {"rtol": 1e-4, "atol": 1e-5} if network == "conv" else {"rtol": 0.0}
    np.testing.assert_allclose(parameters_of(two), parameters_of(one), **rounding)


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
    """Equal bit for bit, though the critic's steps are one call. A factor makes a step that much shorter."""
    one, other, shorter = (make(value_coefficient=0.03, max_gradient_norm=norm_max) for _ in "abc")
    batch = roll(one.weights(), VECTORS)
    samples, minibatches = one.samples(batch), [*torch.arange(15).split(4), None]
    start = parameters_of(shorter)
    shorter.apply([(shorter.gradients(samples.tensors), 0.25)])
    quarter = parameters_of(shorter) - start
    shorter.set_state(other.get_state())
    shorter.apply([(shorter.gradients(samples.tensors), 1.0)])
    np.testing.assert_allclose(4 * quarter, parameters_of(shorter) - start, atol=1e-6)
    losses = one.descend(samples, minibatches)
    for indices, loss in zip(minibatches, losses, strict=True):
        gradients = other.gradients(samples.tensors, indices)
        other.apply([(gradients, 1.0)])
        assert torch.equal(gradients.losses.means, loss.means)
    assert_same(everything(one), everything(other))


# States


@BY_KIND
def test_a_restored_learner_continues_bit_for_bit(kind: str) -> None:
    """Also through JSON, whatever the global generators do. A state does not change when the learner goes on."""
    options = {"kl_coefficient": 0.2, "kl_target": 1e-6} if kind != "impala" else {}
    options |= {"target_update_frequency": 0.01, "buffer_batches": 1} if kind == "impact" else {}
    original, restored = (make(kind, normalize_rewards=True, **options) for _ in range(2))
    for seed in range(2):
        original.update(roll(original.weights(), VECTORS, seed=seed), progress=0.1)
    state = original.get_state()
    kept = {name: array.copy() for name, array in state.arrays.items()}
    restored.update(roll(restored.weights(), VECTORS, seed=9), progress=0.0)
    restored.set_state(State(kept, json.loads(json.dumps(state.values))))
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


@pytest.mark.parametrize("foreign", ["network", "arrays", "values", "algorithm"])
def test_a_state_of_another_network_is_refused(foreign: str) -> None:
    spaces = Spaces((5,), action_size=2) if foreign == "network" else VECTORS
    state = make("ppo", spaces).get_state()
    arrays = {} if foreign == "arrays" else state.arrays
    values = {"values": {}, "algorithm": {**state.values, "algorithm": "impala"}}
    with pytest.raises(CheckpointError, match="does not fit"):
        make().set_state(State(arrays, values.get(foreign, state.values)))


@BY_KIND
def test_normalised_rewards_have_no_unit(kind: str) -> None:
    """Rewards a thousand times as large train the same, and a replay merges none."""
    one, other = (make(kind, normalize_rewards=True) for _ in range(2))
    for seed in range(3):
        batch = roll(one.weights(), VECTORS, seed=seed)
        one.update(batch, progress=0.0)
        other.update(replace(batch, rewards=1000.0 * batch.rewards), progress=0.0)
    np.testing.assert_allclose(parameters_of(one), parameters_of(other), atol=1e-4)
    returns = discounted_so_far(
        batch.rewards, batch.terminated | batch.bootstrap_mask, discount=one.settings.discount
    )
    assert 0.5 < one.return_moments.std[0] < 5.0
    np.testing.assert_allclose(one.rewards(batch) * one.return_moments.std, batch.rewards)
    assert np.abs(one.rewards(replace(batch, rewards=1e9 * batch.rewards))).max() == 10.0
    one.begin([batch], progress=0.0, is_replay=True)
    assert one.return_moments.count == 3 * returns.size
    assert make(kind).rewards(batch) is batch.rewards


# Any spaces


@pytest.mark.parametrize("spaces", [VECTORS, DISCRETE, SEVERAL, PIXELS, MASKED, SEVERAL_MASKED])
@BY_KIND
def test_any_algorithm_takes_any_spaces(kind: str, spaces: Spaces) -> None:
    """Made only from a fitted experiment. Its weights act in these spaces, before and after an update."""
    tree = {
        "environment": {"id": "some:thing"},
        "budget": {"usd": 1.0},
        "algorithm": {"kind": kind},
    }
    experiment = (
        experiment_from_tree(tree, source="test").resolved().fitted(spaces, preprocessing="none")
    )
    spec = LearnerSpec(experiment.algorithm, spaces, experiment.network.kind)
    learner = make_learner(spec, device="cpu")
    learner.update(roll(learner.weights(), spaces), progress=0.0)
    policy = Policy.from_bytes(learner.weights())
    policy.check(spaces)
    assert policy.policy_version == learner.policy_version == 1
    assert (policy.network, learner.get_state().values["algorithm"]) == (spec.network, kind)


@pytest.mark.parametrize("spaces", [MASKED, SEVERAL_MASKED])
@pytest.mark.parametrize("objective", ["log_prob", "surrogate", "total_loss"])
def test_the_detectors_objectives_are_of_what_is_allowed(objective: str, spaces: Spaces) -> None:
    """Before an update π is the masked policy that acted. The objective can be differentiated twice."""
    learner = make("ppo", spaces)
    scramble(learner.policy, 0.1)
    samples: DetectorSamples = learner.samples(roll(learner.weights(), spaces)).arrays
    problem = learner.curvature_problem(objective, samples)
    value = problem.criterion(problem.module(problem.inputs), problem.targets)
    if objective == "log_prob":
        expected = float((samples.log_probs * samples.advantages).mean())
        assert value.item() == pytest.approx(expected, abs=1e-4)
    variables = list(problem.module.parameters())
    gradients = torch.autograd.grad(value, variables, create_graph=True)
    again = torch.autograd.grad(sum(one.sum() for one in gradients), variables)
    assert all(torch.isfinite(one).all() for one in again)


def test_the_package_does_not_import_torch() -> None:
    """Code that only names an algorithm starts quickly."""
    subprocess.run(
        [sys.executable, "-c", "import runtime.learner, sys; assert 'torch' not in sys.modules"],
        cwd=ROOT,
        check=True,
    )
