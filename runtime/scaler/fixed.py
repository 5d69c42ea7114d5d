"""The same number of actors in every round. Paper: Nitro §8.5, "w/o boosting"."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from runtime.config.section import Actors, Field
from runtime.config.variants import ScalerSettings
from runtime.scaler.counts import PlannedScaler


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

    def unused(self) -> Mapping[str, tuple[Sequence[str], str]]:
        """Returns the most actors, and more fewest actors than there are."""
        found: dict[str, tuple[Sequence[str], str]] = {"actors_max": ((), "any other scaler.kind")}
        if self.actors_min > self.actors_fixed:
            found["actors_min"] = (("actors_fixed",), f"scaler.actors_min from 1 to {self.actors_fixed}")
        return found

    def contradictions(self) -> Iterator[str]:
        """Yields nothing: bounds that are out of order do not count."""
        yield from ()

    def make(self) -> PlannedScaler:
        """Makes the scaler."""
        return PlannedScaler(self, lambda round_index: self.actors_fixed)
