"""Always the most actors. Paper: MinionsRL's ablation, "MinionsRL-Max"."""

from __future__ import annotations

from typing import ClassVar

from runtime.scaler.counts import PlannedScaler
from runtime.settings.scaler import ScalerSettings


class MaxSettings(ScalerSettings):
    """Settings of the scaler that always takes ``actors_max``."""

    about: ClassVar[str] = "always takes actors_max"

    @property
    def mean_actors(self) -> float:
        """Returns the actors of every round."""
        return self.actors_max

    def make(self) -> PlannedScaler:
        """Makes the scaler."""
        return PlannedScaler(self, lambda round_index: self.actors_max)
