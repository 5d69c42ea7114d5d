"""Actors in proportion to the return's share of its target. Paper: MinionsRL's ablation, "MinionsRL-Adapt"."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

from runtime.experiment.scaler import ScalerSettings
from runtime.experiment.section import Field
from runtime.scaler.interfaces import ROWS_MAX, RoundView, Scaler, ScalingDecision


class MinionsAdaptSettings(ScalerSettings):
    """Settings of MinionsRL-Adapt; it needs ``stop.target_return``."""

    needs_target: ClassVar[bool] = True
    has_score: ClassVar[bool] = True

    return_rounds: Annotated[int, Field(ge=1, le=ROWS_MAX)] = Field(
        5, description="n, latest rounds with a return to average over"
    )

    def make(self) -> MinionsAdaptScaler:
        """Makes the scaler."""
        return MinionsAdaptScaler(self)


class MinionsAdaptScaler(Scaler):
    """Makes the share of actors equal to the return's share of the target.

    ``I_k = clip(⌊I_max · Ĵ_k/J + ½⌋, I_min, I_max)``; Ĵ_k is the mean return of the last n finished rounds in which an
    episode ended, J is ``stop.target_return``. Before the first return there are ``actors_min`` actors.

    Paper: MinionsRL, "Ablation Study".
    Departure: the paper's Ĵ_k is a sum without 1/n, over n + 1 rounds, which would exceed J with a fifth of the return;
    here it is the mean of n. The paper's I_min is 1. The target is above 0.
    """

    def __init__(self, settings: MinionsAdaptSettings) -> None:
        super().__init__(settings)
        self._return_rounds = settings.return_rounds

    def decide(self, view: RoundView) -> ScalingDecision:
        """Decides by the last rounds' returns."""
        returns = [row.episode_return_mean for row in view.rows]
        known = [one for one in returns if one is not None and math.isfinite(one)][
            -self._return_rounds :
        ]
        if not known or view.target_return is None:
            return ScalingDecision(self.actors_min, 0.0)
        score = min(max(math.fsum(known) / len(known) / view.target_return, 0.0), 1.0)
        return ScalingDecision(self.clipped(self.actors_max * score), score)
