"""Grows the number of actors with the gradient noise scale, and never shrinks it. Paper: KungFu, in Nitro §8.5."""

from __future__ import annotations

import math
from typing import ClassVar

from runtime.ports.learning import State
from runtime.ports.scaling import RoundView, ScalingDecision
from runtime.scaler.counts import BoundedScaler
from runtime.settings.scaler import ScalerSettings

SETTLED_ROUNDS = 7
"""Rounds until the smoothed noise scale has more than half of its weight; before, it is mostly noise."""


class KungFuSettings(ScalerSettings):
    """Settings of KungFu's scaler, which begins with ``actors_min``."""

    about: ClassVar[str] = "grows with the gradient noise scale"
    signals: ClassVar[frozenset[str]] = frozenset({"noise_scale"})

    def make(self) -> KungFuScaler:
        """Makes the scaler."""
        return KungFuScaler(self)


class KungFuScaler(BoundedScaler):
    """Scales up only, in proportion to the gradient noise scale.

    ``I_k = clip(⌊I_min · max_{j ≤ k} B_j / B_s + ½⌋, I_min, I_max)``, B_s the first noise scale above 0 from round
    `SETTLED_ROUNDS` on; until then I_min. So each new highest noise scale adds its growth since the last one, and
    nothing counts twice.

    Paper: Nitro §8.5, after KungFu (OSDI 2020).
    Departure: Nitro's artifact compares with a reference that it never updates and multiplies its count by the ratio,
    so that a constant noise scale doubles the actors over and over.
    """

    def __init__(self, settings: KungFuSettings) -> None:
        super().__init__(settings)
        self._reference: float | None = None
        self._growth = 1.0

    def first_wave(self, round_index: int) -> int:
        """Returns the last decision, because no later one is below it."""
        return self.clipped(self.actors_min * self._growth)

    def decide(self, view: RoundView) -> ScalingDecision:
        """Decides after including the round's noise scale, if there is one."""
        found = view.signals["noise_scale"]
        if (
            view.round_index >= SETTLED_ROUNDS
            and found is not None
            and math.isfinite(found)
            and found > 0.0
        ):
            self._reference = self._reference or found
            self._growth = min(max(self._growth, found / self._reference), float(self.actors_max))
        return ScalingDecision(self.first_wave(view.round_index))

    def get_state(self) -> State:
        """Returns the first noise scale and the growth since."""
        return State({}, {"reference": self._reference, "growth": self._growth})

    def set_state(self, state: State) -> None:
        """Restores the growth from ``state``."""
        self._reference, self._growth = state.values["reference"], float(state.values["growth"])
