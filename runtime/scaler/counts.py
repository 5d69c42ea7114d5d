"""What several scalers share: whole numbers of actors, and a scaler whose counts depend on the round's number alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from runtime.ports.learning import State
from runtime.ports.scaling import RoundView, ScalingDecision

if TYPE_CHECKING:
    from runtime.records.rows import RoundRow
    from runtime.settings.scaler import ScalerSettings


def clipped(wanted: float, actors_min: int, actors_max: int) -> int:
    """Returns ``clip(⌊wanted + ½⌋, I_min, I_max)``; ``actors_min`` if ``wanted`` is not a number."""
    if math.isnan(wanted):
        return actors_min
    return math.floor(min(max(wanted, actors_min), actors_max) + 0.5)


class PlannedScaler:
    """Gives each round the number of actors that its place in the run decides; no detector runs."""

    signals: frozenset[str] = frozenset()

    def __init__(self, settings: ScalerSettings, count_of: Callable[[int], int]) -> None:
        """Takes what decides.

        Args:
            settings: Its bounds.
            count_of: Actors of a round by its number, from 1.
        """
        self.actors_min, self.actors_max = settings.smallest_round, settings.most_actors
        self._count_of = count_of

    def first_wave(self, round_index: int) -> int:
        """Returns all of a round's actors."""
        return clipped(self._count_of(round_index), self.actors_min, self.actors_max)

    def decide(self, view: RoundView) -> ScalingDecision:
        """Decides for the round's count."""
        return ScalingDecision(self.first_wave(view.round_index))

    def observe(self, row: RoundRow) -> None:
        """Does nothing: no round changes the next one."""

    def get_state(self) -> State:
        """Returns an empty state."""
        return State({}, {})

    def set_state(self, state: State) -> None:
        """Does nothing: there is no state."""
