"""The same number of actors in every round. Paper: Nitro §8.5, "w/o boosting"."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from runtime.config.section import Actors, Field
from runtime.config.variants import ScalerSettings
from runtime.interfaces import RoundView, ScalingDecision, State

if TYPE_CHECKING:
    from runtime.records.rows import RoundRow


class FixedSettings(ScalerSettings):
    """Settings of the fixed scaler; ``actors_max`` does not count for it."""

    about: ClassVar[str] = "never changes"

    actors_fixed: Actors = Field(16, description="actors of every round")

    @property
    def most_actors(self) -> int:
        """Actors of every round."""
        return self.actors_fixed

    @property
    def smallest_round(self) -> int:
        """Fewest actors that a round may be shrunk to when the budget gets short."""
        return min(self.actors_min, self.actors_fixed)

    def make(self) -> FixedScaler:
        """Makes the scaler."""
        return FixedScaler(self)


class FixedScaler:
    """Gives every round ``actors_fixed`` actors; no detector runs."""

    signals: frozenset[str] = frozenset()

    def __init__(self, settings: FixedSettings) -> None:
        self.actors_min, self.actors_max = settings.smallest_round, settings.most_actors

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
