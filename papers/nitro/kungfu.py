"""Grows the number of actors with the gradient noise scale, and never shrinks it. Paper: KungFu, in Nitro §8.5."""

from __future__ import annotations

from typing import ClassVar

from runtime.experiment.scaler import ScalerSettings
from runtime.records.state import State
from runtime.scaler.interfaces import RoundView, Scaler, ScalingDecision

SETTLED_ROUNDS = 7
"""Rounds until the smoothed noise scale has more than half of its weight; before, it is mostly noise."""
_KEPT = 0.9
"""Weight of earlier rounds' estimates; a round's weight halves after seven."""


class KungFuSettings(ScalerSettings):
    """Settings of KungFu's scaler, which begins with ``actors_min``."""

    signals: ClassVar[frozenset[str]] = frozenset({"variance", "square"})
    detector: ClassVar[str] = "papers.nitro.noise:NoiseDetector"

    def make(self) -> KungFuScaler:
        """Makes the scaler."""
        return KungFuScaler(self)


class KungFuScaler(Scaler):
    """Scales up only, in proportion to the gradient noise scale.

    ``I_k = clip(⌊I_min · max_{j ≤ k} B_j / B_s + ½⌋, I_min, I_max)``, B_s the first noise scale above 0 from round
    `SETTLED_ROUNDS` on; until then I_min. So each new highest noise scale adds its growth since the last one, and
    nothing counts twice. ``B = tr Σ / |G|²``, each an exponentially weighted mean over the rounds, since single rounds
    are too noisy. Both start at 0 with the same weights, so their ratio needs no bias correction.

    Paper: Nitro §8.5, after KungFu (OSDI 2020).
    Departure: Nitro's artifact compares with a reference that it never updates and multiplies its count by the ratio,
    so that a constant noise scale doubles the actors over and over.
    """

    def __init__(self, settings: KungFuSettings) -> None:
        super().__init__(settings)
        self._variance, self._square = 0.0, 0.0
        self._reference: float | None = None
        self._growth = 1.0

    def first_wave(self, round_index: int) -> int:
        """Returns the last decision, because no later one is below it."""
        return self.clipped(self.actors_min * self._growth)

    def decide(self, view: RoundView) -> ScalingDecision:
        """Decides after including the round's gradient noise, if it was measured."""
        variance, square = view.signals["variance"], view.signals["square"]
        if variance is not None and square is not None:
            self._variance = _KEPT * self._variance + (1 - _KEPT) * variance
            self._square = _KEPT * self._square + (1 - _KEPT) * square
            if view.round_index >= SETTLED_ROUNDS and self._variance > 0.0 and self._square > 0.0:
                scale = self._variance / self._square
                self._reference = self._reference or scale
                self._growth = max(self._growth, scale / self._reference)
        return ScalingDecision(self.first_wave(view.round_index))

    def get_state(self) -> State:
        """Returns both means, the first noise scale, and the growth since."""
        return State(
            {},
            {
                "variance": self._variance,
                "square": self._square,
                "reference": self._reference,
                "growth": self._growth,
            },
        )

    def set_state(self, state: State) -> None:
        """Restores what `get_state` returned."""
        self._variance, self._square = state.values["variance"], state.values["square"]
        self._reference, self._growth = state.values["reference"], state.values["growth"]
