"""Nitro's cost-aware scaler: more actors where the objective's surface is flat, fewer as rounds go by."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from runtime.interfaces import ScalingDecision


def actor_count(score: float, actors_min: int, actors_max: int) -> int:
    """``I = clip(⌊I_max·S + ½⌋, I_min, I_max)``."""
    return min(max(math.floor(actors_max * score + 0.5), actors_min), actors_max)


class NitroScaler:
    """``I_k = clip(⌊I_max·S_k + ½⌋, I_min, I_max)`` with ``S_k = (R_max − R_k)/(R_max − R_min)·d^k``.

    R_min and R_max are taken over the last n ratios that are not null, R_k among them. Rounds count from 1.

    Paper: Nitro §5.3.
    Departure: the paper leaves S_k open in the first round, for a null R_k and for a window whose ratios are all
    equal; there S_k = d^k, so early rounds are boosted and late ones are not (docs/decisions/0004-scaler.md).
    """

    needs_ratio = True

    def __init__(self, *, actors_min: int, actors_max: int, window_rounds: int, decay_factor: float) -> None:
        self._actors_min, self._actors_max = actors_min, actors_max
        self._window_rounds, self._decay_factor = window_rounds, decay_factor
        self._window: list[float] = []
        self.smallest_round = actors_min

    def first_wave(self, round_index: int) -> int:
        return self._actors_min

    def decide(self, round_index: int, convexity_ratio: float | None) -> ScalingDecision:
        """To be asked once a round.

        Args:
            round_index: k, from 1.
            convexity_ratio: R_k of the policy that this round's actors roll out, or null.
        """
        decay_weight = self._decay_factor**round_index
        score = self._normalised(convexity_ratio) * decay_weight
        return ScalingDecision(actor_count(score, self._actors_min, self._actors_max), score, decay_weight)

    def _normalised(self, convexity_ratio: float | None) -> float:
        if convexity_ratio is None:
            return 1.0
        self._window = [*self._window, convexity_ratio][-self._window_rounds:]
        lowest, highest = min(self._window), max(self._window)
        if highest == lowest:
            return 1.0
        return (highest - convexity_ratio) / (highest - lowest)

    def get_state(self) -> dict[str, Any]:
        return {"window": self._window}

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._window = [float(ratio) for ratio in state["window"]]
