"""The gradient noise scale as a ratio of two smoothed estimates, because single rounds are too noisy."""

from __future__ import annotations

import math
from typing import Any

from runtime.ports.scaling import GradientNoise

_KEPT = 0.9
"""Weight of earlier rounds; a round's weight halves after seven."""


class SmoothedNoise:
    """B_noise = tr Σ / |G|², each an exponentially weighted mean over the rounds.

    Both start at 0 with the same weights, so their ratio needs no bias correction.
    """

    def __init__(self) -> None:
        self._variance, self._square = 0.0, 0.0

    def take(self, noise: GradientNoise) -> float | None:
        """Adds a round's estimates, if any, and returns the noise scale.

        Returns:
            In samples; None if the smoothed |G|² is not above 0, so that the gradient is lost in its noise.
        """
        if noise.variance is not None and noise.square is not None:
            self._variance = _KEPT * self._variance + (1 - _KEPT) * noise.variance
            self._square = _KEPT * self._square + (1 - _KEPT) * noise.square
        if self._square <= 0.0:
            return None
        scale = self._variance / self._square
        return scale if math.isfinite(scale) else None

    def get_state(self) -> dict[str, Any]:
        """Returns both means."""
        return {"variance": self._variance, "square": self._square}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restores these means."""
        self._variance, self._square = float(state["variance"]), float(state["square"])
