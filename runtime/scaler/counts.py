"""Shared by scalers: integer counts within bounds, and counts that depend only on the round's number."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from runtime.records.state import State
from runtime.scaler.interfaces import RoundView, ScalingDecision

if TYPE_CHECKING:
    from runtime.experiment.scaler import ScalerSettings
    from runtime.records.rows import RoundRow


class BoundedScaler:
    """Base of scalers: bounds and signals from the settings, ``actors_min`` at once in every round, and no state."""

    def __init__(self, settings: ScalerSettings) -> None:
        self.signals = settings.signals
        self.actors_min, self.actors_max = settings.smallest_round, settings.most_actors

    def clipped(self, wanted: float) -> int:
        """Returns ``clip(⌊wanted + ½⌋, I_min, I_max)``."""
        return math.floor(min(max(wanted, self.actors_min), self.actors_max) + 0.5)

    def first_wave(self, round_index: int) -> int:
        """Returns ``actors_min``, the minimum of every round."""
        return self.actors_min

    def observe(self, row: RoundRow) -> None:
        """Does nothing: the view has everything needed."""

    def get_state(self) -> State:
        """Returns an empty state."""
        return State({}, {})

    def set_state(self, state: State) -> None:
        """Does nothing: there is no state."""


class PlannedScaler(BoundedScaler):
    """Computes the number of actors from the round's number; no detector runs."""

    def __init__(self, settings: ScalerSettings, count_of: Callable[[int], int]) -> None:
        """Sets bounds and counts.

        Args:
            settings: Settings with the bounds.
            count_of: Returns the actors of a round by its number, from 1.
        """
        super().__init__(settings)
        self._count_of = count_of

    def first_wave(self, round_index: int) -> int:
        """Returns all of a round's actors."""
        return self.clipped(self._count_of(round_index))

    def decide(self, view: RoundView) -> ScalingDecision:
        """Returns the round's count."""
        return ScalingDecision(self.first_wave(view.round_index))
