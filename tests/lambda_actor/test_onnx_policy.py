"""Actors that run an ONNX graph: the actions that they take, and the graphs that they refuse."""

from __future__ import annotations

import math
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from lambda_actor import handler, wire
from lambda_actor.environments import ActorEnvironment, make_environment
from lambda_actor.errors import EpisodeStateError, SchemaError
from lambda_actor.inline import from_text, to_text
from lambda_actor.onnx_file import FIELDS_MAX, read_ports
from lambda_actor.onnx_policy import GraphPolicy, signature_of
from lambda_actor.policy import FORBIDDEN, Context, Policy
from lambda_actor.replay import ReplayedEnvironment
from lambda_actor.rollout import Fragment, OpenEpisode, Request, roll_out, roll_out_together
from lambda_actor.spaces import Spaces
from runtime.export.onnx import save_onnx
from tests.environments import policy_arrays
from tests.graphs import linear, model, node, recurrent
from tests.helpers import ROOT

MASKED = "tests.environments:make_masked"
WHERE: dict[str, Any] = {"seed": 3, "round_index": 1, "slot": 0}
VECTOR = Spaces((3,), action_size=2, action_bounds=((-1.0, 1.0), (0.0, 4.0)))
CHOICE, SEVERAL = Spaces((3,), action_count=4), Spaces((3,), action_counts=(2, 3))


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
        ("Pendulum-v1", "mlp", "gaussian"),
        ("Hopper-v5", "mlp", "gaussian"),
        ("CartPole-v1", "mlp relu 16 8", "categorical"),
        ("tests.environments:make_locks", "mlp", "categorical"),
        ("tests.environments:make_switches", "mlp", "categorical"),
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
    assert ("action_mask" in read_ports(graph).inputs) == (environment_id == MASKED)
    plain = roll_out(environment, Policy.from_bytes(weights), fragment_steps=40, **WHERE)
    found = roll_out(environment, policy_of(graph, act), fragment_steps=40, **WHERE)
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


def test_the_handler_chooses_by_the_message(tmp_path: Any) -> None:
    environment = make_environment("CartPole-v1")
    weights = wire.encode(wire.Kind.WEIGHTS, policy_arrays(spaces=environment.spaces, hidden=16))
    save_onnx(tmp_path / "policy.onnx", weights, environment, {})
    graph = message((tmp_path / "policy.onnx").read_bytes(), "categorical")
    found = []
    for run_id, given in (("one", weights), ("two", graph)):
        event = {
            "run_id": run_id,
            "cache_url": "",
            "cache_credential": "",
            "cache_ttl_s": 60,
            "stop_digest": "",
            "invocation_id": "i",
            "environment_id": "CartPole-v1",
            "preprocessing": "auto",
            "truncate_at_fragment": False,
            "fragment_steps": 30,
            "policy_version": 4,
            "seed": 1,
            "round_index": 1,
            "slot": 0,
            "episode_id": "",
            "weights": to_text(given),
            "episode": "",
        }
        found.append(
            wire.decode(from_text(handler.handler(event, None)["trajectory"]), wire.Kind.TRAJECTORY)
        )
    for name in ("actions", "observations"):
        np.testing.assert_allclose(found[0][name], found[1][name], atol=1e-5)
    np.testing.assert_allclose(found[0]["log_probs"], found[1]["log_probs"], atol=1e-5)


