"""Exports a run's policy as one ONNX file, from raw observations to the environment's own actions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from lambda_actor import wire
from lambda_actor.environments import MASK, ActorEnvironment
from lambda_actor.policy import (
    CONVOLUTIONS,
    FORBIDDEN,
    PIXEL_MAX,
    TRUNK_LAYERS,
    Architecture,
    Policy,
    layer_count,
    same_padding,
)
from lambda_actor.spaces import Spaces
from runtime.errors import RunError
from runtime.records.files import write_atomically

OPSET = 17
IR_VERSION = 8
"""Opset of 2022, for older readers."""


def save_onnx(
    path: Path, weights: bytes, environment: ActorEnvironment, facts: Mapping[str, str]
) -> str:
    """Writes the policy with its best action: the Gaussian's mean, or the most probable action.

    Input: ``observation``, float32 ``[batch, …]`` as the environment gives a Box, ``[batch, O]`` as Gymnasium flattens
    anything else, or uint8 ``[batch, F·C, H, W]``.
    Outputs: ``action`` in the environment's units, float32 ``[batch, …]`` clipped to its Box, or int64 ``[batch]``; and
    its distribution, ``mean`` float32 ``[batch, A]`` or ``logits`` float32 ``[batch, n]``. A Gaussian also has
    ``log_std``, float32 ``[A]``, so that actors can sample from the file (`lambda_actor.onnx_policy`). If the
    environment says which actions are allowed, ``action_mask``, bool ``[batch, n]``, is the last input, and ``action``
    is an allowed one.

    Args:
        weights: A WEIGHTS message.
        environment: The policy's environment, from `load_run_policy`.
        facts: Stored in the file's metadata.

    Returns:
        A description for people.

    Raises:
        SchemaError: The policy does not fit the environment.
        RunError: The file cannot be written, observations are a picture beside numbers, or an action has several
            choices.
    """
    policy = Policy.from_bytes(weights)
    spaces = environment.spaces
    policy.check(spaces)
    if spaces.is_combined or spaces.action_counts:
        raise RunError(
            f"--onnx {path}: neither a picture beside numbers nor an action of several choices is exported; allowed: "
            "load_policy in Python"
        )
    fields = wire.decode(weights, wire.Kind.WEIGHTS)
    graph = _Graph()
    name = "logits" if spaces.is_discrete else "mean"
    kind = TensorProto.UINT8 if spaces.is_pixels else TensorProto.FLOAT
    inputs = [_batch("observation", kind, *environment.observation_shape)]
    _layers(graph, fields, spaces, policy.network, output=name)
    outputs = [_batch(name, TensorProto.FLOAT, spaces.output_size)]
    if spaces.has_action_mask:
        inputs.append(_batch(MASK, TensorProto.BOOL, spaces.output_size))
        graph.add("Where", FORBIDDEN, before=MASK)
    action = _action(graph, environment)
    if not spaces.is_discrete:
        graph.constants.append(numpy_helper.from_array(fields["log_std"], "constant.log_std"))
        graph.last = "constant.log_std"
        graph.add("Identity", output="log_std")
        size = [spaces.action_size]
        outputs.append(helper.make_tensor_value_info("log_std", TensorProto.FLOAT, size))
    model = helper.make_model(
        helper.make_graph(graph.nodes, "policy", inputs, [action, *outputs], graph.constants),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="runtime.show.onnx",
    )
    helper.set_model_props(model, {**facts, "policy_version": str(policy.policy_version)})
    onnx.checker.check_model(model, full_check=True)
    try:
        write_atomically(path, model.SerializeToString())
    except OSError as error:
        raise RunError(f"--onnx {path}: cannot be written: {error.strerror}") from None
    names = " and ".join(info.name for info in inputs)
    return f"{path}: policy version {policy.policy_version}, {names} → action"


def _batch(name: str, kind: Any, *shape: int) -> Any:
    """Describes an input or output with a row for each observation of the batch."""
    return helper.make_tensor_value_info(name, kind, ["batch", *shape])


class _Graph:
    """Nodes one after the other: each takes what the one before it gave, and constants.

    Attributes:
        last: The name of what the next node takes.
    """

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.last = "observation"

    def add(
        self,
        operator: str,
        *constants: np.ndarray | np.generic,
        before: str = "",
        output: str = "",
        **attributes: Any,
    ) -> None:
        inputs = [before, self.last] if before else [self.last]
        for constant in constants:
            inputs.append(f"constant.{len(self.constants)}")
            self.constants.append(numpy_helper.from_array(np.asarray(constant), inputs[-1]))
        self.last = output or f"node.{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [self.last], **attributes))


def _layers(
    graph: _Graph, fields: Mapping[str, np.ndarray], spaces: Spaces, network: str, *, output: str
) -> None:
    """Adds the network: convolutions for pixels (conv), or a vector's layers (mlp)."""
    if network == "conv":
        _trunk(graph, fields, spaces)
    else:
        if spaces.is_pixels:
            _divide(graph)
        graph.add("Flatten")
        _normalise(graph, fields)
    activation = Architecture.parse(wire.field_text(fields["network"])).activation
    last = layer_count(fields) - 1
    for layer in range(TRUNK_LAYERS if network == "conv" else 0, last):
        _dense(graph, fields, layer)
        graph.add({"tanh": "Tanh", "relu": "Relu"}[activation])
    _dense(graph, fields, last, output=output)


