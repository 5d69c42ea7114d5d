"""Doubles the actors every few rounds. Paper: Hydrozoa, as compared in Nitro §8.5."""

from __future__ import annotations

from typing import ClassVar

from runtime.scaler.counts import PlannedScaler
from runtime.settings.scaler import ScalerSettings
from runtime.settings.section import Count, Field


class HydrozoaSettings(ScalerSettings):
    """Settings of the doubling scaler, which begins with ``actors_min``.

    ``I_k = min(I_min · 2^⌊(k − 1)/m⌋, I_max)``, rounds counted from 1. With the defaults: 8, 16, 32, 64 actors, each
    for ten rounds.
    """

    about: ClassVar[str] = "doubles every doubling_rounds"

    doubling_rounds: Count = Field(10, description="m, rounds between doublings")

    def make(self) -> PlannedScaler:
        """Makes the scaler."""
        return PlannedScaler(self, self._count)

    def _count(self, round_index: int) -> int:
        # Larger powers of two exceed any round.
        doublings = min((round_index - 1) // self.doubling_rounds, self.actors_max.bit_length())
        return self.actors_min << doublings
