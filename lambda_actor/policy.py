"""Policy inference without torch: the 2×256 tanh Gaussian policy in numpy, for one observation at a time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lambda_actor import wire

HIDDEN_SIZES = (256, 256)
"""Of policy and critic. Paper: Nitro §8.1."""
LOG_2PI = float(np.log(2.0 * np.pi))


class GaussianPolicy:
    """Diagonal Gaussian policy with a tanh network for the mean and a state-independent log σ.

    Paper: Nitro §8.1 (two fully connected layers of 256 tanh units for MuJoCo).
    """

    def __init__(self, weights: Mapping[str, np.ndarray]) -> None:
        """Args:
        weights: The fields of a GAUSSIAN_WEIGHTS message (see `lambda_actor.wire.SCHEMAS`).
        """
        self.policy_version = int(weights["policy_version"])
        self._layers = [
            (np.ascontiguousarray(weights[f"weight_{i}"].T), weights[f"bias_{i}"]) for i in range(3)
        ]
        self._mean = weights["observation_mean"]
        self._inverse_std = (1.0 / weights["observation_std"]).astype(np.float32)
        self._clip = float(weights["observation_clip"])
        self.log_std = weights["log_std"]
        self.std = np.exp(self.log_std)

    @classmethod
    def from_bytes(cls, data: bytes) -> GaussianPolicy:
        """Raises: any `WireError` for bytes that are not a sound GAUSSIAN_WEIGHTS message."""
        return cls(wire.decode(data, wire.Kind.GAUSSIAN_WEIGHTS))

    @property
    def observation_size(self) -> int:
        return self._layers[0][0].shape[0]

    @property
    def action_size(self) -> int:
        return self._layers[2][0].shape[1]

    def mean_action(self, observation: np.ndarray) -> np.ndarray:
        """The Gaussian's mean, float32 ``[A]``, for one raw (not yet normalised) observation, float32 ``[O]``."""
        hidden = (observation - self._mean) * self._inverse_std
        np.maximum(hidden, -self._clip, out=hidden)
        np.minimum(hidden, self._clip, out=hidden)
        (weight_0, bias_0), (weight_1, bias_1), (weight_2, bias_2) = self._layers
        hidden = hidden @ weight_0
        hidden += bias_0
        np.tanh(hidden, out=hidden)
        hidden = hidden @ weight_1
        hidden += bias_1
        np.tanh(hidden, out=hidden)
        hidden = hidden @ weight_2
        hidden += bias_2
        return hidden

    def log_probs(self, noise: np.ndarray) -> np.ndarray:
        """log π of the actions ``mean + σ·noise``, float32 ``[T]``, from the standard-normal noise ``[T, A]``."""
        squared = np.einsum("ta,ta->t", noise, noise, dtype=np.float64)
        constant = float(self.log_std.sum(dtype=np.float64)) + 0.5 * self.action_size * LOG_2PI
        return (-0.5 * squared - constant).astype(np.float32)
