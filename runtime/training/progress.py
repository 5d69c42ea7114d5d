"""A run's progress, and when it is finished."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from runtime.experiment.schema import StopSection

_SAVED = (
    "round_index",
    "env_steps_total",
    "evaluation_return_mean",
    "evaluation_round",
    "decided_round",
)


@dataclass
class Progress:
    """A run's progress so far.

    Attributes:
        stop: The experiment's reasons to stop.
        fragment_steps: Environment steps of a fragment; only whole ones are trained on.
        round_index: The last finished round; 0 before the first.
        env_steps_total: Environment steps that were trained on.
        evaluation_return_mean: The last evaluation's.
        evaluation_round: The round that left the policy of the last evaluation.
        decided_round: The round whose end collected that evaluation.
        current_round: The round in progress.
    """

    stop: StopSection
    fragment_steps: int
    round_index: int = 0
    env_steps_total: int = 0
    evaluation_return_mean: float | None = None
    evaluation_round: int | None = None
    decided_round: int | None = None
    current_round: int = field(default=0, repr=False)

    @property
    def fraction(self) -> float:
        """Share of the training that is done, 0 to 1; 0 if neither rounds nor steps are limited."""
        fractions = [0.0]
        if self.stop.max_rounds is not None:
            fractions.append(self.round_index / self.stop.max_rounds)
        if self.stop.max_steps is not None:
            fractions.append(self.env_steps_total / self.stop.max_steps)
        return min(1.0, max(fractions))

    def is_last(self, round_index: int, *, steps_more: int = 0) -> bool:
        """Returns whether this round, with ``steps_more`` additional steps, is the last by number or by steps."""
        return (
            self.stop.max_rounds is not None and round_index >= self.stop.max_rounds
        ) or self.room_for(1, steps_more=steps_more) == 0

    def room_for(self, fragments: int, *, steps_more: int = 0) -> int:
        """Returns how many of these fragments fit into ``stop.max_steps`` after ``steps_more`` additional steps."""
        if self.stop.max_steps is None:
            return fragments
        left = (self.stop.max_steps - self.env_steps_total - steps_more) // self.fragment_steps
        return max(0, min(fragments, left))

    def evaluated(self, return_mean: float, *, policy_round: int, decided_round: int) -> None:
        """Records an evaluation."""
        self.evaluation_return_mean = return_mean
        self.evaluation_round = policy_round
        self.decided_round = decided_round

    def is_target_reached(self, return_mean: float | None) -> bool:
        """Returns whether this return is a reason to stop."""
        target = self.stop.target_return
        return target is not None and return_mean is not None and return_mean >= target

    @property
    def stop_reason(self) -> str | None:
        """The reason target_return, max_rounds or max_steps; None if there is more to do.

        ``stop.max_steps`` is reached when no whole fragment fits any more.
        """
        stop = self.stop
        if self.decided_round == self.round_index and self.is_target_reached(
            self.evaluation_return_mean
        ):
            return "target_return"
        if stop.max_rounds is not None and self.round_index >= stop.max_rounds:
            return "max_rounds"
        if self.room_for(1) == 0:
            return "max_steps"
        return None

    def get_state(self) -> dict[str, Any]:
        """Returns the state for a checkpoint."""
        return {name: getattr(self, name) for name in _SAVED}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restores a checkpoint's state.

        Raises:
            KeyError: It is not a state of Progress.
        """
        for name in _SAVED:
            setattr(self, name, state[name])
