"""MinionsRL's scaler: a learned scheduler decides how many actors a round gets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from runtime.errors import ExperimentError
from runtime.records.state import State
from runtime.scaler.interfaces import RoundView, Scaler, ScalingDecision
from runtime.scaler.saved_scheduler import SavedScheduler, Seen

if TYPE_CHECKING:
    from runtime.records.rows import RoundRow


class MinionsScaler(Scaler):
    """Asks a learned scheduler in each round.

    ``I_k = clip(I_low + a_k, I_min, I_max)``, with ``a_k ~ π(· | s_k)``; s_k is
    `runtime.scaler.saved_scheduler.Seen.state`, normalized by the scheduler's own mean and deviation. Draws depend only
    on the run's seed and k. No signal is read, so none is paid for.

    Paper: MinionsRL, "DRL-based Actor Scheduler". It does not say whether actions are drawn when the scheduler is no
    longer trained (docs/decisions/minionsrl.md).
    """

    def __init__(self, settings: Any, saved: SavedScheduler) -> None:
        """Sets the scheduler.

        Args:
            settings: `runtime.scaler.minions_settings.MinionsSettings`.
            saved: The scheduler that the settings name.

        Raises:
            ExperimentError: No count of the scheduler is within the bounds.
        """
        super().__init__(settings)
        if saved.actors_max < self.actors_min or saved.actors_min > self.actors_max:
            raise ExperimentError(
                f"scaler.scheduler = {settings.scheduler!r} chooses from {saved.actors_min} to {saved.actors_max} "
                f"actors, of which none is between scaler.actors_min = {self.actors_min} and scaler.actors_max = "
                f"{self.actors_max}"
            )
        self._saved = saved
        self._policy = saved.policy
        self._seen = Seen()

    def decide(self, view: RoundView) -> ScalingDecision:
        """Decides by the finished rounds."""
        state = self._seen.state(
            view.round_index, target_return=view.target_return or 0.0, budget_usd=view.budget_usd
        )
        draw = self._policy.noise(np.random.default_rng((view.seed, view.round_index)), 1)[0]
        action = self._policy.sample(self._policy.outputs(state), draw)
        return ScalingDecision(self.clipped(self._saved.actors_min + int(action)))

    def observe(self, row: RoundRow) -> None:
        """Records the round."""
        self._seen = self._seen.after(row, self._saved.pricing.price(row))

    def get_state(self) -> State:
        """Returns the recorded rounds, and the scheduler's identity."""
        return State({}, {"seen": vars(self._seen), "scheduler": self._saved.digest})

    def set_state(self, state: State) -> None:
        """Restores the recorded rounds from ``state``.

        Raises:
            ValueError: It belongs to another scheduler.
        """
        if state.values["scheduler"] != self._saved.digest:
            raise ValueError("scaler.scheduler is not the file any more with which the run began")
        self._seen = Seen(**state.values["seen"])
