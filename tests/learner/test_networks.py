"""The networks against plain Python, and their weights in the actors' numpy inference."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lambda_actor.spaces import Spaces
from runtime.learner import make_learner
from runtime.learner.functions.messages import spec_of, spec_values
from runtime.learner.networks import PolicyNetwork, ValueNetwork, layer_arrays
from tests.learner import learning
from tests.learner.learning import (
    VECTORS,
)

pytestmark = pytest.mark.usefixtures("one_thread")
ATARI = Spaces((3, 84, 84), frame_shape=(1, 84, 84), frame_stack=3, action_count=6)


def test_the_convolutions_have_the_papers_shapes() -> None:
    """84 → 21 → 11 → 1. Paper: Nitro §8.1 (16 filters of 8×8, 32 of 4×4, 256 of 11×11)."""
    network = PolicyNetwork(ATARI, "conv")
    shapes = [list(array.shape) for array in layer_arrays(network).values()]
    assert shapes[::2] == [[16, 3, 8, 8], [32, 16, 4, 4], [256, 32, 11, 11], [6, 256]]


@torch.no_grad()
def test_networks_begin_orthogonal_and_a_new_policy_hardly_looks() -> None:
    layers = PolicyNetwork(VECTORS).layers
    shapes = [tuple(layers[index].weight.shape) for index in (0, 2, 4)]
    assert shapes == [(256, 3), (256, 256), (2, 256)], "paper: Nitro §8.1"
    for index, gain in ((0, 2.0), (2, 2.0), (4, 1e-4)):
        weight = layers[index].weight if index < 4 else layers[index].weight.T
        torch.testing.assert_close(
            weight.T @ weight, gain * torch.eye(weight.shape[1]), atol=1e-5, rtol=0.0
        )
    assert float(ValueNetwork(VECTORS).layers[4].weight.norm()) == pytest.approx(1.0, rel=1e-5)


@torch.no_grad()
def test_normc_is_rllibs() -> None:
    """Each output's weights have norm 1, or 0.01 in both last layers, and differ; there are no biases."""
    for layers in (
        PolicyNetwork(VECTORS, initialisation="normc").layers,
        ValueNetwork(VECTORS, initialisation="normc").layers,
        PolicyNetwork(ATARI, "conv", "normc").layers,
    ):
        parts = [layer for layer in layers.modules() if hasattr(layer, "weight")]
        for layer, norm in zip(parts, [1.0] * (len(parts) - 1) + [0.01], strict=True):
            norms = layer.weight.flatten(1).norm(dim=1)
            torch.testing.assert_close(norms, torch.full_like(norms, norm))
            assert not layer.bias.any()
        assert parts[0].weight.std() > 0


def test_torchs_own_initial_weights() -> None:
    torch.manual_seed(4)
    layers = PolicyNetwork(VECTORS, initialisation="pytorch").layers
    torch.manual_seed(4)
    assert torch.equal(layers[0].bias, torch.nn.Linear(3, 256).bias)


def test_continuous_actions_begin_with_the_initial_deviation_in_every_process() -> None:
    spec = replace(learning.spec_of(), initial_std=0.5)
    for one in (spec, spec_of(spec_values(spec))):
        policy = make_learner(one, device="cpu").policy
        assert torch.equal(torch.exp(policy.log_std), torch.full((VECTORS.action_size,), 0.5))
