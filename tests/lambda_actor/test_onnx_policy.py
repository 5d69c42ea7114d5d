"""Actors that run an ONNX graph: the actions that they take, and the graphs that they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lambda_actor import wire
from lambda_actor.environments import make_environment
from lambda_actor.errors import SchemaError
from lambda_actor.onnx_policy import GraphPolicy
from lambda_actor.policy import FORBIDDEN, Policy, read_policy
from lambda_actor.rollout import Fragment, roll_out
from lambda_actor.spaces import Spaces
from runtime.show.onnx import save_onnx
from tests.environments import policy_arrays
from tests.graphs import linear, model, node

MASKED = "tests.environments:make_masked"
WHERE: dict[str, Any] = {"seed": 3, "round_index": 1, "slot": 0}
VECTOR = Spaces((3,), action_size=2, action_bounds=((-1.0, 1.0), (0.0, 4.0)))
CHOICE = Spaces((3,), action_count=4)


def message(
    graph: bytes, act: str = "gaussian", *, epsilon: float = 0.0, version: int = 4
) -> bytes:
    return wire.encode(
        wire.Kind.GRAPH,
        {
            "policy_version": np.array(version),
            "graph": np.frombuffer(graph, np.uint8),
            "act": wire.text_field(act),
            "epsilon": np.array(epsilon),
        },
    )


def policy_of(graph: bytes, act: str = "gaussian", **options: Any) -> GraphPolicy:
    return GraphPolicy.from_bytes(message(graph, act, **options))


def checked(graph: bytes, act: str, spaces: Spaces, **options: Any) -> GraphPolicy:
    policy = policy_of(graph, act, **options)
    policy.check(spaces)
    return policy


def assert_same(one: Fragment, other: Fragment) -> None:
    for name, array in vars(one).items():
        if isinstance(array, np.ndarray):
            assert array.tobytes() == vars(other)[name].tobytes(), name


# Same actions as the numpy policy


@pytest.mark.parametrize(
    ("environment_id", "network", "act"),
    [
        ("Hopper-v5", "mlp", "gaussian"),
        ("CartPole-v1", "mlp relu 16 8", "categorical"),
        ("tests.environments:make_locks", "mlp", "categorical"),
        ("tests.environments:make_pictures", "conv", "categorical"),
        ("tests.environments:make_signs", "combined", "categorical"),
        (MASKED, "mlp", "categorical"),
    ],
)
def test_an_exported_policy_samples_the_same_fragment(
    environment_id: str, network: str, act: str, tmp_path: Any
) -> None:
    environment = make_environment(environment_id)
    environment.reset(0)
    fields = policy_arrays(spaces=environment.spaces, network=network, gain=1.0, hidden=16)
    weights = wire.encode(wire.Kind.WEIGHTS, fields)
    save_onnx(tmp_path / "policy.onnx", weights, environment, {})
    graph = (tmp_path / "policy.onnx").read_bytes()
    plain = roll_out(environment, Policy.from_bytes(weights), fragment_steps=40, **WHERE)
    found = roll_out(environment, read_policy(message(graph, act)), fragment_steps=40, **WHERE)
    for name in ("observations", "actions", "log_probs", "rewards"):
        np.testing.assert_allclose(
            vars(found)[name], vars(plain)[name], rtol=1e-5, atol=1e-5, err_msg=name
        )
    assert np.array_equal(found.terminated, plain.terminated)
    assert (found.action_masks is None) == (plain.action_masks is None)
    again = roll_out(
        make_environment(environment_id), policy_of(graph, act), fragment_steps=40, **WHERE
    )
    assert_same(again, found)


# Ways to act


def test_a_squashed_gaussian_is_stable_baselines3s() -> None:
    policy = checked(linear(3, {"mean": 2, "log_std": 2}), "squashed_gaussian", VECTOR)
    observations = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32) * 3.0
    noise = policy.noise(np.random.default_rng(1), 200)
    outputs = policy.outputs_together(list(observations))
    actions = np.array(policy.sample_together(outputs, noise))
    low, high = np.array(VECTOR.action_bounds).T
    assert (actions >= low).all() and (actions <= high).all() and actions[:, 1].max() > 3.0
    means, log_stds = torch.from_numpy(outputs).double().chunk(2, 1)
    drawn = means + log_stds.exp() * torch.from_numpy(noise).double()
    np.testing.assert_allclose(
        actions, low + 0.5 * (np.tanh(drawn.numpy()) + 1.0) * (high - low), atol=1e-5
    )
    squashed = torch.distributions.TransformedDistribution(
        torch.distributions.Normal(means, log_stds.exp()),
        [torch.distributions.TanhTransform(cache_size=1)],
    )
    expected = squashed.log_prob(squashed.transforms[0](drawn)).sum(1)
    np.testing.assert_allclose(
        policy.log_probs(outputs, actions, noise), expected.numpy(), rtol=1e-4, atol=1e-4
    )


def test_epsilon_greedy_explores_as_often_as_it_says_among_what_is_allowed() -> None:
    policy = checked(linear(3, {"q_values": 4}), "epsilon_greedy", CHOICE, epsilon=0.3)
    mask = np.array([True, False, True, True])
    output = policy.outputs(np.array([0.5, -1.0, 2.0], np.float32), mask)
    assert output[1] == FORBIDDEN
    noise = policy.noise(np.random.default_rng(0), 20_000)
    actions = np.array([policy.sample(output, row) for row in noise])
    greedy = int(output.argmax())
    found = np.bincount(actions, minlength=4) / len(actions)
    expected = np.where(mask, 0.1, 0.0) + 0.7 * (np.arange(4) == greedy)
    np.testing.assert_allclose(found, expected, atol=0.02)
    assert found[1] == 0.0
    log_probs = policy.log_probs(np.tile(output, (4, 1)), np.arange(4), noise[:4])
    np.testing.assert_allclose(np.exp(log_probs)[mask], expected[mask], rtol=1e-6)


# Graphs that no actor runs


def chance() -> bytes:
    nodes = [
        node("RandomNormalLike", "observation", "noise"),
        node("Add", "observation noise", "logits"),
    ]
    return model(nodes, {"observation": [1, 4]}, {"logits": [1, 4]}).SerializeToString()


FOUR = Spaces((4,), action_count=4)
GAUSSIAN = linear(3, {"mean": 2, "log_std": 2})


@pytest.mark.parametrize(
    ("graph", "act", "spaces", "words"),
    [
        (b"", "gaussian", VECTOR, "onnxruntime cannot run the graph: "),
        (
            linear(3, {"mean": 3, "log_std": 3}),
            "gaussian",
            VECTOR,
            "mean and log_std of the graph have 6 numbers; the environment needs 4",
        ),
        (linear(3, {"logits": 4}), "categorical", VECTOR, "does not fit .* are gaussian"),
        (GAUSSIAN, "squashed_gaussian", Spaces((3,), action_size=2), "has none on some side"),
        (chance(), "categorical", FOUR, "NaN, or other outputs each time"),
    ],
)
def test_a_graph_that_cannot_act_is_refused(
    graph: bytes, act: str, spaces: Spaces, words: str
) -> None:
    with pytest.raises(SchemaError, match=words):
        checked(graph, act, spaces)


def test_uniform_actions_are_between_the_bounds() -> None:
    spaces = Spaces((3,), action_size=2, action_bounds=((-1.0, 3.0), (0.0, 0.5)))
    policy = checked(linear(3, {"mean": 2}), "uniform", spaces)
    noise = policy.noise(np.random.default_rng(0), 2000)
    outputs = np.stack([policy.outputs(np.ones(3, np.float32))] * 2000)
    actions = np.stack([policy.sample(*one) for one in zip(outputs, noise, strict=True)])
    assert actions.dtype == np.float32
    for column, (low, high) in zip(actions.T, spaces.action_bounds, strict=True):
        assert np.abs(np.sort(column) - np.linspace(low, high, 2000)).max() < 0.03 * (high - low)
    np.testing.assert_allclose(
        policy.log_probs(outputs, actions, noise), -np.log(4.0 * 0.5), rtol=1e-6
    )
