"""The same number of actors in every round. Paper: Nitro §8.5, "w/o boosting"."""

from __future__ import annotations

from runtime.interfaces import RoundView, ScalingDecision, State
from runtime.records.rows import RoundRow


class FixedScaler:
    """Gives every round ``actors_fixed`` actors; no detector runs."""

    signals: frozenset[str] = frozenset()

    def __init__(self, actors_fixed: int, *, actors_min: int) -> None:
        self.actors_min, self.actors_max = min(actors_min, actors_fixed), actors_fixed

    def first_wave(self, round_index: int) -> int:
        """Returns all of a round's actors."""
        return self.actors_max

    def decide(self, view: RoundView) -> ScalingDecision:
        """Decides for the same number of actors as ever."""
        return ScalingDecision(self.actors_max)

    def observe(self, row: RoundRow) -> None:
        """Does nothing: no round changes the next one."""

    def get_state(self) -> State:
        """Returns an empty state."""
        return State({}, {})

    def set_state(self, state: State) -> None:
        """Does nothing: there is no state."""
