"""Draws the number of actors anew in each round, for recordings by `python -m papers.minionsrl record`."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

import numpy as np

from runtime.scaler.counts import PlannedScaler
from runtime.settings.scaler import ScalerSettings
from runtime.settings.section import Field

DRAWS_SEED = Field(0, description="seed of the draws")


class RandomSettings(ScalerSettings):
    """Settings of the random scaler."""

    about: ClassVar[str] = "draws log-uniformly"

    draws_seed: Annotated[int, Field(ge=0, lt=2**63)] = DRAWS_SEED

    def make(self) -> PlannedScaler:
        """Makes the scaler."""
        return PlannedScaler(self, self._count)

    def _count(self, round_index: int) -> int:
        """Returns ⌊eᵘ⌋ with u uniform from ln I_min to ln (I_max + 1), so each doubling is equally likely."""
        lowest, highest = math.log(self.actors_min), math.log(self.actors_max + 1)
        return int(
            math.exp(np.random.default_rng((self.draws_seed, round_index)).uniform(lowest, highest))
        )
