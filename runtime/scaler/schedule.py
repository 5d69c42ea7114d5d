"""A handwritten table of rounds and counts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

from runtime.experiment.scaler import ScalerSettings
from runtime.experiment.section import Actors, Count, Field
from runtime.scaler.interfaces import RoundView, Scaler, ScalingDecision

Entry = Annotated[tuple[Count, Actors], Field(strict=False)]


class ScheduleSettings(ScalerSettings):
    """Settings of the table's scaler, whose most actors are the table's largest count."""

    schedule: Annotated[tuple[Entry, ...], Field(min_length=1, strict=False)] = Field(
        ((1, 8),),
        description="pairs of a round, from 1, and its number of actors until the next pair",
    )

    @property
    def most_actors(self) -> int:
        """Returns the most actors in the table."""
        return max(count for _, count in self.schedule)

    def contradictions(self) -> Iterator[str]:
        """Yields a message for each combination of values that cannot work."""
        yield from super().contradictions()
        rounds = [round_index for round_index, _ in self.schedule]
        if rounds[0] != 1 or rounds != sorted(set(rounds)):
            yield f"scaler.schedule has rounds {rounds}; allowed: ascending rounds, each once, the first 1"
        counts = [count for _, count in self.schedule]
        if min(counts) < self.actors_min or max(counts) > self.actors_max:
            yield (
                f"scaler.schedule has {min(counts)} to {max(counts)} actors; allowed: scaler.actors_min = "
                f"{self.actors_min} to scaler.actors_max = {self.actors_max}"
            )

    def make(self) -> PlannedScaler:
        """Makes the scaler."""
        return PlannedScaler(self, self.schedule)


class PlannedScaler(Scaler):
    """Looks the number of actors up by the round's number; no detector runs."""

    def __init__(self, settings: ScalerSettings, schedule: Sequence[tuple[int, int]]) -> None:
        """Sets the bounds and the table.

        Args:
            schedule: Pairs of a round and the actors from there on; the first round is 1.
        """
        super().__init__(settings)
        self._schedule = schedule

    def first_wave(self, round_index: int) -> int:
        """Returns all of a round's actors."""
        begun = [count for first, count in self._schedule if first <= round_index]
        return begun[-1]

    def decide(self, view: RoundView) -> ScalingDecision:
        """Returns the round's count."""
        return ScalingDecision(self.first_wave(view.round_index))