def test_an_actor_without_a_graph_does_not_load_onnxruntime() -> None:
    code = (
        "import sys, lambda_actor.handler as handler\nfrom lambda_actor.trial import random_weights\n"
        "from lambda_actor.spaces import Spaces\nhandler.read_policy(random_weights(Spaces((3,), action_size=1)))\n"
        "assert not {'onnxruntime', 'onnx', 'lambda_actor.onnx_policy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_fragments_in_lock_step_are_those_of_single_environments() -> None:
    graph = recurrent(3, "mean", 1, log_std=True)
    environments = [make_environment("Pendulum-v1") for _ in range(3)]
    together = roll_out_together(
        environments,
        policy_of(graph),
        [Request(3, 1, slot) for slot in range(3)],
        fragment_steps=25,
    )
    for slot, fragment in enumerate(together):
        assert isinstance(fragment, Fragment)
        assert_same(
            fragment,
            roll_out(
                make_environment("Pendulum-v1"),
                policy_of(graph),
                fragment_steps=25,
                seed=3,
                round_index=1,
                slot=slot,
            ),
        )


# Recurrent graphs


def environments(is_replayed: bool) -> Any:
    if is_replayed:
        return ReplayedEnvironment(
            lambda: make_environment("tests.environments:make_replayed_masked"), is_made_anew=True
        )
    return make_environment("Hopper-v5")


def remembering(is_replayed: bool) -> GraphPolicy:
    if not is_replayed:
        return policy_of(recurrent(11, "action", 3), "actions")
    return policy_of(recurrent(2, "q_values", 5), "epsilon_greedy")


@pytest.mark.parametrize("is_replayed", [False, True])
def test_an_episode_that_another_actor_continues_goes_on_exactly(is_replayed: bool) -> None:
    """Nothing is random here, so a fragment in two parts equals the whole one."""
    whole = roll_out(environments(is_replayed), remembering(is_replayed), fragment_steps=9, **WHERE)
    first = roll_out(environments(is_replayed), remembering(is_replayed), fragment_steps=4, **WHERE)
    assert first.open_episode is not None
    sent = OpenEpisode.from_bytes(first.open_episode.to_bytes())
    assert list(sent.policy_state) == ["h"] and np.abs(sent.policy_state["h"]).max() > 0.0
    second = roll_out(
        environments(is_replayed),
        remembering(is_replayed),
        fragment_steps=5,
        **(WHERE | {"slot": 1}),
        open_episode=sent,
    )
    for name in ("observations", "actions", "rewards", "log_probs"):
        joined = np.concatenate([vars(first)[name], vars(second)[name]])
        assert joined.tobytes() == vars(whole)[name].tobytes(), name
    forgetful = replace(sent, policy_state={"h": np.zeros_like(sent.policy_state["h"])})
    other = roll_out(
        environments(is_replayed),
        remembering(is_replayed),
        fragment_steps=5,
        **(WHERE | {"slot": 1}),
        open_episode=forgetful,
    )
    if not is_replayed:
        assert other.actions.tobytes() != second.actions.tobytes(), "its memory matters"


def test_the_state_is_zero_when_an_episode_starts() -> None:
    """In a fragment of several episodes, each begins as a fresh policy would."""
    environment, policy = (
        make_environment("tests.environments:make_counter"),
        policy_of(recurrent(2, "action", 1), "actions"),
    )
    fragment = roll_out(environment, policy, fragment_steps=30, **WHERE)
    for first in (0, 10, 20):
        context = Context(state=policy.initial_state)
        for step in range(first, first + 10):
            assert (
                policy.outputs(fragment.observations[step], context).tobytes()
                == fragment.actions[step].tobytes()
            )
    assert all((array == 0.0).all() for array in policy.initial_state.values())


@pytest.mark.parametrize(
    "state", [{}, {"h": np.zeros((1, 5), np.float32)}, {"g": np.zeros((1, 4), np.float32)}]
)
def test_an_episode_of_another_policy_is_not_continued(state: dict[str, np.ndarray]) -> None:
    first = roll_out(environments(False), remembering(False), fragment_steps=4, **WHERE)
    assert first.open_episode is not None
    other = replace(first.open_episode, policy_state=state)
    with pytest.raises(
        EpisodeStateError, match=r"by a policy that remembers .*; this one remembers \{'h': 'float3"
    ):
        roll_out(
            environments(False), remembering(False), fragment_steps=4, **WHERE, open_episode=other
        )


# Ways to act


def test_a_gaussian_is_the_numpy_policys_with_its_own_deviation_in_each_state() -> None:
    policy = checked(linear(3, {"mean": 2, "log_std": 2}), "gaussian", VECTOR)
    observations, stream = (
        np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32),
        np.random.default_rng(1),
    )
    noise = policy.noise(stream, 50)
    outputs = policy.outputs_together(list(observations))
    actions = np.array(policy.sample_together(outputs, noise))
    means, log_stds = torch.from_numpy(outputs).chunk(2, 1)
    expected = (
        torch.distributions.Normal(means, log_stds.exp()).log_prob(torch.from_numpy(actions)).sum(1)
    )
    np.testing.assert_allclose(
        policy.log_probs(outputs, actions, noise), expected.numpy(), atol=1e-5
    )
    assert (
        noise.tobytes() == np.random.default_rng(1).standard_normal((50, 2), np.float32).tobytes()
    )


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
    output = policy.outputs(np.array([0.5, -1.0, 2.0], np.float32), Context(mask))
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


