"""The same number of actors in every round. Paper: Nitro §8.5, "w/o boosting"."""

from __future__ import annotations

from typing import ClassVar

from runtime.config.section import Actors, Field
from runtime.config.variants import ScalerSettings
from runtime.scaler.counts import PlannedScaler


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

    @property
    def mean_actors(self) -> float:
        """Actors of every round."""
        return self.actors_fixed

    def make(self) -> PlannedScaler:
        """Makes the scaler."""
        return PlannedScaler(self, lambda round_index: self.actors_fixed)
