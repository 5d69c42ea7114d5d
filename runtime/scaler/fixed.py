"""The same number of actors in every round. Paper: Nitro §8.5, "w/o boosting"."""

from __future__ import annotations

from collections.abc import Iterator

from runtime.experiment.scaler import ScalerSettings
from runtime.experiment.section import Actors, Field
from runtime.scaler.schedule import PlannedScaler


class FixedSettings(ScalerSettings):
    """Settings of the fixed scaler, which ignores ``actors_max``, and caps ``actors_min`` at its count."""

    actors_fixed: Actors = Field(8, description="actors of every round")

    @property
    def most_actors(self) -> int:
        """Returns the actors of every round."""
        return self.actors_fixed

    @property
    def smallest_round(self) -> int:
        """Returns the fewest actors to which a short budget may shrink a round."""
        return min(self.actors_min, self.actors_fixed)

    @property
    def mean_actors(self) -> float:
        """Returns the actors of every round."""
        return self.actors_fixed

    def contradictions(self) -> Iterator[str]:
        """Yields nothing: the bounds' order does not matter."""
        yield from ()

    def make(self) -> PlannedScaler:
        """Makes the scaler."""
        return PlannedScaler(self, ((1, self.actors_fixed),))
