"""The same number of actors in every round. Paper: Nitro §8.5, "w/o boosting"."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from runtime.scaler.counts import PlannedScaler
from runtime.settings.scaler import ScalerSettings
from runtime.settings.section import Actors, Field, Unused


class FixedSettings(ScalerSettings):
    """Settings of the fixed scaler; ``actors_max`` does not count for it, and ``actors_min`` is at most its count."""

    about: ClassVar[str] = "never changes"

    actors_fixed: Actors = Field(8, description="actors of every round")

    @property
    def most_actors(self) -> int:
        """Actors of every round."""
        return self.actors_fixed

    @property
    def smallest_round(self) -> int:
        """Fewest actors that a round may be shrunk to when the budget gets short."""
        return min(self.actors_min, self.actors_fixed)

    @property
    def mean_actors(self) -> float:
        """Actors of every round."""
        return self.actors_fixed

    def unused(self) -> Iterator[Unused]:
        """Yields the most actors, and more fewest actors than there are."""
        yield Unused(["scaler.actors_max"], ["scaler.kind"], "any other scaler.kind")
        if self.actors_min > self.actors_fixed:
            yield Unused(["scaler.actors_min"], ["scaler.kind", "scaler.actors_fixed"],
                         f"scaler.actors_min from 1 to {self.actors_fixed}")

    def contradictions(self) -> Iterator[str]:
        """Yields nothing: bounds that are out of order do not count."""
        yield from ()

    def make(self) -> PlannedScaler:
        """Makes the scaler."""
        return PlannedScaler(self, lambda round_index: self.actors_fixed)
