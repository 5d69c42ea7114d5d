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
    domains: Sequence[str] = (),
    functions: Sequence[Any] = (),
    types: Mapping[str, int] = {},
) -> Any:
    """Returns a model of these nodes. Ports are float32 unless ``types`` says otherwise."""

    def infos(ports: Ports) -> list[Any]:
        return [
            helper.make_tensor_value_info(name, types.get(name, FLOAT), shape)
            for name, shape in ports.items()
        ]

    arrays = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    opsets = [helper.make_opsetid("", 17), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(
        helper.make_graph(list(nodes), "graph", infos(inputs), infos(outputs), arrays),
        opset_imports=opsets,
        ir_version=8,
        functions=list(functions),
    )


def node(operator: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    """Returns a node; blanks separate names."""
    return helper.make_node(operator, inputs.split(), outputs.split(), **attributes)


def linear(
    observation_size: int, outputs: Mapping[str, int], *, seed: int = 0, mask: str = ""
) -> bytes:
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


def recurrent(
    observation_size: int,
    output: str,
    size: int,
    *,
    units: int = 4,
    unit_name: str = "h",
    log_std: bool = False,
) -> bytes:
    """Returns a recurrent graph: h' = tanh(h·U + o·W), and outputs of h'."""
    draw = np.random.default_rng(5)
    constants: dict[str, Any] = {
        name: draw.normal(size=shape).astype(np.float32)
        for name, shape in (
            ("U", (units, units)),
            ("W", (observation_size, units)),
            ("V", (units, size)),
        )
    }
    state_in, state_out = f"state_in_{unit_name}", f"state_out_{unit_name}"
    nodes = [
        node("MatMul", f"{state_in} U", "a"),
        node("MatMul", "observation W", "b"),
        node("Add", "a b", "c"),
        node("Tanh", "c", state_out),
        node("MatMul", f"{state_out} V", output),
    ]
    outputs = {output: ["batch", size], state_out: ["batch", units]}
    if log_std:
        constants["constant"] = np.full(size, -0.5, np.float32)
        nodes.append(node("Identity", "constant", "log_std"))
        outputs["log_std"] = [size]
    return model(
        nodes,
        {"observation": ["batch", observation_size], state_in: ["batch", units]},
        outputs,
        constants,
    ).SerializeToString()