def _divide(graph: _Graph) -> None:
    graph.add("Cast", to=TensorProto.FLOAT)
    graph.add("Div", np.float32(PIXEL_MAX))


def _normalise(graph: _Graph, fields: Mapping[str, np.ndarray]) -> None:
    clip = fields["observation_clip"]
    if len(fields["observation_mean"]):
        graph.add("Sub", fields["observation_mean"])
        graph.add("Mul", (1.0 / fields["observation_std"]).astype(np.float32))
        graph.add("Clip", -clip, clip)


def _trunk(graph: _Graph, fields: Mapping[str, np.ndarray], spaces: Spaces) -> None:
    _divide(graph)
    sides = spaces.picture_shape[1:]
    for layer, (_, kernel, stride) in enumerate(CONVOLUTIONS):
        (rows, top, bottom), (columns, left, right) = (
            same_padding(side, kernel, stride) for side in sides
        )
        graph.add(
            "Conv",
            *_layer(fields, layer),
            strides=[stride, stride],
            pads=[top, left, bottom, right],
        )
        graph.add("Relu")
        sides = (rows, columns)
    graph.add("Flatten")
    _dense(graph, fields, TRUNK_LAYERS - 1)
    graph.add("Relu")


def _dense(graph: _Graph, fields: Mapping[str, np.ndarray], layer: int, **options: str) -> None:
    weight, bias = _layer(fields, layer)
    graph.add("Gemm", weight.reshape(len(weight), -1), bias, transB=1, **options)


def _layer(fields: Mapping[str, np.ndarray], layer: int) -> tuple[np.ndarray, np.ndarray]:
    return fields[f"{wire.LAYER_PREFIX}{layer}.weight"], fields[f"{wire.LAYER_PREFIX}{layer}.bias"]


def _action(graph: _Graph, environment: ActorEnvironment) -> Any:
    space: Any = environment.gymnasium_environment.action_space
    if environment.spaces.is_discrete:
        graph.add("ArgMax", axis=1, keepdims=0)
        graph.add("Add", np.int64(space.start), output="action")
        return _batch("action", TensorProto.INT64)
    graph.add("Reshape", np.array([-1, *space.shape]))
    if environment.action_scale is not None:
        middle, half = environment.action_scale
        graph.add("Mul", half)
        graph.add("Add", middle)
    graph.add("Max", space.low.astype(np.float32))
    graph.add("Min", space.high.astype(np.float32), output="action")
    return _batch("action", TensorProto.FLOAT, *space.shape)
