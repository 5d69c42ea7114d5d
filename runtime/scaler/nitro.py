"""Nitro's cost-aware scaler: more actors where the objective's surface is flat, fewer in later rounds."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

from runtime.experiment.scaler import ScalerSettings
from runtime.experiment.section import Count, Field
from runtime.records.state import State
from runtime.scaler.interfaces import RoundView, Scaler, ScalingDecision

_FIRST_ACTORS = 16
_WIDENING = 0.01
"""Actors of the artifact's first round, and what it adds to both ends of the spectrum."""


class NitroSettings(ScalerSettings):
    """Settings of Nitro's scaler. Paper: Nitro Table 1."""

    signals: ClassVar[frozenset[str]] = frozenset(
        {"convexity_ratio", "eigenvalue_min", "eigenvalue_max"}
    )
    has_score: ClassVar[bool] = True

    window_rounds: Count = Field(6, description="n, rounds whose convexity ratios are compared")
    decay_factor: Annotated[float, Field(gt=0, le=1)] = Field(
        0.96, description="d; the score is weighted by d^k"
    )
    rule: Literal["text", "artifact"] = Field(
        "text", description="text = the paper's §5.3; artifact = the authors' code"
    )

    def make(self) -> NitroScaler:
        """Makes the scaler."""
        return ArtifactScaler(self) if self.rule == "artifact" else NitroScaler(self)


class NitroScaler(Scaler):
    """Boosts rounds whose surface is flat.

    ``I_k = clip(⌊I_max·S_k + ½⌋, I_min, I_max)`` with ``S_k = (R_max − R_k)/(R_max − R_min)·d^k``. R_min and R_max are
    taken over the last n ratios that are not None, including R_k. Rounds count from 1.

    Paper: Nitro §5.3.
    Departure: the paper leaves S_k open in the first round, if R_k is None and for a window whose ratios are all
    equal; there S_k = d^k, so early rounds are boosted and late ones are not (docs/decisions/nitro.md).
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
        lowest, highest = self._extremes_with(convexity_ratio)
        if highest == lowest:
            return 1.0
        return (highest - convexity_ratio) / (highest - lowest)

    def _extremes_with(self, ratio: float) -> tuple[float, float]:
        """Adds a ratio to the window, and returns the window's lowest and highest."""
        self._window = [*self._window, ratio][-self._settings.window_rounds :]
        return min(self._window), max(self._window)

    def get_state(self) -> State:
        """Returns the window of ratios."""
        return State({}, {"window": self._window})

    def set_state(self, state: State) -> None:
        """Restores the window from ``state``."""
        self._window = [float(ratio) for ratio in state.values["window"]]


class ArtifactScaler(NitroScaler):
    """Boosts rounds as the authors' code does, which differs from the paper's text.

    With ``Q_k = −λ_max / λ_min`` of the loss, which is 1/R, and ``p = k − 1`` the rounds played, the window of n
    numbers gets ``Q_k·d^p``, then it decides ``S_k = (Q_k·d^p − min)/(max − min)`` and
    ``I_k = max(⌊I_max·S_k⌋, ⌊I_max·d^(p²)⌋)``, clipped to I_min and I_max, and then the window gets ``Q_k``, too.
    The first round has 16 actors. So most of the schedule follows from d.

    Source: Nitro.py and utils.py at commit 2c725a9 of the authors' artifact.
    Departure: it divides by 0 if all numbers in the window are equal; here S_k = 1, as for its only number.
    """

    def decide(self, view: RoundView) -> ScalingDecision:
        """Scores the round, and adds to the window."""
        eigenvalue_max, eigenvalue_min = (
            view.signals["eigenvalue_max"],
            view.signals["eigenvalue_min"],
        )
        if eigenvalue_max is None or eigenvalue_min is None:
            return ScalingDecision(self.clipped(_FIRST_ACTORS))
        played = view.round_index - 1
        decay_weight = self._settings.decay_factor**played
        ratio = (_WIDENING - eigenvalue_min) / (_WIDENING + eigenvalue_max)
        lowest, highest = self._extremes_with(ratio * decay_weight)
        self._extremes_with(ratio)
        is_flat = highest == lowest
        score = 1.0 if is_flat else (ratio * decay_weight - lowest) / (highest - lowest)
        share = max(score, decay_weight**played)
        return ScalingDecision(self.clipped(int(self.actors_max * share)), score, decay_weight)
