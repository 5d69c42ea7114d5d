"""The gradient noise scale: a ratio of two smoothed estimates, because one round's ratio is hardly a number."""

from __future__ import annotations

import math
from typing import Any

from runtime.ports.scaling import GradientNoise

_KEPT = 0.9
"""Weight of what was before; a round counts half after seven."""


class SmoothedNoise:
    """B_noise = tr Σ / |G|², each an exponentially weighted mean over the rounds.

    Both start at 0 and have the same weights, so that their ratio needs no correction for that.
    """

    def __init__(self) -> None:
        self._variance, self._square = 0.0, 0.0

    def take(self, noise: GradientNoise) -> float | None:
        """Takes a round's estimates in, if there are any; returns the noise scale.

        Returns:
            In samples; None if the smoothed |G|² is not above 0: then the gradient cannot be told from its noise.
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
        """Goes on with these means."""
        self._variance, self._square = float(state["variance"]), float(state["square"])
