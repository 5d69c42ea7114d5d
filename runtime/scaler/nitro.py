"""Nitro's cost-aware scaler: more actors where the objective's surface is flat, fewer in later rounds."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

from runtime.experiment.scaler import ScalerSettings
from runtime.experiment.section import Count, Field
from runtime.records.state import State
from runtime.scaler.interfaces import RoundView, Scaler, ScalingDecision


class NitroSettings(ScalerSettings):
    """Settings of Nitro's scaler. Paper: Nitro Table 1."""

    signals: ClassVar[frozenset[str]] = frozenset({"convexity_ratio"})
    has_score: ClassVar[bool] = True

    window_rounds: Count = Field(6, description="n, rounds whose convexity ratios are compared")
    decay_factor: Annotated[float, Field(gt=0, le=1)] = Field(
        0.96, description="d; the score is weighted by d^k"
    )

    def make(self) -> NitroScaler:
        """Makes the scaler."""
        return NitroScaler(self)


class NitroScaler(Scaler):
    """Boosts rounds whose surface is flat.

    ``I_k = clip(⌊I_max·S_k + ½⌋, I_min, I_max)`` with ``S_k = (R_max − R_k)/(R_max − R_min)·d^k``. R_min and R_max are
    taken over the last n ratios that are not None, including R_k. Rounds count from 1.

    Paper: Nitro §5.3.
    Departure: the paper leaves S_k open in the first round, if R_k is None and for a window whose ratios are all
    equal; there S_k = d^k, so early rounds are boosted and late ones are not (docs/decisions/0004-scaler.md).
    """

    def __init__(self, settings: NitroSettings) -> None:
        super().__init__(settings)
        self._settings = settings
        self._window: list[float] = []

    def decide(self, view: RoundView) -> ScalingDecision:
        """Scores the round, and adds its ratio to the window.

        Args:
            view: Of round k; ``convexity_ratio`` is R_k of the policy that this round's actors use.
        """
        decay_weight = self._settings.decay_factor**view.round_index
        score = self._normalised(view.signals["convexity_ratio"]) * decay_weight
        return ScalingDecision(self.clipped(self.actors_max * score), score, decay_weight)

    def _normalised(self, convexity_ratio: float | None) -> float:
        if convexity_ratio is None or not 0.0 <= convexity_ratio < math.inf:
            return 1.0
        self._window = [*self._window, convexity_ratio][-self._settings.window_rounds :]
        lowest, highest = min(self._window), max(self._window)
        if highest == lowest:
            return 1.0
        return (highest - convexity_ratio) / (highest - lowest)

    def get_state(self) -> State:
        """Returns the window of ratios."""
        return State({}, {"window": self._window})

    def set_state(self, state: State) -> None:
        """Restores the window from ``state``."""
        self._window = [float(ratio) for ratio in state.values["window"]]
