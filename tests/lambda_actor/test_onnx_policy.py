"""Actors that run an ONNX graph: the actions that they take, and the graphs that they refuse."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from onnx import TensorProto

from lambda_actor import wire
from lambda_actor.environments import make_environment
from lambda_actor.errors import SchemaError
from lambda_actor.frames import apart
from lambda_actor.onnx_policy import GraphPolicy
from lambda_actor.policy import FORBIDDEN, Policy, read_policy
from lambda_actor.rollout import roll_out
from lambda_actor.spaces import Spaces
from runtime.show.onnx import save_onnx
from tests.environments import policy_arrays
from tests.graphs import FLOAT, linear, model, node

VECTOR = Spaces((3,), action_size=2, action_bounds=((-1.0, 1.0), (0.0, 4.0)))
LOW, WIDTH = np.array([-1.0, 0.0]), np.array([2.0, 4.0])


def message(graph: bytes, act: str, epsilon: float = 0.0) -> bytes:
    fields = {
        "policy_version": np.array(4),
        "graph": np.frombuffer(graph, np.uint8),
        "act": wire.text_field(act),
        "epsilon": np.array(epsilon),
    }
    return wire.encode(wire.Kind.GRAPH, fields)


def checked(graph: bytes, act: str, spaces: Spaces, epsilon: float = 0.0) -> GraphPolicy:
    policy = GraphPolicy.from_bytes(message(graph, act, epsilon))
    policy.check(spaces)
    return policy


@pytest.mark.parametrize(
    ("environment_id", "network", "act"),
    [
        ("Pendulum-v1", "mlp", "gaussian"),
        ("tests.environments:make_pictures", "conv", "categorical"),
        ("tests.environments:make_masked", "mlp", "categorical"),
    ],
)
def test_an_exported_policy_samples_the_same_fragment(
    environment_id: str, network: str, act: str, tmp_path: Path
) -> None:
    environment = make_environment(environment_id)
    environment.reset(0)
    fields = policy_arrays(spaces=environment.spaces, network=network, gain=1.0, hidden=16)
    weights = wire.encode(wire.Kind.WEIGHTS, fields)
    save_onnx(tmp_path / "policy.onnx", weights, environment, {})
    graph = message((tmp_path / "policy.onnx").read_bytes(), act)
    plain, found = (
        roll_out(environment, policy, fragment_steps=40, seed=3, round_index=1, slot=0)
        for policy in (Policy.from_bytes(weights), read_policy(graph))
    )
    for name in ("observations", "actions", "log_probs", "rewards", "terminated"):
        np.testing.assert_allclose(
            vars(found)[name], vars(plain)[name], rtol=1e-5, atol=1e-5, err_msg=name
        )
    assert (found.action_masks is None) == (plain.action_masks is None)


def test_a_picture_and_a_vector_are_two_inputs() -> None:
    environment = make_environment("tests.environments:make_signs")
    frames = [environment.reset(seed) for seed in range(5)]
    pictures, vectors = apart(np.stack(frames), environment.spaces)
    flat, width = pictures.reshape(5, -1), vectors.shape[1]
    weight = np.random.default_rng(0).normal(size=(flat.shape[1] + width, 2)).astype(np.float32)
    graph = model(
        [
            node("Cast", "picture", "floats", to=FLOAT),
            node("Flatten", "floats", "flat"),
            node("Concat", "flat vector", "seen", axis=1),
            node("MatMul", "seen weight", "logits"),
        ],
        {"picture": ["batch", *pictures.shape[1:]], "vector": ["batch", width]},
        {"logits": ["batch", 2]},
        {"weight": weight},
        types={"picture": TensorProto.UINT8},
    )
    policy = checked(graph.SerializeToString(), "categorical", environment.spaces)
    expected = np.concatenate([flat, vectors], 1) @ weight
    np.testing.assert_allclose(policy.outputs_together(frames), expected, rtol=1e-4)


# Ways to act


def test_a_squashed_gaussian_is_stable_baselines3s() -> None:
    policy = checked(linear(3, {"mean": 2, "log_std": 2}), "squashed_gaussian", VECTOR)
    observations = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32) * 3.0
    noise = policy.noise(np.random.default_rng(1), 200)
    outputs = policy.outputs_together(list(observations))
    actions = np.array(policy.sample_together(outputs, noise))
    means, log_stds = torch.from_numpy(outputs).double().chunk(2, 1)
    drawn = means + log_stds.exp() * torch.from_numpy(noise).double()
    squashed = torch.distributions.TransformedDistribution(
        torch.distributions.Normal(means, log_stds.exp()),
        [torch.distributions.TanhTransform(cache_size=1)],
    )
    taken = squashed.transforms[0](drawn)
    np.testing.assert_allclose(actions, LOW + 0.5 * (taken.numpy() + 1.0) * WIDTH, atol=1e-5)
    np.testing.assert_allclose(
        policy.log_probs(outputs, actions, noise),
        squashed.log_prob(taken).sum(1).numpy(),
        rtol=1e-4,
        atol=1e-4,
    )


def test_epsilon_greedy_explores_as_often_as_it_says_among_what_is_allowed() -> None:
    choice = Spaces((3,), action_count=4)
    policy = checked(linear(3, {"q_values": 4}), "epsilon_greedy", choice, epsilon=0.3)
    mask = np.array([True, False, True, True])
    output = policy.outputs(np.array([0.5, -1.0, 2.0], np.float32), mask)
    assert output[1] == FORBIDDEN
    noise = policy.noise(np.random.default_rng(0), 20_000)
    actions = np.array([policy.sample(output, row) for row in noise])
    expected = np.where(mask, 0.1, 0.0) + 0.7 * (np.arange(4) == output.argmax())
    np.testing.assert_allclose(np.bincount(actions, minlength=4) / 20_000, expected, atol=0.02)
    log_probs = policy.log_probs(np.tile(output, (4, 1)), np.arange(4), noise[:4])
    np.testing.assert_allclose(np.exp(log_probs)[mask], expected[mask], rtol=1e-6)


def test_uniform_actions_are_anywhere_between_the_bounds() -> None:
    policy = checked(linear(3, {"mean": 2}), "uniform", VECTOR)
    noise = policy.noise(np.random.default_rng(0), 2000)
    outputs = np.zeros((2000, 2), np.float32)
    actions = np.array(policy.sample_together(outputs, noise))
    evenly = LOW + np.linspace(0.0, 1.0, 2000)[:, None] * WIDTH
    assert (np.abs(np.sort(actions, 0) - evenly) < 0.03 * WIDTH).all()
    np.testing.assert_allclose(policy.log_probs(outputs, actions, noise), -np.log(8.0), rtol=1e-6)


# Graphs that no actor runs


def chance() -> bytes:
    nodes = [
        node("RandomNormalLike", "observation", "noise"),
        node("Add", "observation noise", "logits"),
    ]
    return model(nodes, {"observation": [1, 4]}, {"logits": [1, 4]}).SerializeToString()


GAUSSIAN = linear(3, {"mean": 2, "log_std": 2})


@pytest.mark.parametrize(
    ("graph", "act", "spaces", "words"),
    [
        (b"", "gaussian", VECTOR, "onnxruntime cannot run the graph: "),
        (GAUSSIAN, "gaussian", Spaces((3,), action_size=3), "have 4 numbers; .* needs 6"),
        (linear(3, {"logits": 4}), "categorical", VECTOR, "does not fit .* are gaussian"),
        (GAUSSIAN, "squashed_gaussian", Spaces((3,), action_size=2), "has none on some side"),
        (chance(), "categorical", Spaces((4,), action_count=4), "NaN, or other outputs each time"),
    ],
)
def test_a_graph_that_cannot_act_is_refused(
    graph: bytes, act: str, spaces: Spaces, words: str
) -> None:
    with pytest.raises(SchemaError, match=words):
        checked(graph, act, spaces)
