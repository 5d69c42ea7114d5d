"""A handwritten table of rounds and counts."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Annotated, ClassVar

from runtime.scaler.counts import PlannedScaler
from runtime.settings.scaler import ScalerSettings
from runtime.settings.section import Actors, Count, Field

Entry = Annotated[tuple[Count, Actors], Field(strict=False)]


class ScheduleSettings(ScalerSettings):
    """Settings of the table's scaler, whose most actors are the table's largest count."""

    about: ClassVar[str] = "follows a table"

    schedule: Annotated[tuple[Entry, ...], Field(min_length=1, strict=False)] = Field(
        ((1, 8),),
        description="pairs of a round and its number of actors, which holds until the next pair; the first "
        "round is 1",
    )

    @property
    def most_actors(self) -> int:
        """Returns the most actors in the table."""
        return max(count for _, count in self.schedule)

    @property
    def mean_actors(self) -> float:
        """Returns the mean of the table's counts, because the number of rounds is unknown."""
        return sum(count for _, count in self.schedule) / len(self.schedule)

    def contradictions(self) -> Iterator[str]:
        """Yields a message for each combination of values that cannot work."""
        yield from super().contradictions()
        rounds = [round_index for round_index, _ in self.schedule]
        if rounds[0] != 1:
            yield f"scaler.schedule begins with round {rounds[0]}; allowed: a first pair of round 1"
        for before, after in zip(rounds, rounds[1:], strict=False):
            if after <= before:
                yield (
                    f"scaler.schedule: round {after} stands after round {before}; allowed: ascending rounds, each "
                    "once"
                )
        for round_index, count in self.schedule:
            if not self.actors_min <= count <= self.actors_max:
                yield (
                    f"scaler.schedule: {count} actors from round {round_index} on; allowed: scaler.actors_min = "
                    f"{self.actors_min} to scaler.actors_max = {self.actors_max}"
                )

    def make(self) -> PlannedScaler:
        """Makes the scaler."""
        rounds, counts = zip(*self.schedule, strict=True)
        return PlannedScaler(
            self, lambda round_index: counts[bisect_right(rounds, round_index) - 1]
        )
