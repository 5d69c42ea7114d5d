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


def progress(mean_return: float, target: float) -> float:
    """Returns how near a mean return is to its target, from 0 to 1.

    That is Ĵ/J between 0 and a target above 0. A target below 0 inverts the ratio, J/Ĵ: a return of twice −200 is
    halfway there. A target of 0 has no ratio: 0 until it is reached.
    """
    if mean_return >= target:
        return 1.0
    if target > 0.0:
        return max(mean_return, 0.0) / target
    return target / mean_return


class MinionsAdaptScaler(Scaler):
    """Makes the share of actors equal to the return's share of the target.

    ``I_k = clip(⌊I_max · Ĵ_k/J + ½⌋, I_min, I_max)``; Ĵ_k is the mean return of the last n finished rounds in which an
    episode ended, J is ``stop.target_return``. Before the first return there are ``actors_min`` actors.

    Paper: MinionsRL, "Ablation Study".
    Departure: the paper's Ĵ_k is a sum without 1/n, over n + 1 rounds, which would exceed J with a fifth of the return;
    here it is the mean of n. The paper's I_min is 1. `progress` handles returns and targets below 0, which the paper
    does not have.
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
        score = progress(math.fsum(known) / len(known), view.target_return)
        return ScalingDecision(self.clipped(self.actors_max * score), score)