def test_without_epsilon_the_largest_value_is_chosen() -> None:
    policy = checked(linear(3, {"q_values": 4}), "epsilon_greedy", CHOICE)
    output = policy.outputs(np.ones(3, np.float32))
    assert policy.sample(output, policy.noise(np.random.default_rng(0), 1)[0]) == output.argmax()
    assert policy.log_probs(
        output[None], np.array([output.argmax()]), np.zeros((1, 2))
    ).tolist() == [0.0]


def test_forbidden_choices_are_never_drawn_whatever_the_graph_gives() -> None:
    """The environment raises at a forbidden action, and the graph does not know the mask."""
    fragment = roll_out(
        make_environment(MASKED),
        policy_of(linear(2, {"logits": 5}), "categorical"),
        fragment_steps=60,
        **WHERE,
    )
    greedy = roll_out(
        make_environment(MASKED),
        policy_of(linear(2, {"q_values": 5}), "epsilon_greedy", epsilon=0.5),
        fragment_steps=60,
        **WHERE,
    )
    assert fragment.action_masks is not None and greedy.action_masks is not None
    assert (fragment.log_probs <= 0.0).all()


def test_minus_infinity_of_the_graphs_own_is_no_failure() -> None:
    nodes = [
        node("Where", "action_mask zero never", "added"),
        node("Add", "observation added", "logits"),
    ]
    graph = model(
        nodes,
        {"observation": [1, 4], "action_mask": [1, 4]},
        {"logits": [1, 4]},
        {"zero": np.float32(0.0), "never": np.array(-np.inf, np.float32)},
        types={"action_mask": TensorProto.BOOL},
    ).SerializeToString()
    spaces = Spaces((4,), action_count=4, has_action_mask=True)
    policy = checked(graph, "categorical", spaces)
    output = policy.outputs(np.ones(4, np.float32), Context(np.array([True, False, True, False])))
    assert output.tolist() == [1.0, FORBIDDEN, 1.0, FORBIDDEN]


def chooser(action: int, *, mask: bool) -> bytes:
    """Returns a graph that chooses one action, or the first allowed one."""
    nodes = (
        [
            node("Cast", "action_mask", "m", to=TensorProto.INT32),
            node("ArgMax", "m", "action", axis=1, keepdims=0),
        ]
        if mask
        else [node("Identity", "constant", "action")]
    )
    inputs = {"observation": [1, 2]} | ({"action_mask": [1, 5]} if mask else {})
    return model(
        nodes,
        inputs,
        {"action": ["batch"]},
        {"constant": np.array([action])},
        types={"action": TensorProto.INT64, "action_mask": TensorProto.BOOL},
    ).SerializeToString()


def test_actions_that_the_graph_chooses_by_the_mask() -> None:
    policy = policy_of(chooser(0, mask=True), "actions")
    fragment = roll_out(make_environment(MASKED), policy, fragment_steps=30, **WHERE)
    assert fragment.action_masks is not None
    assert fragment.actions.tolist() == fragment.action_masks.argmax(1).tolist()
    assert (fragment.log_probs == 0.0).all()


