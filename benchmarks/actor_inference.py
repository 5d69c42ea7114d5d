"""Times single inferences of the convolutional policy: our numpy against onnxruntime and torch.

    pip install onnx==1.23.2 onnxruntime==1.31.1 && python benchmarks/actor_inference.py

onnxruntime runs one graph for all policy versions: its weights are inputs, passed with each call, because otherwise
every version would have to be exported and loaded again. For comparison, it also runs with the weights in the graph.
Contenders take turns on one thread, and ratios are taken pair by pair, so that drifts in the machine's speed cancel
out. A cold actor imports each library in its own interpreter. Prints JSON. Measure on an idle machine, and keep the
output under benchmarks/results/ with date, commit and machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_name] = "1"
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import onnx  # noqa: E402
import onnxruntime  # noqa: E402
import torch  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

from benchmarks.provenance import origin  # noqa: E402
from lambda_actor import wire  # noqa: E402
from lambda_actor.policy import CONVOLUTIONS, Policy  # noqa: E402
from lambda_actor.spaces import Spaces  # noqa: E402
from lambda_actor.trial import random_weights  # noqa: E402

SPACES = Spaces((3, 84, 84), (1, 84, 84), 3, action_count=6)
INFERENCES, REPEATS, IMPORTS = 200, 15, 5
Infer = Callable[[np.ndarray], np.ndarray]


def layers_of(message: bytes) -> dict[str, np.ndarray]:
    fields = wire.decode(message, wire.Kind.WEIGHTS)
    return {
        name.removeprefix("layer."): np.array(array)
        for name, array in fields.items()
        if name.startswith("layer.")
    }


def graph(layers: dict[str, np.ndarray], *, are_inputs: bool) -> bytes:
    """Returns the network as ONNX, with its weights as inputs or as constants."""
    nodes = [
        helper.make_node("Cast", ["pixels"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["floats", "scale"], ["h0"]),
    ]
    for i, (_, _, stride) in enumerate((*CONVOLUTIONS, (0, 0, 1))):
        padding = {"auto_pad": "SAME_UPPER"} if i < len(CONVOLUTIONS) else {"auto_pad": "VALID"}
        nodes += [
            helper.make_node(
                "Conv",
                [f"h{i}", f"{i}.weight", f"{i}.bias"],
                [f"c{i}"],
                strides=[stride, stride],
                **padding,
            ),
            helper.make_node("Relu", [f"c{i}"], [f"h{i + 1}"]),
        ]
    nodes += [
        helper.make_node("Flatten", ["h3"], ["features"]),
        helper.make_node("Gemm", ["features", "3.weight", "3.bias"], ["outputs"], transB=1),
    ]
    weights = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, array.shape)
        for name, array in layers.items()
    ]
    constants = [numpy_helper.from_array(np.array(1.0 / 255.0, np.float32), "scale")]
    if not are_inputs:
        constants += [numpy_helper.from_array(array, name) for name, array in layers.items()]
    pixels = helper.make_tensor_value_info(
        "pixels", TensorProto.UINT8, (1, *SPACES.observation_shape)
    )
    outputs = helper.make_tensor_value_info("outputs", TensorProto.FLOAT, (1, SPACES.output_size))
    made = helper.make_graph(
        nodes, "policy", [pixels, *(weights if are_inputs else [])], [outputs], constants
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model.SerializeToString()


def session(model: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def with_numpy(message: bytes) -> Infer:
    return Policy.from_bytes(message).outputs


def with_onnxruntime_and_weights_fed(message: bytes) -> Infer:
    layers = layers_of(message)
    running = session(graph(layers, are_inputs=True))
    return lambda observation: running.run(None, {"pixels": observation[None], **layers})[0][0]


def with_onnxruntime_and_weights_in_the_graph(message: bytes) -> Infer:
    running = session(graph(layers_of(message), are_inputs=False))
    return lambda observation: running.run(None, {"pixels": observation[None]})[0][0]


def with_torch(message: bytes) -> Infer:
    layers = {name: torch.from_numpy(array) for name, array in layers_of(message).items()}

    @torch.no_grad()
    def infer(observation: np.ndarray) -> np.ndarray:
        hidden = torch.from_numpy(observation)[None].float() / 255.0
        for i, (padding, stride) in enumerate(
            [((2, 2, 2, 2), 4), ((1, 2, 1, 2), 2), ((0, 0, 0, 0), 1)]
        ):
            hidden = torch.nn.functional.pad(hidden, padding)
            hidden = torch.relu(
                torch.conv2d(hidden, layers[f"{i}.weight"], layers[f"{i}.bias"], stride=stride)
            )
        return torch.addmv(layers["3.bias"], layers["3.weight"], hidden.reshape(-1)).numpy()

    return infer


CONTENDERS = (
    with_numpy,
    with_onnxruntime_and_weights_fed,
    with_onnxruntime_and_weights_in_the_graph,
    with_torch,
)


def measure() -> dict[str, dict[str, float]]:
    torch.set_num_threads(1)
    message = random_weights(SPACES)
    stream = np.random.default_rng(0)
    pictures = stream.integers(256, size=(INFERENCES, *SPACES.observation_shape)).astype(np.uint8)
    infer = {make.__name__: make(message) for make in CONTENDERS}
    expected = [infer["with_numpy"](picture) for picture in pictures[:20]]
    durations: dict[str, list[float]] = {name: [] for name in infer}
    for repeat in range(REPEATS + 1):
        for name, run in infer.items():
            started_s = time.process_time()
            for picture in pictures:
                run(picture)
            if repeat > 0:  # the first warms up
                durations[name].append(1e3 * (time.process_time() - started_s) / INFERENCES)
    return {
        name: {
            "cpu_ms_median": round(statistics.median(values), 4),
            "cpu_ms_min": round(min(values), 4),
            "ratio_to_numpy_median": round(
                statistics.median(
                    a / b for a, b in zip(values, durations["with_numpy"], strict=True)
                ),
                3,
            ),
            "largest_difference": float(
                max(
                    np.abs(infer[name](picture) - found).max()
                    for picture, found in zip(pictures, expected, strict=False)
                )
            ),
        }
        for name, values in durations.items()
    }


def import_s(code: str) -> float:
    """Returns the median seconds of an interpreter that runs ``code``."""

    def once() -> float:
        started_s = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
        return time.perf_counter() - started_s

    once()
    return round(statistics.median(once() for _ in range(IMPORTS)), 3)


if __name__ == "__main__":
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    print(
        json.dumps(
            {
                **origin("python benchmarks/actor_inference.py"),
                "load": round(os.getloadavg()[0], 2),
                "versions": {
                    "python": platform.python_version(),
                    "numpy": np.__version__,
                    "torch": torch.__version__,
                    "onnxruntime": onnxruntime.__version__,
                },
                "inference": measure(),
                "interpreter_s": {
                    name: import_s(code)
                    for name, code in {
                        "nothing": "pass",
                        "the handler": "import lambda_actor.handler",
                        "the handler and MuJoCo": "import lambda_actor.handler, mujoco",
                        "the handler, ale_py and OpenCV": "import lambda_actor.handler, ale_py, cv2",
                        "the handler and onnxruntime": "import lambda_actor.handler, onnxruntime",
                        "the handler and torch": "import lambda_actor.handler, torch",
                    }.items()
                },
            },
            indent=2,
        )
    )
