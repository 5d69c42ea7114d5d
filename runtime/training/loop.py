"""The loop of rounds: reasons to stop, rows, checkpoints. Its pacing runs each round.

Paper: Nitro §4, Fig. 6.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from runtime.errors import CheckpointError, RunError
from runtime.records.checkpoint import Checkpoint
from runtime.records.observers import tell_round
from runtime.records.rows import RoundRow
from runtime.records.state import State
from runtime.training.evaluations import BestPolicy
from runtime.training.pacings import Pacing, Parts


class RoundLoop:
    """Runs rounds until there is a reason to stop; combines the parts and does none of their work."""

    def __init__(self, parts: Parts, pacing: Pacing) -> None:
        """Takes the parts of the run, and the pacing, which uses the same parts."""
        self._parts, self._pacing, self._shield = parts, pacing, parts.saving.shield
        self.progress, self.flight = parts.progress, parts.flight
        self._resumed_after: RoundRow | None = None

    def run(self) -> str:
        """Runs until there is a reason to stop, and returns it.

        The reason is target_return, max_rounds, max_steps, budget or a callback's. Nothing is in flight when this ends,
        for any reason.

        Raises:
            ActorsKeepFailingError: The circuit breaker tripped.
            BudgetError: A round took longer than its reserved worst case.
            CallbackError: A callback of the user's raised.
        """
        try:
            if self._resumed_after is not None:
                self._tell(self._resumed_after)
            if self._stop_reason is None:
                self._parts.evaluations.begin_again()
            while (reason := self._stop_reason) is None:
                self.progress.current_round = self.progress.round_index + 1
                finished = self._pacing.run_round(self.progress.current_round)
                if finished is None:
                    return "budget"
                self._finish(row := finished.row())
                if self._parts.callbacks:
                    # Callbacks see only rounds on disk, so nothing they do can lose one.
                    self._parts.saving.flush()
                    self._tell(row)
            return reason
        finally:
            with self._shield():
                try:
                    self._parts.saving.flush()
                finally:
                    self._pacing.close()

    def _finish(self, row: RoundRow) -> None:
        """Queues the round to be written, which happens after the next round's actors have started."""
        with self._shield():
            self.progress.round_index = row.round_index
            self._parts.scaling.observe(row)
            policy = self._parts.evaluations.kept or self._parts.updating.updater.weights()
            self._parts.saving.hold(row, self.checkpoint(), policy, self.best)

    @property
    def _stop_reason(self) -> str | None:
        return self.progress.stop_reason or self._parts.callbacks.stop_reason

    def _tell(self, row: RoundRow) -> None:
        """Calls the callbacks for a round on disk; their changes to the environment apply from the next round on.

        No shield is around that: a signal ends a callback that hangs. A round's checkpoint has the callbacks' states
        from before these calls. So a resumed run calls them for its last round again, and continues as if it had never
        ended, wherever it was killed.
        """
        tell_round([self._parts.callbacks], row)
        if self._parts.callbacks.take_change():
            self._parts.episodes.drop_all()

    @property
    def best(self) -> BestPolicy | None:
        """The best evaluated policy; None before the first evaluation."""
        return self._parts.evaluations.best

    def checkpoint(self) -> Checkpoint:
        """Returns the state that later rounds depend on.

        Raises:
            RunError: Training diverged.
        """
        states = {name: part.get_state() for name, part in self._parts.stateful.items()}
        self._parts.updating.check_finite(
            {name: float(array.sum()) for name, array in states["learner"].arrays.items()}
        )
        return Checkpoint(
            self.progress.round_index,
            {
                f"{part}.{name}": array
                for part, state in states.items()
                for name, array in state.arrays.items()
            },
            {
                **{part: state.values for part, state in states.items()},
                "meter": self._parts.books.meter.get_state(),
                "progress": self.progress.get_state(),
                "phases": self._parts.phases.get_state(),
            },
        )

    def restore(self, checkpoint: Checkpoint, rows: Sequence[RoundRow] = ()) -> None:
        """Continues after ``checkpoint``, as if the run had never ended.

        Args:
            rows: Rows of the rounds until then, for the scaler.

        Raises:
            CheckpointError: It belongs to another network or another program.
        """
        try:
            self._restore(checkpoint)
            self._parts.scaling.remember(rows)
            self._resumed_after = rows[-1] if rows else None
        except RunError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(
                f"the checkpoint of round {checkpoint.round_index} does not fit this program: "
                f"{type(error).__name__}: {error}"
            ) from error

    def _restore(self, checkpoint: Checkpoint) -> None:
        parts, values = self._parts, checkpoint.values
        for name, part in parts.stateful.items():
            part.set_state(_part(name, checkpoint.arrays, values))
        parts.books.meter.set_state(values["meter"])
        parts.phases.set_state(values["phases"])
        self.progress.set_state(values["progress"])
        if self.progress.round_index != checkpoint.round_index:
            raise ValueError(f"its progress is of round {self.progress.round_index}")


def _part(name: str, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> State:
    prefix = f"{name}."
    return State(
        {
            key.removeprefix(prefix): array.copy()
            for key, array in arrays.items()
            if key.startswith(prefix)
        },
        values[name],
    )