@pytest.mark.parametrize(
    ("action", "environment_id", "words"),
    [
        (
            7,
            "tests.environments:make_masked",
            "chooses actions without action_mask, and the environment forbids some",
        ),
        (2, "CartPole-v1", r"chose action \[2.0\]; allowed: 0 to 1"),
        (-1, "CartPole-v1", r"chose action \[-1.0\]"),
    ],
)
def test_actions_that_do_not_exist_or_are_forbidden_end_the_fragment(
    action: int, environment_id: str, words: str
) -> None:
    graph = chooser(action, mask=False)
    if environment_id == "CartPole-v1":
        loaded = model(
            [node("Identity", "constant", "action")],
            {"observation": [1, 4]},
            {"action": [1]},
            {"constant": np.array([action])},
            types={"action": TensorProto.INT64},
        )
        graph = loaded.SerializeToString()
    with pytest.raises(SchemaError, match=words):
        roll_out(
            make_environment(environment_id),
            policy_of(graph, "actions"),
            fragment_steps=30,
            **WHERE,
        )


# Graphs that no actor runs


def tensor(location: str = "", name: str = "w") -> Any:
    made = helper.make_tensor(
        name, TensorProto.FLOAT, [3, 2], np.zeros(6, np.float32).tobytes(), raw=True
    )
    if location:
        made.ClearField("raw_data")
        made.data_location = TensorProto.EXTERNAL
        made.external_data.add(key="location", value=location)
    return made


def external_data() -> bytes:
    made = model(
        [node("MatMul", "observation w", "mean")], {"observation": [1, 3]}, {"mean": [1, 2]}
    )
    made.graph.initializer.append(tensor("/etc/passwd"))
    return made.SerializeToString()


def external_data_in_an_attribute() -> bytes:
    constant = helper.make_node("Constant", [], ["w"], value=tensor("/etc/passwd"))
    return model(
        [constant, node("MatMul", "observation w", "mean")],
        {"observation": [1, 3]},
        {"mean": [1, 2]},
    ).SerializeToString()


def custom_operator() -> bytes:
    return model(
        [helper.make_node("Shell", ["observation"], ["mean"], domain="evil")],
        {"observation": [1, 3]},
        {"mean": [1, 2]},
        domains=["evil"],
    ).SerializeToString()


def contributed_operator() -> bytes:
    return model(
        [helper.make_node("Gelu", ["observation"], ["mean"], domain="com.microsoft")],
        {"observation": [1, 3]},
        {"mean": [1, 2]},
        domains=["com.microsoft"],
    ).SerializeToString()


def function() -> bytes:
    inner = helper.make_function(
        "mine", "Twice", ["x"], ["y"], [node("Add", "x x", "y")], [helper.make_opsetid("", 17)]
    )
    return model(
        [helper.make_node("Twice", ["observation"], ["mean"], domain="mine")],
        {"observation": [1, 3]},
        {"mean": [1, 2]},
        domains=["mine"],
        functions=[inner],
    ).SerializeToString()


def branch() -> bytes:
    inner = helper.make_graph(
        [node("Identity", "observation", "out")],
        "inner",
        [],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, [1, 3])],
    )
    return model(
        [helper.make_node("If", ["yes"], ["mean"], then_branch=inner, else_branch=inner)],
        {"observation": [1, 3]},
        {"mean": [1, 3]},
        {"yes": np.array(True)},
    ).SerializeToString()


def loop() -> bytes:
    inner = helper.make_graph(
        [node("Identity", "going", "still"), node("Identity", "x", "y")],
        "inner",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("going", TensorProto.BOOL, []),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3]),
        ],
        [
            helper.make_tensor_value_info("still", TensorProto.BOOL, []),
            helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3]),
        ],
    )
    return model(
        [helper.make_node("Loop", ["", "yes", "observation"], ["mean"], body=inner)],
        {"observation": [1, 3]},
        {"mean": [1, 3]},
        {"yes": np.array(True)},
    ).SerializeToString()


def chance() -> bytes:
    return model(
        [node("RandomNormalLike", "observation", "mean")], {"observation": [1, 3]}, {"mean": [1, 3]}
    ).SerializeToString()


