"""The loop of rounds: reasons to stop, rows, checkpoints. Its pacing runs each round.

Paper: Nitro §4, Fig. 6.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from runtime.errors import CheckpointError, RunError
from runtime.gmi.worlds.updater import WorldsUpdater
from runtime.records.checkpoint import Checkpoint
from runtime.records.rows import RoundRow
from runtime.records.state import HasState, State
from runtime.training.asynchronous import AsynchronousPacing
from runtime.training.callbacks import Callbacks
from runtime.training.evaluations import BestPolicy
from runtime.training.pacing import Pacing
from runtime.training.roles import Roles
from runtime.training.synchronous import SynchronousPacing
from runtime.training.worlds import WorldsPacing

SaveRound = Callable[[RoundRow | None, Checkpoint | None, bytes, BestPolicy | None], None]
"""Takes a finished round's row (None if it is on disk), its checkpoint (None if a later one will do), the current
policy as a WEIGHTS message, and the best so far."""


class RoundLoop:
    """Runs rounds until there is a reason to stop; combines the roles and does none of their work.

    A round is finished once it is written, which happens while the next round's actors play. Until then, a crash loses
    it and the work of these actors, whose reservation is in the ledger before they start; both rounds are repeated. So
    no update begins before the round before is written.
    """

    def __init__(
        self,
        roles: Roles,
        callbacks: Callbacks,
        save_round: SaveRound,
        shield: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Starts before the first round.

        Args:
            save_round: Puts a finished round on disk.
            shield: Makes a block around writes that an interrupt must not cut.
        """
        self.roles = roles
        self._callbacks = callbacks
        self._save_round = save_round
        self._shield = shield
        self._pacing = _make_pacing(roles)
        self._unwritten: tuple[RoundRow, Checkpoint | None, bytes, BestPolicy | None] | None = None
        self._checkpoint_round = 0
        self._next_checkpoint_s = -math.inf
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
        progress = self.roles.progress
        try:
            if self._resumed_after is not None:
                self._tell(self._resumed_after)
            if self._stop_reason is None:
                self.roles.evaluations.begin_again()
            while (reason := self._stop_reason) is None:
                progress.current_round = progress.round_index + 1
                row = self._pacing.run_round(progress.current_round, self._write)
                if row is None:
                    reason = "budget"
                    break
                self._finish(row)
                if self._callbacks:
                    # Callbacks see only rounds on disk, so nothing they do can lose one.
                    self._write()
                    self._tell(row)
            self._save_last()
            if (policy_round := self.roles.evaluations.pending_round) is not None:
                self.roles.money.events.append(
                    "evaluation_dropped",
                    policy_round=policy_round,
                    reason=f"the run ended by {reason}",
                )
            return reason
        finally:
            with self._shield():
                try:
                    self._write()
                finally:
                    self._pacing.close()

    def _finish(self, row: RoundRow) -> None:
        """Takes the state after a round, which is written after the next round's actors have started."""
        roles = self.roles
        with self._shield():
            roles.progress.round_index = row.round_index
            roles.scaling.observe(row)
            is_due = time.monotonic() >= self._next_checkpoint_s
            checkpoint = self._due_checkpoint() if is_due else None
            self._unwritten = (row, checkpoint, self._policy, self.best)

    def _due_checkpoint(self) -> Checkpoint:
        checkpoint = self.checkpoint()
        self._checkpoint_round = checkpoint.round_index
        self._next_checkpoint_s = time.monotonic() + self._pacing.checkpoint_every_s
        return checkpoint

    def _save_last(self) -> None:
        """Writes a checkpoint of the last round, if it has none."""
        if self._checkpoint_round == self.roles.progress.round_index:
            return
        with self._shield():
            row = self._unwritten[0] if self._unwritten else None
            self._unwritten = None
            self._save_round(row, self._due_checkpoint(), self._policy, self.best)

    @property
    def _policy(self) -> bytes:
        """The newest policy, or the one that reached the target."""
        return self.roles.evaluations.kept or self.roles.updating.updater.weights()

    def _write(self) -> None:
        """Writes the last finished round, unless it is on disk. It is attempted only once.

        Raises:
            OSError: It cannot be written.
        """
        with self._shield():
            unwritten, self._unwritten = self._unwritten, None
            if unwritten is not None:
                self._save_round(*unwritten)

    @property
    def _stop_reason(self) -> str | None:
        return self.roles.progress.stop_reason or self._callbacks.control.stop_reason

    def _tell(self, row: RoundRow) -> None:
        """Calls the callbacks for a round on disk.

        No shield is around that: a signal ends a callback that hangs. A round's checkpoint has the callbacks' states
        from before these calls. So a resumed run calls them for its last round again, and continues as if it had never
        ended, wherever it was killed.
        """
        self._callbacks.on_round_end(row)

    @property
    def best(self) -> BestPolicy | None:
        """The best evaluated policy; None before the first evaluation."""
        return self.roles.evaluations.best

    @property
    def _stateful(self) -> dict[str, HasState]:
        """Roles with arrays in a checkpoint, by their names there."""
        return {
            "learner": self.roles.updating.updater,
            "samples": self.roles.detection,
            "episode": self.roles.rollouts.episodes,
            "scaler": self.roles.scaling.scaler,
            "evaluation": self.roles.evaluations,
            "callbacks": self._callbacks,
        }

    def checkpoint(self) -> Checkpoint:
        """Returns the state that later rounds depend on.

        Raises:
            RunError: Training diverged.
        """
        roles = self.roles
        states = {name: role.get_state() for name, role in self._stateful.items()}
        roles.updating.check_finite(
            {name: float(array.sum()) for name, array in states["learner"].arrays.items()}
        )
        arrays = {
            f"{owner}.{name}": array
            for owner, state in states.items()
            for name, array in state.arrays.items()
        }
        values = {
            **{owner: state.values for owner, state in states.items()},
            "meter": roles.money.meter.get_state(),
            "progress": roles.progress.get_state(),
            "phases": roles.money.phases.get_state(),
        }
        return Checkpoint(roles.progress.round_index, arrays, values)

    def restore(self, checkpoint: Checkpoint, rows: Sequence[RoundRow] = ()) -> None:
        """Continues after ``checkpoint``, as if the run had never ended.

        Args:
            rows: Rows of the rounds until then, for the scaler.

        Raises:
            CheckpointError: It belongs to another network or another program.
        """
        try:
            self._restore(checkpoint)
        except RunError:
            raise
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(
                f"the checkpoint of round {checkpoint.round_index} does not fit this program: "
                f"{type(error).__name__}: {error}"
            ) from error
        self.roles.scaling.rows.extend(rows)
        self._resumed_after = rows[-1] if rows else None

    def _restore(self, checkpoint: Checkpoint) -> None:
        roles, values = self.roles, checkpoint.values
        for name, role in self._stateful.items():
            role.set_state(_state_of(name, checkpoint.arrays, values))
        roles.money.meter.set_state(values["meter"])
        roles.money.phases.set_state(values["phases"])
        roles.progress.set_state(values["progress"])
        if roles.progress.round_index != checkpoint.round_index:
            raise ValueError(f"its progress is of round {roles.progress.round_index}")
        self._checkpoint_round = checkpoint.round_index


def _make_pacing(roles: Roles) -> Pacing:
    if isinstance(roles.updating.updater, WorldsUpdater):
        return WorldsPacing(roles, roles.updating.updater)
    if roles.algorithm.is_asynchronous:
        return AsynchronousPacing(roles)
    return SynchronousPacing(roles)


def _state_of(owner: str, arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> State:
    prefix = f"{owner}."
    own = {
        key.removeprefix(prefix): array.copy()
        for key, array in arrays.items()
        if key.startswith(prefix)
    }
    return State(own, values[owner])
