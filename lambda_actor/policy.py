"""Policy inference without torch, in NumPy, for one observation or several at a time, with the same bits.

Three networks and three distributions; see docs/decisions/policies.md for measured alternatives.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from lambda_actor import wire
from lambda_actor.errors import SchemaError
from lambda_actor.frames import apart
from lambda_actor.spaces import Spaces

HIDDEN_SIZES = (256, 256)
"""Tanh units of the network ``mlp``. Paper: Nitro §8.1."""
CONVOLUTIONS = ((16, 8, 4), (32, 4, 2))
"""Channels, kernel and stride of the network ``conv``, padded as SAME. Paper: Nitro §8.1."""
CONV_FEATURES = 256
"""Features of its third layer, over the whole remaining picture."""
TRUNK_LAYERS = len(CONVOLUTIONS) + 1
"""Number of first layers of ``conv`` and ``combined``, which compute a picture's features."""
PIXEL_MAX = 255.0
ACTIVATIONS = ("tanh", "relu")
LOG_2PI = float(np.log(2.0 * np.pi))
_ARCHITECTURE = re.compile(
    rf"conv|(mlp|combined)( ({'|'.join(ACTIVATIONS)})( [1-9][0-9]{{0,5}})+)?"
)
FORBIDDEN = np.float32(-1e30)
"""The logit of a forbidden action, whose probability is 0. It is finite so that 0 times it is 0."""
_ZERO = np.float32(0.0)


@dataclass(frozen=True)
class Architecture:
    """Networks of policy and critic, as a text: ``mlp``, ``conv``, ``combined``, or for example ``mlp relu 64 64``.

    Attributes:
        kind: ``mlp``; ``conv``; or ``combined``: the layers of ``mlp`` over the features of ``conv`` and a vector.
        hidden_sizes: Units of each hidden layer of ``mlp`` and ``combined``.
        activation: Activation of these units, ``tanh`` or ``relu``.
    """

    kind: str
    hidden_sizes: tuple[int, ...] = HIDDEN_SIZES
    activation: str = "tanh"

    @classmethod
    def parse(cls, text: str) -> Architecture:
        """Parses the result of ``str``.

        Raises:
            SchemaError: The text is not an architecture.
        """
        if not _ARCHITECTURE.fullmatch(text):
            raise SchemaError(
                f"WEIGHTS are of network {text!r}; known: mlp | conv | combined | "
                "mlp tanh N N … | mlp relu N N … | combined tanh N N … | combined relu N N …"
            )
        kind, *rest = text.split()
        return cls(kind, tuple(map(int, rest[1:])), rest[0]) if rest else cls(kind)

    def __str__(self) -> str:
        if self == Architecture(self.kind):
            return self.kind
        return " ".join([self.kind, self.activation, *map(str, self.hidden_sizes)])