def two_graphs() -> bytes:
    """Protocol Buffers merges a field that appears twice."""
    return linear(3, {"mean": 2, "log_std": 2}) + custom_operator()


def hidden_branch() -> bytes:
    """Returns `two_graphs` with a bit in the field's key that onnxruntime ignores."""
    graph = onnx.load_from_string(branch()).graph.SerializeToString()
    return (
        linear(3, {"mean": 2, "log_std": 2})
        + bytes([7 << 3 | 2 | 128, 128, 128, 128, 16])
        + bytes([len(graph) & 127 | 128, len(graph) >> 7])
        + graph
    )


def too_many_parts() -> bytes:
    made = linear(3, {"mean": 2, "log_std": 2})
    many = b"\x50\x01" * (FIELDS_MAX + 1)
    return (
        made
        + b"\x3a"
        + b"".join(
            bytes([len(many) >> 7 * place & 127 | (128 if place < 3 else 0)]) for place in range(4)
        )
        + many
    )


REFUSED = {
    external_data: r"the graph's constant 'w' is in another file; allowed: one file that holds all",
    external_data_in_an_attribute: r"the graph's constant 'w' is in another file",
    custom_operator: r"the graph has an operator evil\.Shell; allowed: only ONNX's own operators",
    contributed_operator: r"the graph has an operator com\.microsoft\.Gelu",
    function: r"the graph has (functions of its own|an operator mine\.Twice)",
    branch: r"operator with a graph inside\. Loop, Scan, If and other",
    loop: r"operator with a graph inside",
    chance: r"the graph draws random numbers \(RandomNormalLike\)",
    two_graphs: r"operator evil\.Shell",
    hidden_branch: "a field's key is 4294967354",
    too_many_parts: r"has more than 500,000 parts; allowed: up to that",
}


def test_onnxruntime_sees_what_is_hidden() -> None:
    """Shows why such a long key is refused."""
    hidden = hidden_branch()
    plain = hidden.replace(bytes([7 << 3 | 2 | 128, 128, 128, 128, 16]), bytes([7 << 3 | 2]))
    for data in (hidden, plain):
        # onnxruntime has read both graphs.
        with pytest.raises(Exception, match=r"Duplicate definition-site for \(observation\)"):
            onnxruntime.InferenceSession(
                data, providers=["CPUExecutionProvider"], enable_fallback=0
            )


@pytest.mark.parametrize("make", REFUSED, ids=lambda make: make.__name__)
def test_an_actor_refuses_what_it_must_not_run(make: Any) -> None:
    with pytest.raises(SchemaError, match=REFUSED[make]):
        policy_of(make())


@pytest.mark.parametrize(
    "data", [b"", b"ORTM" * 9, b"\x00" * 40, b"\xff" * 40, b"not a graph at all"]
)
def test_what_is_no_onnx_file_is_refused(data: bytes) -> None:
    with pytest.raises(SchemaError, match="is no ONNX file"):
        policy_of(data)


def test_damaged_files_are_refused_by_name_or_run() -> None:
    graph = linear(3, {"mean": 2, "log_std": 2})
    draw = np.random.default_rng(0)
    for cut in range(0, len(graph), 7):
        _read(graph[:cut])
    for _ in range(300):
        damaged = bytearray(graph)
        damaged[draw.integers(len(graph))] = draw.integers(256)
        _read(bytes(damaged))


def _read(data: bytes) -> None:
    with suppress(SchemaError):
        read_ports(data)


def test_the_reader_sees_what_onnxruntime_sees() -> None:
    for graph in (
        linear(3, {"mean": 2, "log_std": 2}),
        recurrent(2, "logits", 5),
        chooser(1, mask=True),
    ):
        policy = policy_of(graph, "categorical")
        found = read_ports(graph)
        assert found.inputs == policy._ports.inputs
        # onnxruntime also infers lengths that the file leaves open.
        for name, port in found.outputs.items():
            inferred = policy._ports.outputs[name]
            assert (
                port.dtype,
                [one or other for one, other in zip(port.shape, inferred.shape, strict=True)],
            ) == (inferred.dtype, [*inferred.shape])


