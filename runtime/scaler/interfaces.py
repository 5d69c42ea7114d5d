"""The base of scalers, which choose a round's actors, and what they see and decide."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from runtime.records.state import State

if TYPE_CHECKING:
    from runtime.experiment.scaler import ScalerSettings
    from runtime.records.rows import RoundRow


ROWS_MAX = 64
"""Maximum finished rounds in a scaler's view."""


@dataclass(frozen=True)
class RoundView:
    """A scaler's information for deciding about a round.

    Attributes:
        round_index: The round to decide about, from 1.
        rows: Rows of the last finished rounds, oldest first; at most `ROWS_MAX`.
        free_usd: Dollars of the budget that are neither spent nor reserved.
        signals: The scaler's `Scaler.signals` by name; None if undefined or not measured yet.
        target_return: ``stop.target_return``.
        budget_usd: ``budget.usd``.
        seed: ``seed``, for random decisions.
    """

    round_index: int
    rows: Sequence[RoundRow] = ()
    free_usd: float = math.inf
    signals: Mapping[str, float | None] = field(default_factory=dict)
    target_return: float | None = None
    budget_usd: float = math.inf
    seed: int = 0


@dataclass(frozen=True)
class ScalingDecision:
    """How many actors a round should have, and why.

    Attributes:
        boosting_score: None if the scaler has no score.
        decay_weight: None if the scaler has no weight.
    """

    actor_count: int
    boosting_score: float | None = None
    decay_weight: float | None = None


class Scaler:
    """Decides how many actors a round gets: the base of all scalers, with bounds and signals from the settings.

    Attributes:
        signals: Names of the signals that it reads.
        actors_min: Fewest actors of a round. A round does not start if the budget cannot hold this many.
        actors_max: Most actors of a round.
    """

    def __init__(self, settings: ScalerSettings) -> None:
        self.signals = settings.signals
        self.actors_min = settings.smallest_round
        self.actors_max = settings.most_actors

    def clipped(self, wanted: float) -> int:
        """Returns ``clip(⌊wanted + ½⌋, I_min, I_max)``."""
        return math.floor(min(max(wanted, self.actors_min), self.actors_max) + 0.5)

    def first_wave(self, round_index: int) -> int:
        """Returns how many actors start before the signals are known, whatever the signals will say."""
        return self.actors_min

    def decide(self, view: RoundView) -> ScalingDecision:
        """Decides about a round. Called once per round."""
        raise NotImplementedError

    def observe(self, row: RoundRow) -> None:
        """Takes a finished round's row of rounds.jsonl, before the checkpoint."""

    def get_state(self) -> State:
        """Returns what `set_state` needs to go on in another process."""
        return State({}, {})

    def set_state(self, state: State) -> None:
        """Restores what `get_state` returned."""
