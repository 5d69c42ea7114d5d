"""A user's own graph, checked before anything costs money."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import nitro_rl
from lambda_actor import wire
from lambda_actor.onnx_policy import GraphPolicy
from lambda_actor.policy import read_policy
from lambda_actor.spaces import Spaces
from runtime.errors import RunError
from runtime.export import onnx_policy
from runtime.processes.child import Child
from tests.graphs import linear, model, node, recurrent
from tests.helpers import ROOT, descendants
from tests.lambda_actor.test_onnx_policy import REFUSED

SPACES = Spaces((3,), action_size=2)
GRAPH = linear(3, {"mean": 2, "log_std": 2})


def test_it_makes_the_message_that_actors_read(tmp_path: Path) -> None:
    (tmp_path / "policy.onnx").write_bytes(GRAPH)
    for given in (GRAPH, tmp_path / "policy.onnx", str(tmp_path / "policy.onnx")):
        policy = nitro_rl.OnnxPolicy(given, policy_version=7)
        policy.check(SPACES)
        read = read_policy(policy.weights)
        assert isinstance(read, GraphPolicy)
        assert (read.policy_version, read.act, read.epsilon) == (7, "gaussian", 0.0)
        assert wire.decode(policy.weights, wire.Kind.GRAPH)["graph"].tobytes() == GRAPH


def test_it_needs_neither_torch_nor_onnxruntime_nor_onnx() -> None:
    code = (
        f"import sys, nitro_rl\nnitro_rl.OnnxPolicy({GRAPH!r})\n"
        "assert not {'torch', 'onnx', 'onnxruntime'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


@pytest.mark.parametrize("make", REFUSED, ids=lambda make: make.__name__)
def test_what_no_actor_runs_is_refused_at_once(make: Any) -> None:
    with pytest.raises(RunError, match=f"^OnnxPolicy: .*{REFUSED[make]}"):
        nitro_rl.OnnxPolicy(make())


def test_a_file_is_named_and_so_is_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"none\.onnx: cannot be read: No such file"):
        nitro_rl.OnnxPolicy(tmp_path / "none.onnx")
    (tmp_path / "text.onnx").write_text("policy")
    with pytest.raises(RunError, match=r"text\.onnx: is no ONNX file"):
        nitro_rl.OnnxPolicy(tmp_path / "text.onnx")
    with pytest.raises(RunError, match="act = 'greedy'; allowed: gaussian"):
        nitro_rl.OnnxPolicy(GRAPH, act="greedy")


@pytest.mark.parametrize("has_onnxruntime", [True, False])
def test_other_spaces_are_refused(has_onnxruntime: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_onnxruntime:
        monkeypatch.setattr(onnx_policy.importlib.util, "find_spec", lambda name: None)
    nitro_rl.OnnxPolicy(GRAPH).check(SPACES)
    with pytest.raises(
        RunError, match=r"observation of the graph is \[1, 3\]; the environment gives \[1, 4\]"
    ):
        nitro_rl.OnnxPolicy(GRAPH).check(Spaces((4,), action_size=2))
    with pytest.raises(
        RunError, match=r"mean of the graph is \[1, 2\]; the environment needs 3 numbers"
    ):
        nitro_rl.OnnxPolicy(GRAPH).check(Spaces((3,), action_size=3))


def test_what_the_file_does_not_tell_is_seen_when_it_is_run_once() -> None:
    graph = model(
        [node("Relu", "observation", "x"), node("Relu", "x", "logits")],
        {"observation": [1, 4]},
        {"logits": ["batch", "n"]},
    ).SerializeToString()
    with pytest.raises(RunError, match="needs 3 numbers"):
        nitro_rl.OnnxPolicy(graph, "categorical").check(Spaces((4,), action_count=3))


def big(megabytes: int) -> nitro_rl.OnnxPolicy:
    weights = np.zeros((3, megabytes * 2**20 // 12), np.float32)
    return nitro_rl.OnnxPolicy(
        model(
            [
                node("MatMul", "observation w", "x"),
                node("ReduceMean", "x", "y", axes=[1], keepdims=1),
                node("Concat", "y y", "mean", axis=1),
                node("Identity", "mean", "log_std"),
            ],
            {"observation": [1, 3]},
            {"mean": [1, 2], "log_std": [1, 2]},
            {"w": weights},
        ).SerializeToString()
    )


def test_a_graph_that_does_not_fit_is_refused_with_sizes() -> None:
    policy = big(8)
    policy.check(SPACES, memory_mib=512)
    with pytest.raises(
        RunError,
        match=r"a graph of 8,388,\d+ bytes and an open episode take a request of "
        r"12,58\d,\d+, and AWS Lambda takes 6,291,456; allowed with cache",
    ):
        policy.check(SPACES, has_cache=False)
    with pytest.raises(
        RunError, match=r"a graph of 8,388,\d+ bytes needs an actor of 289 MiB; actor.memory"
    ):
        policy.check(SPACES, memory_mib=256)
    nitro_rl.OnnxPolicy(GRAPH).check(SPACES, memory_mib=256 + 1, has_cache=False)


def test_a_state_that_no_open_episode_holds_is_refused() -> None:
    spaces = Spaces((3,), action_count=4)
    nitro_rl.OnnxPolicy(recurrent(3, "logits", 4), "categorical").check(spaces)
    states = [1, 2**18]
    wide = model(
        [node("Identity", "state_in_h", "state_out_h"), node("Identity", "observation", "logits")],
        {"observation": [1, 3], "state_in_h": states},
        {"logits": [1, 3], "state_out_h": states},
    ).SerializeToString()
    with pytest.raises(
        RunError, match=r"the graph's state has 1,048,576 bytes, .* allowed: up to 524,288"
    ):
        nitro_rl.OnnxPolicy(wide, "categorical").check(Spaces((3,), action_count=3))


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
def test_the_guides_module_of_torch_acts() -> None:
    page = (ROOT / "docs" / "guides" / "policies-for-actors.md").read_text()
    code = next(
        block
        for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL)
        if "import torch" in block
    )
    names: dict[str, Any] = {"__name__": "guide", "nitro_rl": nitro_rl}
    exec(compile(code, "the guide", "exec"), names)
    names["policy"].check(Spaces((3,), action_size=1))


def test_a_message_larger_than_any_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        wire,
        "encode",
        lambda kind, fields: (_ for _ in ()).throw(
            wire.OversizedMessageError("graph of 9 bytes exceeds the limit of 8")
        ),
    )
    with pytest.raises(RunError, match="graph of 9 bytes exceeds the limit of 8"):
        nitro_rl.OnnxPolicy(GRAPH)


def test_what_is_no_graph_at_all_is_told(tmp_path: Path) -> None:
    (huge := tmp_path / "huge.onnx").touch()
    os.truncate(huge, 2**40)
    os.mkfifo(pipe := tmp_path / "pipe.onnx")
    for graph, told in (
        (huge, r"huge.onnx has 1,099,511,627,776 bytes; allowed: up to 268,435,456"),
        (pipe, "pipe.onnx is not a regular file"),
        (tmp_path, "cannot be read"),
        ("a\0b", "null byte"),
        (bytearray(GRAPH), "bytearray"),
        (None, "NoneType"),
    ):
        with pytest.raises(RunError, match=told):
            nitro_rl.OnnxPolicy(graph)  # type: ignore[arg-type]
    for options in ({"epsilon": "much"}, {"policy_version": 2**70}, {"policy_version": "new"}):
        with pytest.raises(RunError, match="OnnxPolicy: "):
            nitro_rl.OnnxPolicy(GRAPH, **options)  # type: ignore[arg-type]


def test_a_graph_that_does_not_end_is_refused_and_burns_no_core(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = [
        node("ReduceSum", "observation", "sum", keepdims=1),
        node("Expand", "sum shape", "power0"),
        *(node("MatMul", f"power{one} power0", f"power{one + 1}") for one in range(20)),
        node("ReduceMax", "power20", "most", keepdims=0),
        node("Expand", "most two", "mean"),
    ]
    endless = model(
        nodes,
        {"observation": [1, 3]},
        {"mean": [1, 2]},
        {"shape": np.array([8192, 8192]), "two": np.array([1, 2])},
    ).SerializeToString()
    before = set(threading.enumerate()), descendants(os.getpid())
    monkeypatch.setattr(onnx_policy, "PATIENCE_S", 0.01)
    with pytest.raises(
        RunError, match=r"OnnxPolicy: the graph takes more than 0\.01 s for an observation"
    ):
        nitro_rl.OnnxPolicy(endless, "uniform").check(
            replace(SPACES, action_bounds=((-1.0, 1.0),) * 2)
        )
    assert (set(threading.enumerate()), descendants(os.getpid())) == before


def test_a_trainers_next_graph_is_tried_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    spaces, graph = Spaces((4,), action_size=1), linear(4, {"mean": 1, "log_std": 1})
    nitro_rl.OnnxPolicy(graph).check(spaces)
    spoilt = onnx.load_from_string(graph)
    spoilt.graph.initializer[1].raw_data = np.float32("nan").tobytes()
    monkeypatch.setattr(onnx_policy, "Child", lambda _, *arguments: Child("this", *arguments))
    for given, told in (
        (spoilt.SerializeToString(), "of the graph: NaN or infinite"),
        (linear(4, {"mean": 1, "log_std": 1, "other": 1}), "ended its process .*: exit code 0"),
    ):
        with pytest.raises(RunError, match=told):
            nitro_rl.OnnxPolicy(given).check(spaces)