@pytest.mark.parametrize(
    ("graph", "act", "spaces", "words"),
    [
        (
            linear(4, {"mean": 2, "log_std": 2}),
            "gaussian",
            VECTOR,
            r"observation of the graph is \[1, 4\]; .* \[1, 3\]",
        ),
        (
            linear(3, {"mean": 3, "log_std": 2}),
            "gaussian",
            VECTOR,
            r"mean of the graph is \[1, 3\]; .* needs 2 numbers",
        ),
        (linear(3, {"mean": 2}), "gaussian", VECTOR, r"gives \['mean'\], and not log_std"),
        (
            linear(3, {"logits": 5}),
            "categorical",
            CHOICE,
            r"logits of the graph is \[1, 5\]; .* needs 4 numbers",
        ),
        (
            linear(3, {"logits": 4}),
            "categorical",
            SEVERAL,
            r"logits of the graph is \[1, 4\]; .* needs 5 numbers",
        ),
        (
            linear(3, {"logits": 4}),
            "categorical",
            VECTOR,
            "'categorical' does not fit .*, which are continuous",
        ),
        (
            linear(3, {"mean": 4, "log_std": 4}),
            "gaussian",
            CHOICE,
            "'gaussian' does not fit .*, which are one choice",
        ),
        (
            linear(3, {"q_values": 5}),
            "epsilon_greedy",
            SEVERAL,
            "'epsilon_greedy' does not fit .* several choices",
        ),
        (
            linear(3, {"logits": 4}),
            "random",
            CHOICE,
            r"act = 'random'; allowed: gaussian \| squashed",
        ),
        (
            linear(3, {"mean": 2, "log_std": 2}),
            "squashed_gaussian",
            Spaces((3,), action_size=2),
            "has none on some side",
        ),
        (
            model(
                [node("Relu", "obs", "logits")], {"obs": [1, 4]}, {"logits": [1, 4]}
            ).SerializeToString(),
            "categorical",
            Spaces((4,), action_count=4),
            r"takes \['obs'\]; this environment gives \['observation'\], and action_mask to",
        ),
        (
            model(
                [node("Relu", "observation", "logits")],
                {"observation": ["b", "o"]},
                {"logits": ["b", 4]},
            ).SerializeToString(),
            "categorical",
            Spaces((4,), action_count=4),
            r"is \[1, 1\]; .* gives \[1, 4\]",
        ),
        (
            model(
                [node("Relu", "observation", "logits")],
                {"observation": [1, 4]},
                {"logits": [1, 4]},
                types={"observation": TensorProto.DOUBLE, "logits": TensorProto.DOUBLE},
            ).SerializeToString(),
            "categorical",
            Spaces((4,), action_count=4),
            "observation of the graph is float64; allowed: float32",
        ),
        (
            model(
                [node("Relu", "observation", "logits"), node("Relu", "state_in_h", "g")],
                {"observation": [1, 4], "state_in_h": [1, 2]},
                {"logits": [1, 4], "g": [1, 2]},
            ).SerializeToString(),
            "categorical",
            Spaces((4,), action_count=4),
            r"takes state_in_h \[1, 2\], and does not give state_out_h",
        ),
        (
            model(
                [node("Relu", "observation", "logits"), node("Relu", "observation", "state_out_h")],
                {"observation": [1, 4]},
                {"logits": [1, 4], "state_out_h": [1, 4]},
            ).SerializeToString(),
            "categorical",
            Spaces((4,), action_count=4),
            "gives state_out_h, and does not take state_in_h",
        ),
        (
            chooser(0, mask=False),
            "actions",
            Spaces((2,), action_count=5, has_action_mask=True),
            "needs an input action_",
        ),
    ],
)
def test_a_graph_of_other_shapes_is_refused(
    graph: bytes, act: str, spaces: Spaces, words: str
) -> None:
    with pytest.raises(SchemaError, match=words):
        checked(graph, act, spaces)


