"""What all algorithms share: the papers' losses and their gradient, steps, states, and any spaces."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from lambda_actor.policy import FORBIDDEN
from lambda_actor.spaces import Spaces
from runtime.errors import CheckpointError
from runtime.learner import LearnerSpec
from runtime.learner.ppo import Ppo
from runtime.learner.settings import PpoSettings
from runtime.records.state import State
from tests.learner.learning import (
    DISCRETE,
    MASKED,
    PIXELS,
    SEVERAL_MASKED,
    VECTORS,
    assert_same,
    everything,
    make,
    parameters,
    parameters_of,
    ragged,
    roll,
    scramble,
    written_out,
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
@pytest.mark.parametrize(
    ("kind", "is_capped"), [("ppo", False), ("ppo", True), ("impact", False), ("impala", False)]
)
@pytest.mark.parametrize("size", [1, 257])
def test_losses_and_their_gradient_are_those_of_the_papers(
    kind: str, is_capped: bool, network: str, spaces: Spaces, size: int
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
    tensors = dict(samples.tensors)
    if is_capped:
        tensors["log_caps"] = 0.01 * torch.randn(300, generator=torch.Generator().manual_seed(1))
    part = {name: tensor[indices] for name, tensor in tensors.items()}
    if spaces.has_action_mask:
        masks = torch.from_numpy(batch.action_masks.reshape(300, -1))[indices]
        assert torch.equal(part["old_outputs"] > 0.5 * FORBIDDEN, masks)
    inputs = part["observations"]
    expected = written_out(learner, spaces, part, learner.policy(inputs), learner.critic(inputs))
    means = [-expected["surrogate"], expected["value_loss"], expected["entropy"]]
    _, losses = learner.gradients(tensors, indices)
    assert losses.means.tolist() == pytest.approx([one.item() for one in means], rel=1e-3, abs=1e-5)
    slopes = torch.autograd.grad(-expected["total_loss"], list(parameters(learner).values()))
    for (name, parameter), one in zip(parameters(learner).items(), slopes, strict=True):
        scale = float(one.abs().max()) + 1e-6
        np.testing.assert_allclose(parameter.grad / scale, one / scale, atol=2e-4, err_msg=name)


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


@pytest.mark.parametrize("foreign", ["network", "arrays", "algorithm"])
def test_a_state_of_another_network_is_refused(foreign: str) -> None:
    """Networks of equal shapes too, if another algorithm trained them."""
    state = make(
        "ppo", Spaces((5,), action_size=2) if foreign == "network" else VECTORS
    ).get_state()
    if foreign == "arrays":
        state.arrays.clear()
    if foreign == "algorithm":
        state.values["algorithm"] = "impala"
    with pytest.raises(CheckpointError, match="does not fit"):
        make().set_state(state)


def test_a_factor_makes_a_step_that_much_shorter() -> None:
    moved = []
    for factor in (0.25, 1.0):
        learner = make()
        start = parameters_of(learner)
        samples = learner.samples(roll(learner.weights(), VECTORS))
        learner.apply([(learner.gradients(samples.tensors)[0], factor)])
        moved.append(parameters_of(learner) - start)
    np.testing.assert_allclose(4 * moved[0], moved[1], atol=1e-6)


@BY_KIND
def test_normalised_rewards_have_no_unit(kind: str) -> None:
    """Rewards a thousand times as large train the same, and a replay merges none."""
    one, other = (make(kind, normalize_rewards=True) for _ in range(2))
    for seed in range(3):
        batch = roll(one.weights(), VECTORS, seed=seed)
        one.update(batch, progress=0.0)
        other.update(replace(batch, rewards=1000.0 * batch.rewards), progress=0.0)
    np.testing.assert_allclose(parameters_of(one), parameters_of(other), atol=1e-4)
    scaled = one.rewards(replace(batch, rewards=1e9 * batch.rewards))
    assert np.abs(scaled).max() == 10.0 and 0.5 < one.return_moments.std[0] < 5.0
    one.begin([batch], progress=0.0, is_replay=True)
    assert one.return_moments.count == 3 * batch.env_steps
