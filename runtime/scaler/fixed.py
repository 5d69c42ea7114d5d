"""The same number of actors in every round. Paper: Nitro §8.5, "w/o boosting"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runtime.interfaces import ScalingDecision


class FixedScaler:
    """``actors_fixed`` actors, whatever happens; no detector runs."""

    needs_ratio = False

    def __init__(self, actors_fixed: int, *, smallest_round: int) -> None:
        self._actors_fixed = actors_fixed
        self.smallest_round = smallest_round

    def first_wave(self, round_index: int) -> int:
        return self._actors_fixed

    def decide(self, round_index: int, convexity_ratio: float | None) -> ScalingDecision:
        return ScalingDecision(self._actors_fixed)

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        pass