def test_epsilon_is_for_epsilon_greedy() -> None:
    for act, outputs, epsilon in (
        ("categorical", {"logits": 4}, 0.1),
        ("epsilon_greedy", {"q_values": 4}, 1.5),
        ("epsilon_greedy", {"q_values": 4}, math.nan),
    ):
        with pytest.raises(
            SchemaError, match="epsilon = .*; allowed: 0 to 1 with 'epsilon_greedy', else 0"
        ):
            checked(linear(3, outputs), act, CHOICE, epsilon=epsilon)


def test_outputs_that_the_file_does_not_tell_are_checked_as_it_runs() -> None:
    nodes = [
        node("Cast", "observation", "there", to=TensorProto.BOOL),
        node("Reshape", "there flat", "which"),
        node("Compress", "observation which", "logits", axis=1),
    ]
    graph = model(
        nodes, {"observation": [1, 4]}, {"logits": ["b", "n"]}, {"flat": np.array([-1])}
    ).SerializeToString()
    policy = checked(graph, "categorical", Spaces((4,), action_count=3))
    with pytest.raises(
        SchemaError, match="logits of the graph has 4 numbers; the environment needs 3"
    ):
        policy.outputs(np.ones(4, np.float32))
    environments_of = [make_environment("CartPole-v1") for _ in range(3)]
    found = roll_out_together(
        environments_of,
        policy_of(graph, "categorical"),
        [Request(3, 1, slot) for slot in range(3)],
        fragment_steps=5,
    )
    assert all(isinstance(one, SchemaError) for one in found), (
        "each fragment ends, and nothing else does"
    )


def test_what_is_no_number_ends_the_fragment() -> None:
    nodes = [
        helper.make_node(
            "Constant",
            [],
            ["logits"],
            value=helper.make_tensor("t", TensorProto.STRING, [1, 4], [b"a", b"b", b"c", b"d"]),
        ),
        node("Relu", "observation", "seen"),
    ]
    graph = model(
        nodes,
        {"observation": [1, 4]},
        {"logits": [1, 4], "seen": [1, 4]},
        types={"logits": TensorProto.STRING},
    ).SerializeToString()
    policy = checked(graph, "categorical", Spaces((4,), action_count=4))
    with pytest.raises(SchemaError, match="the graph fails: could not convert"):
        policy.outputs(np.ones(4, np.float32))


@pytest.mark.parametrize(
    ("act", "outputs", "spaces", "weight"),
    [
        ("epsilon_greedy", {"q_values": 4}, CHOICE, math.nan),
        ("epsilon_greedy", {"q_values": 4}, CHOICE, math.inf),
        ("categorical", {"logits": 4}, CHOICE, math.nan),
        ("gaussian", {"mean": 2, "log_std": 2}, VECTOR, math.nan),
        ("squashed_gaussian", {"mean": 2, "log_std": 2}, VECTOR, math.inf),
        ("actions", {"action": 2}, VECTOR, math.nan),
    ],
)
def test_a_graph_that_gives_no_finite_number_ends_the_fragment(
    act: str, outputs: dict[str, int], spaces: Spaces, weight: float
) -> None:
    """Otherwise an argmax of NaNs would pick an action, and tanh would hide infinity."""
    made = onnx.load_from_string(linear(3, outputs))
    for constant in made.graph.initializer:
        if constant.name.endswith("bias"):
            constant.CopyFrom(
                numpy_helper.from_array(
                    np.full(list(outputs.values())[0], weight, np.float32), constant.name
                )
            )
    policy = checked(made.SerializeToString(), act, spaces)
    with pytest.raises(SchemaError, match=f"{' and '.join(outputs)} of the graph: NaN or infinite"):
        policy.outputs(np.ones(3, np.float32))


