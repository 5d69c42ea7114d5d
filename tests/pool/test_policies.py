"""A network of the user's own as an ONNX graph, checked before anything costs money."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nitro_rl
from lambda_actor.spaces import Spaces
from runtime.errors import RunError
from runtime.pool.policies import Published
from tests.graphs import linear
from tests.helpers import ROOT

SPACES = Spaces((3,), action_size=2)
GRAPH = linear(3, {"mean": 2, "log_std": 2})


def test_a_graph_comes_from_bytes_or_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "policy.onnx").write_bytes(GRAPH)
    published = Published(SPACES)
    for given in (GRAPH, tmp_path / "policy.onnx", str(tmp_path / "policy.onnx")):
        published.take(nitro_rl.OnnxPolicy(given))
        assert published.version == 0, "it is the same policy"
    published.take(nitro_rl.OnnxPolicy(linear(3, {"mean": 2, "log_std": 2}, seed=1)))
    assert published.version == 1


def test_what_is_wrong_with_a_graph_is_told(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"none\.onnx: cannot be read: No such file"):
        nitro_rl.OnnxPolicy(tmp_path / "none.onnx")
    (tmp_path / "text.onnx").write_text("policy")
    published = Published(SPACES)
    for policy, words in (
        (nitro_rl.OnnxPolicy(tmp_path / "text.onnx"), "onnxruntime cannot run the graph"),
        (nitro_rl.OnnxPolicy(GRAPH, act="greedy"), "act = 'greedy'; allowed: gaussian"),
        (nitro_rl.OnnxPolicy(GRAPH, epsilon=2.0), "epsilon = 2.0; allowed: 0 to 1"),
    ):
        with pytest.raises(RunError, match=f"the policy cannot act in this environment: {words}"):
            published.take(policy)
    assert published.version == -1


def test_a_policy_must_be_finite_and_fit_a_request_on_lambda() -> None:
    def made(width: int, bias: float) -> bytes:
        layers = [(np.zeros((width, 3)), np.zeros(width)), (np.zeros((2, width)), np.full(2, bias))]
        return nitro_rl.numpy_policy(layers, log_std=np.zeros(2))

    Published(SPACES).take(made(2**19, 0.0))
    with pytest.raises(RunError, match=r"a policy of [\d,]+ bytes and an open episode take a"):
        Published(SPACES, has_cache=False).take(made(2**19, 0.0))
    with pytest.raises(RunError, match=r"layer\.1\.bias is not finite"):
        Published(SPACES).take(made(4, np.nan))


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
    Published(Spaces((3,), action_size=1)).take(names["policy"])
