"""Small ONNX graphs for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT
Ports = Mapping[str, Sequence[Any]]


def model(
    nodes: Sequence[Any],
    inputs: Ports,
    outputs: Ports,
    constants: Mapping[str, Any] = {},
    *,
    types: Mapping[str, int] = {},
) -> Any:
    """Returns a model of these nodes. Ports are float32 unless ``types`` says otherwise."""

    def infos(ports: Ports) -> list[Any]:
        return [
            helper.make_tensor_value_info(name, types.get(name, FLOAT), shape)
            for name, shape in ports.items()
        ]

    arrays = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    return helper.make_model(
        helper.make_graph(list(nodes), "graph", infos(inputs), infos(outputs), arrays),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )


def node(operator: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    """Returns a node; blanks separate names."""
    return helper.make_node(operator, inputs.split(), outputs.split(), **attributes)


def linear(observation_size: int, outputs: Mapping[str, int], *, seed: int = 0) -> bytes:
    """Returns a graph with one layer per output."""
    draw = np.random.default_rng(seed)
    nodes, constants = [], {}
    for name, size in outputs.items():
        constants |= {
            f"{name}.weight": draw.normal(size=(observation_size, size)).astype(np.float32) * 0.3,
            f"{name}.bias": draw.normal(size=size).astype(np.float32) * 0.1,
        }
        nodes.append(node("Gemm", f"observation {name}.weight {name}.bias", name))
    return model(
        nodes,
        {"observation": ["batch", observation_size]},
        {name: ["batch", size] for name, size in outputs.items()},
        constants,
    ).SerializeToString()