@pytest.mark.parametrize(
    ("act", "output"), [("epsilon_greedy", "q_values"), ("categorical", "logits")]
)
def test_a_graph_that_forbids_all_ends_the_fragment(act: str, output: str) -> None:
    graph = model(
        [node("Add", "observation low", output)],
        {"observation": [1, 4]},
        {output: [1, 4]},
        {"low": np.array([-np.inf, -1e31, -1e38, 0], np.float32)},
    ).SerializeToString()
    policy, mask = (
        checked(graph, act, Spaces((4,), action_count=4)),
        np.array([True, True, True, False]),
    )
    policy.outputs(np.zeros(4, np.float32))
    with pytest.raises(
        SchemaError, match=rf"{output} of the graph: none above -5e\+29 is of an allowed choice"
    ):
        policy.outputs(np.zeros(4, np.float32), Context(mask))


@pytest.mark.parametrize("side", [20_000, 10**6])
def test_a_few_bytes_do_not_take_all_memory(side: int) -> None:
    nodes = [
        node(
            "ConstantOfShape", "shape", "big", value=numpy_helper.from_array(np.ones(1, np.float32))
        ),
        node("ReduceSum", "big", "sum"),
        node("Add", "observation sum", "logits"),
    ]
    graph = model(
        nodes, {"observation": [1, 4]}, {"logits": [1, 4]}, {"shape": np.array([side, side])}
    ).SerializeToString()
    policy = checked(graph, "categorical", Spaces((4,), action_count=4))
    with pytest.raises(
        SchemaError, match="the graph fails, which may take 1,073,741,824 bytes of memory"
    ):
        policy.outputs(np.ones(4, np.float32))


def test_types_and_names_that_are_none_are_refused() -> None:
    made = onnx.load_from_string(linear(3, {"mean": 2, "log_std": 2}))
    made.graph.input[0].type.tensor_type.elem_type = 65
    with pytest.raises(SchemaError, match="observation of the graph is type 65; allowed: float32"):
        signature_of(read_ports(made.SerializeToString()), "gaussian", 0.0, VECTOR)
    with pytest.raises(SchemaError, match="onnxruntime cannot run the graph: 'utf-8' codec"):
        policy_of(linear(3, {"mean": 2, "log_std": 2}).replace(b"batch", b"b\xe8tch"))


def test_states_travel_and_have_limits() -> None:
    with pytest.raises(SchemaError, match="has a name of over 200 bytes"):
        checked(recurrent(3, "logits", 4, unit_name="h" * 201), "categorical", CHOICE)
    huge = [2**20, 2**20]
    graph = model(
        [node("Identity", "state_in_h", "state_out_h"), node("Relu", "observation", "logits")],
        {"observation": [1, 4], "state_in_h": huge},
        {"logits": [1, 4], "state_out_h": huge},
    ).SerializeToString()
    with pytest.raises(SchemaError, match="the graph's state has 4,398,046,511,104 bytes"):
        checked(graph, "categorical", Spaces((4,), action_count=4))


def test_pictures_keep_their_shape() -> None:
    """The same numbers in another order are another picture."""
    spaces = Spaces((2, 20, 17), frame_shape=(1, 20, 17), frame_stack=2, action_count=3)
    graph = model(
        [
            node("Cast", "observation", "x", to=TensorProto.FLOAT),
            node("ReduceMean", "x", "logits", axes=[1, 2], keepdims=0),
        ],
        {"observation": ["b", 20, 17, 2]},
        {"logits": ["b", "n"]},
        types={"observation": TensorProto.UINT8},
    ).SerializeToString()
    with pytest.raises(
        SchemaError,
        match=r"observation of the graph is \[1, 20, 17, 2\]; .* gives \[1, 2, 20, 17\]",
    ):
        checked(graph, "categorical", spaces)


def test_a_policy_that_does_not_fit_costs_its_own_fragment_alone() -> None:
    policy = policy_of(linear(4, {"logits": 2}), "categorical")
    environments_of = [make_environment("CartPole-v1"), make_environment("Pendulum-v1")]
    fitting, refused = roll_out_together(
        environments_of, policy, [Request(3, 1, 0), Request(3, 1, 1)], fragment_steps=5
    )
    assert isinstance(fitting, Fragment) and isinstance(refused, SchemaError)
    assert isinstance(environments_of[0], ActorEnvironment)


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