def default_network(spaces: Spaces) -> str:
    """Returns the `Architecture` for these observations: ``mlp``: vectors, ``conv``: pixels, ``combined``: both."""
    return "combined" if spaces.is_combined else "conv" if spaces.is_pixels else "mlp"


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int, int]:
    """Returns the outputs of a convolution padded like TensorFlow's SAME, and the zeros before and after."""
    outputs = -(-size // stride)
    total = max((outputs - 1) * stride + kernel - size, 0)
    return outputs, total // 2, total - total // 2


def parameter_shapes(spaces: Spaces, network: str) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of a policy network's parameters in a WEIGHTS message.

    Args:
        network: Text of an `Architecture`.
    """
    architecture = Architecture.parse(network)
    weights: list[tuple[int, ...]] = []
    inputs = spaces.observation_size
    if architecture.kind != "mlp":
        channels, *sides = spaces.picture_shape
        for outputs, kernel, stride in CONVOLUTIONS:
            weights.append((outputs, channels, kernel, kernel))
            channels = outputs
            sides = [same_padding(side, kernel, stride)[0] for side in sides]
        weights.append((CONV_FEATURES, channels, *sides))
        inputs = CONV_FEATURES + spaces.vector_size
    hidden = () if architecture.kind == "conv" else architecture.hidden_sizes
    sizes = (inputs, *hidden, spaces.output_size)
    weights += [(outputs, entering) for entering, outputs in pairwise(sizes)]
    return {
        f"{wire.LAYER_PREFIX}{i}.{name}": value
        for i, shape in enumerate(weights)
        for name, value in (("weight", shape), ("bias", shape[:1]))
    }


class Policy:
    """A network and a distribution over actions, of one policy version.

    Paper: Nitro §8.1 (tanh units for MuJoCo, convolutions for Atari).

    Attributes:
        policy_version: Version in its message.
        output_size: Size of `outputs` for an observation.
    """

    kind = wire.Kind.WEIGHTS
    """Kind of its message."""

    def __init__(self, fields: Mapping[str, np.ndarray]) -> None:
        """Takes the network and the distribution from a message's fields.

        Args:
            fields: Fields of a WEIGHTS message (see `lambda_actor.wire.SCHEMAS`).

        Raises:
            SchemaError: They are not a policy.
        """
        # Copies, because arrays in a message are unaligned, and NumPy would copy them at each use.
        fields = {name: np.array(array) for name, array in fields.items()}
        self._architecture = Architecture.parse(wire.field_text(fields["network"]))
        self.policy_version = int(fields["policy_version"])
        self.network = self._architecture.kind
        self.distribution = wire.field_text(fields["distribution"])
        self._shapes = {name: array.shape for name, array in fields.items()}
        layers = _layers(fields)
        if self.network == "mlp":
            # A learned scheduler's text names no sizes, and its layers are smaller than the default ones.
            sizes = tuple(len(bias) for _, bias in layers[:-1])
            self._architecture = replace(self._architecture, hidden_sizes=sizes)
        self.output_size = len(layers[-1][1])
        networks: dict[str, type[_Mlp] | type[_Conv]] = {
            "mlp": _Mlp,
            "conv": _Conv,
            "combined": _Combined,
        }
        self._network = networks[self.network](layers, fields, self._architecture.activation)
        self._distribution = make_distribution(self.distribution, fields["log_std"])

    @classmethod
    def from_bytes(cls, data: bytes) -> Policy:
        """Reads a WEIGHTS message.

        Raises:
            WireError: The bytes are not a valid message.
        """
        return cls(wire.decode(data, cls.kind))

    def check(self, spaces: Spaces) -> None:
        """Checks that it can act in an environment with these spaces.

        Required before a ``combined`` network acts: it separates pictures from vectors by the spaces.

        Raises:
            SchemaError: It cannot act in an environment with these spaces.
        """
        needs_default = spaces.is_combined or self.network != "mlp"
        if needs_default and self.network != default_network(spaces):
            raise SchemaError(
                f"WEIGHTS are of network {self.network!r}; the environment's observations need "
                f"{default_network(spaces)!r}"
            )
        if self.distribution != spaces.distribution:
            raise SchemaError(
                f"WEIGHTS are of distribution {self.distribution!r}; the environment's actions need "
                f"{spaces.distribution!r}"
            )
        needed: dict[str, tuple[int, ...]] = {
            "log_std": (spaces.action_size,),
            **parameter_shapes(spaces, str(self._architecture)),
        }
        if self._shapes["observation_mean"] != (0,):
            needed["observation_mean"] = (spaces.vector_size,)
        for name, shape in needed.items():
            if self._shapes.get(name) != shape:
                raise SchemaError(
                    f"WEIGHTS.{name} has shape {self._shapes.get(name)}; the environment needs {shape}"
                )
        if isinstance(self._network, _Combined):
            self._network.spaces = spaces

    def noise(self, stream: np.random.Generator, steps: int) -> np.ndarray:
        """Returns the noise for sampling ``steps`` actions, a row each, ``[T, …]``."""
        return self._distribution.noise(stream, steps, self.output_size)

    def outputs(self, observation: np.ndarray, action_mask: np.ndarray | None = None) -> np.ndarray:
        """Returns means, float32 ``[A]``, or logits, ``[n]``, with several choices concatenated.

        Args:
            observation: The network's input: raw (not yet normalized) float32 ``[O]``, or uint8 ``[F·C, H, W]`` or
                ``[1, 1, Y]``.
            action_mask: Which values of each choice are allowed, bool ``[M]``; None = all. The logits of others are
                `FORBIDDEN`.
        """
        outputs = self._network.outputs(observation)
        if action_mask is not None:
            outputs[~action_mask] = FORBIDDEN
        return outputs

    def outputs_together(
        self,
        observations: Sequence[np.ndarray],
        action_masks: Sequence[np.ndarray | None] = (),
    ) -> np.ndarray:
        """Returns the same bits as `outputs` for each of several observations, float32 ``[N, …]``.

        Args:
            observations: ``N`` observations for `outputs`.
            action_masks: The same number, or none.
        """
        outputs = self._network.outputs_together(observations)
        for row, mask in zip(outputs, action_masks, strict=False):
            if mask is not None:
                row[~mask] = FORBIDDEN
        return outputs

    def sample(self, outputs: np.ndarray, noise: np.ndarray) -> np.ndarray | int:
        """Returns an action: float32 ``[A]``, a whole number, or several, int64 ``[A]``.

        Args:
            outputs: Outputs for the observation.
            noise: The step's row of `noise`.
        """
        return self._distribution.sample(outputs, noise)

    def sample_together(self, outputs: np.ndarray, noise: np.ndarray) -> Sequence[np.ndarray | int]:
        """Returns the action of `sample` for each of several observations.

        Args:
            outputs: Outputs for the observations, float32 ``[N, …]``.
            noise: A row of `noise` for each observation, ``[N, …]``.
        """
        return self._distribution.sample_together(outputs, noise)

    def best_action(
        self, observation: np.ndarray, action_mask: np.ndarray | None = None
    ) -> np.ndarray | int:
        """Returns the Gaussian's mean, or the most probable action of each choice."""
        return self._distribution.best(self.outputs(observation, action_mask))

    def log_probs(self, outputs: np.ndarray, actions: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Returns log π of sampled actions, float32 ``[T]``.

        Args:
            outputs: Results of `outputs`, float32 ``[T, …]``.
            actions: Actions sampled from them, ``[T, A]`` or ``[T]``.
            noise: The noise used for sampling.
        """
        return self._distribution.log_probs(outputs, actions, noise)


def read_policy(message: bytes) -> Policy:
    """Reads a policy of either kind. Loads onnxruntime only for an ONNX file.

    Args:
        message: A WEIGHTS or GRAPH message.

    Raises:
        WireError: The bytes are not a valid message.
    """
    if wire.kind_of(message) == wire.Kind.GRAPH:
        from lambda_actor.onnx_policy import GraphPolicy

        return GraphPolicy.from_bytes(message)
    return Policy.from_bytes(message)


class _Mlp:
    """Hidden layers of tanh or ReLU units on a vector or on all pixels."""

    def __init__(
        self,
        layers: Sequence[tuple[np.ndarray, np.ndarray]],
        fields: Mapping[str, np.ndarray],
        activation: str,
    ) -> None:
        *hidden, (self._last, self._last_bias) = [
            (np.ascontiguousarray(weight.T), bias) for weight, bias in layers
        ]
        self._is_tanh = activation == "tanh"
        self._input_size = layers[0][0].shape[1]
        self._mean = fields["observation_mean"]
        self._is_normalised = len(self._mean) > 0
        self._inverse_std = (1.0 / fields["observation_std"]).astype(np.float32)
        self._highest = np.full(len(self._mean), fields["observation_clip"], np.float32)
        self._lowest = -self._highest
        # Buffers that calls write into: for one observation, and for the last number of observations.
        self._normalised = np.empty(len(self._mean), np.float32)
        self._hidden = [(weight, bias, np.empty(len(bias), np.float32)) for weight, bias in hidden]
        self._rows = np.empty((0, self._input_size), np.float32)
        self._hidden_together: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def outputs(self, observation: np.ndarray) -> np.ndarray:
        return self._through(np.dot, self._inputs(observation), self._hidden)

    def outputs_together(self, observations: Sequence[np.ndarray]) -> np.ndarray:
        # A stack of products of one row each gives the bits of `outputs`. A matrix product would not.
        if len(observations) != len(self._rows):
            self._prepare(len(observations))
        if observations[0].dtype == np.uint8:
            for row, observation in zip(self._rows, observations, strict=True):
                row[:] = self._inputs(observation)
        else:
            np.concatenate(observations, out=self._rows.reshape(-1))
            if self._is_normalised:
                self._normalise(self._rows, self._rows)
        return self._through(np.matmul, self._rows[:, None], self._hidden_together)[:, 0]

    def _prepare(self, count: int) -> None:
        self._rows = np.empty((count, self._input_size), np.float32)
        self._hidden_together = [
            (weight, bias, np.empty((count, 1, len(bias)), np.float32))
            for weight, bias, _ in self._hidden
        ]

    def _through(
        self,
        product: Callable[..., np.ndarray],
        entering: np.ndarray,
        hidden: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]],
    ) -> np.ndarray:
        # Positional arguments and limits as arrays, because NumPy's overhead per call is as large as the arithmetic.
        for weight, bias, leaving in hidden:
            product(entering, weight, leaving)
            leaving += bias
            if self._is_tanh:
                np.tanh(leaving, leaving)
            else:
                np.maximum(leaving, _ZERO, out=leaving)
            entering = leaving
        outputs = product(entering, self._last)
        outputs += self._last_bias
        return outputs

    def _inputs(self, observation: np.ndarray) -> np.ndarray:
        if self._is_normalised:
            return self._normalise(observation, self._normalised)
        if observation.dtype == np.uint8:
            return observation.reshape(-1) / np.float32(PIXEL_MAX)
        return observation

    def _normalise(self, observation: np.ndarray, inputs: np.ndarray) -> np.ndarray:
        np.subtract(observation, self._mean, inputs)
        inputs *= self._inverse_std
        np.maximum(inputs, self._lowest, out=inputs)
        np.minimum(inputs, self._highest, out=inputs)
        return inputs


class _Trunk:
    """Two convolutions, and a layer over their whole output, each with ReLU."""

    def __init__(self, layers: Sequence[tuple[np.ndarray, np.ndarray]]) -> None:
        (first, first_bias), (second, second_bias), (third, self._features_bias) = layers
        self._matrices = [_matrix(first / np.float32(PIXEL_MAX)), _matrix(second)]
        self._biases = [first_bias[:, None], second_bias[:, None]]
        self._features = _matrix(third)
        self.size = len(third)
        self._shape: tuple[int, ...] = ()
        self._convolutions: list[_Convolution] = []

    def features(self, picture: np.ndarray) -> np.ndarray:
        if picture.shape != self._shape:
            self._prepare(picture.shape)
        hidden = picture
        for convolution, matrix, bias in zip(
            self._convolutions, self._matrices, self._biases, strict=True
        ):
            hidden = convolution(hidden, matrix, bias)
        hidden = np.dot(self._features, hidden.reshape(-1))
        hidden += self._features_bias
        np.maximum(hidden, 0.0, out=hidden)
        features: np.ndarray = hidden
        return features

    def _prepare(self, shape: tuple[int, ...]) -> None:
        self._shape = shape
        self._convolutions = []
        for outputs, kernel, stride in CONVOLUTIONS:
            self._convolutions.append(_Convolution(shape, outputs, kernel, stride))
            shape = self._convolutions[-1].shape


class _Conv:
    """The trunk, and an output layer over its features."""

    def __init__(
        self,
        layers: Sequence[tuple[np.ndarray, np.ndarray]],
        fields: Mapping[str, np.ndarray],
        activation: str,
    ) -> None:
        *trunk, (self._last, self._last_bias) = layers
        self._trunk = _Trunk(trunk)

    def outputs(self, observation: np.ndarray) -> np.ndarray:
        outputs: np.ndarray = np.dot(self._last, self._trunk.features(observation))
        outputs += self._last_bias
        return outputs

    def outputs_together(self, observations: Sequence[np.ndarray]) -> np.ndarray:
        # One after the other, because a call's overhead is small compared with the convolutions.
        return np.stack([self.outputs(observation) for observation in observations])


class _Combined(_Mlp):
    """Hidden layers on the trunk's features of a picture and on the vector. `Policy.check` tells it the spaces."""

    spaces: Spaces

    def __init__(
        self,
        layers: Sequence[tuple[np.ndarray, np.ndarray]],
        fields: Mapping[str, np.ndarray],
        activation: str,
    ) -> None:
        self._trunk = _Trunk(layers[:TRUNK_LAYERS])
        super().__init__(layers[TRUNK_LAYERS:], fields, activation)
        self._joined = np.empty(self._input_size, np.float32)

    def _inputs(self, observation: np.ndarray) -> np.ndarray:
        picture, vector = apart(observation, self.spaces)
        self._joined[: self._trunk.size] = self._trunk.features(picture)
        self._joined[self._trunk.size :] = super()._inputs(vector)
        return self._joined


class _Convolution:
    """A convolution as a matrix product, with ReLU, into buffers of its own."""

    def __init__(self, shape: tuple[int, ...], outputs: int, kernel: int, stride: int) -> None:
        channels, *sides = shape
        paddings = [same_padding(side, kernel, stride) for side in sides]
        self._padded = np.zeros(
            (
                channels,
                *(
                    side + before + after
                    for side, (_, before, after) in zip(sides, paddings, strict=True)
                ),
            ),
            np.float32,
        )
        (rows, top, _), (columns, left, _) = paddings
        self._inside = self._padded[:, top : top + sides[0], left : left + sides[1]]
        windows = sliding_window_view(self._padded, (kernel, kernel), axis=(1, 2))[
            :, ::stride, ::stride
        ]
        self._windows = windows.transpose(0, 3, 4, 1, 2)
        self._copied = np.empty(self._windows.shape, np.float32)
        self._columns = self._copied.reshape(channels * kernel * kernel, rows * columns)
        self._result = np.empty((outputs, rows * columns), np.float32)
        self.shape = (outputs, rows, columns)

    def __call__(self, inputs: np.ndarray, matrix: np.ndarray, bias: np.ndarray) -> np.ndarray:
        self._inside[...] = inputs
        self._copied[...] = self._windows
        np.matmul(matrix, self._columns, out=self._result)
        self._result += bias
        np.maximum(self._result, 0.0, out=self._result)
        return self._result.reshape(self.shape)


class _Gaussian:
    """A diagonal Gaussian with the same log σ in every state."""

    def __init__(self, log_std: np.ndarray) -> None:
        self._log_std = log_std
        self._std = np.exp(log_std)

    def noise(self, stream: np.random.Generator, steps: int, output_size: int) -> np.ndarray:
        return stream.standard_normal((steps, output_size), dtype=np.float32)

    def sample(self, outputs: np.ndarray, noise: np.ndarray) -> np.ndarray:
        actions: np.ndarray = outputs + self._std * noise
        return actions

    def sample_together(self, outputs: np.ndarray, noise: np.ndarray) -> Sequence[np.ndarray]:
        return list(self.sample(outputs, noise))

    def best(self, outputs: np.ndarray) -> np.ndarray:
        return outputs

    def log_probs(self, outputs: np.ndarray, actions: np.ndarray, noise: np.ndarray) -> np.ndarray:
        squared = np.einsum("ta,ta->t", noise, noise, dtype=np.float64)
        constant = float(self._log_std.sum(dtype=np.float64)) + 0.5 * len(self._log_std) * LOG_2PI
        log_probs: np.ndarray = (-0.5 * squared - constant).astype(np.float32)
        return log_probs


class _Categorical:
    """Discrete actions, drawn by the inverse of their cumulative distribution."""

    def noise(self, stream: np.random.Generator, steps: int, output_size: int) -> np.ndarray:
        return stream.random(steps)

    def sample(self, outputs: np.ndarray, noise: np.ndarray) -> int:
        cumulated = np.cumsum(np.exp(outputs - outputs.max()), dtype=np.float64)
        return int(np.searchsorted(cumulated[:-1], noise * cumulated[-1], side="right"))

    def sample_together(self, outputs: np.ndarray, noise: np.ndarray) -> Sequence[int]:
        cumulated = np.cumsum(np.exp(outputs - outputs.max(1, keepdims=True)), 1, np.float64)
        # Count values that are not above. With NaN this counts all, like searchsorted.
        chosen: list[int] = (
            (~(cumulated[:, :-1] > noise[:, None] * cumulated[:, -1:])).sum(1).tolist()
        )
        return chosen

    def best(self, outputs: np.ndarray) -> int:
        return int(outputs.argmax())

    def log_probs(self, outputs: np.ndarray, actions: np.ndarray, noise: np.ndarray) -> np.ndarray:
        shifted = outputs.astype(np.float64) - outputs.max(1, keepdims=True)
        chosen = np.take_along_axis(shifted, actions[:, None], 1)[:, 0]
        log_probs: np.ndarray = (chosen - np.log(np.exp(shifted).sum(1))).astype(np.float32)
        return log_probs


class _Categoricals:
    """Several choices at once, each drawn independently like a `_Categorical`."""

    def __init__(self, counts: Sequence[int]) -> None:
        self._choice = _Categorical()
        self.counts = counts
        self._ends = np.cumsum(counts)[:-1]

    def noise(self, stream: np.random.Generator, steps: int, output_size: int) -> np.ndarray:
        return stream.random((steps, len(self.counts)))

    def sample(self, outputs: np.ndarray, noise: np.ndarray) -> np.ndarray:
        return np.array(
            [
                self._choice.sample(part, drawn)
                for part, drawn in zip(self._parts(outputs), noise, strict=True)
            ]
        )

    def sample_together(self, outputs: np.ndarray, noise: np.ndarray) -> Sequence[np.ndarray]:
        parts = zip(self._parts(outputs), noise.T, strict=True)
        return list(
            np.stack([self._choice.sample_together(part, drawn) for part, drawn in parts], 1)
        )

    def best(self, outputs: np.ndarray) -> np.ndarray:
        return np.array([part.argmax() for part in self._parts(outputs)])

    def log_probs(self, outputs: np.ndarray, actions: np.ndarray, noise: np.ndarray) -> np.ndarray:
        parts = zip(self._parts(outputs), actions.T, noise.T, strict=True)
        each = np.array(
            [self._choice.log_probs(part, taken, drawn) for part, taken, drawn in parts]
        )
        total: np.ndarray = each.sum(0)
        return total

    def _parts(self, outputs: np.ndarray) -> list[np.ndarray]:
        """Returns the logits of each choice, ``[…, n]``."""
        return np.split(outputs, self._ends, axis=-1)


def make_distribution(name: str, log_std: np.ndarray) -> _Gaussian | _Categorical | _Categoricals:
    """Returns the distribution over actions named in a WEIGHTS message.

    Raises:
        SchemaError: There is none of that name.
    """
    kind, *counts = name.split()
    if kind == "gaussian":
        return _Gaussian(log_std)
    if kind != "categorical":
        raise SchemaError(
            f"WEIGHTS are of distribution {name!r}; known: gaussian | categorical N …"
        )
    return _Categoricals([int(count) for count in counts]) if counts else _Categorical()


def layer_count(fields: Mapping[str, np.ndarray]) -> int:
    """Returns the number of layers in a WEIGHTS message."""
    return sum(name.startswith(wire.LAYER_PREFIX) and name.endswith(".weight") for name in fields)


def _layers(fields: Mapping[str, np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns the weights and biases of all layers."""
    names = [f"{wire.LAYER_PREFIX}{i}" for i in range(layer_count(fields))]
    return [(fields[f"{name}.weight"], fields[f"{name}.bias"]) for name in names]


def _matrix(weight: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(weight.reshape(len(weight), -1))
