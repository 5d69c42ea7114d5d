"""A deployed run's records in AWS: files in the bucket, reservations in the ledger, figures on the dashboard."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from runtime.aws.learner.heartbeat import Heartbeat, figures_of
from runtime.aws.learner.metrics import Metrics
from runtime.aws.learner.results_bucket import (
    ResultsBucket,
    ResultsError,
    SupersededError,
)
from runtime.experiment.resolved import ResolvedExperiment
from runtime.money.meter import BETWEEN_ROUNDS_S, Meter
from runtime.money.model import INIT_SECONDS_MAX
from runtime.records.observers import EventSink
from runtime.records.rows import RoundRow
from runtime.training.opening import RecordsElsewhere


class AwsRecords(RecordsElsewhere):
    """Records of a deployed run in AWS; also informs its guard, its dashboard and its stack."""

    def __init__(
        self,
        experiment: ResolvedExperiment,
        *,
        announce: Callable[[], bool],
        results: ResultsBucket,
        heartbeat: Heartbeat,
        metrics: Metrics,
        meter: Meter,
        events: EventSink,
        spent_usd: float,
        now: Callable[[], float],
    ) -> None:
        """Begins with a run that has already been taken over.

        Args:
            experiment: Resolved.
            announce: Reports that training has begun; False if that failed.
            results: Receives its files.
            heartbeat: Receives its reservations.
            metrics: Receives its figures.
            meter: The run's meter.
            events: The run's events.
            spent_usd: Costs in the guard's ledger when the run was taken over.
            now: Seconds since 1970.
        """
        self._announce, self._results, self._heartbeat, self._metrics = (
            announce,
            results,
            heartbeat,
            metrics,
        )
        self._meter, self._events, self._spent_usd, self._now = meter, events, spent_usd, now
        self._budget_usd = experiment.budget.usd
        self._actor_s = experiment.actor.timeout_s + INIT_SECONDS_MAX
        self._is_announced = self._is_unguarded = False

    def spent_usd(self) -> float:
        """Returns the costs in the guard's ledger when the run was taken over."""
        return self._spent_usd

    def begins(self) -> None:
        """Makes the guard watch the learner, and ends the stack's wait for it."""
        self._heartbeat.trains()
        self._is_announced = self._announce()

    def ledger_changed(self, ledger: bytes) -> None:
        """Keeps the ledger if it has new reservations, and tells the guard.

        Raises:
            SupersededError, LostRunError: Another learner continues the run.
            ResultsError, LedgerError: AWS cannot be reached.
        """
        meter = self._meter
        is_new = self._results.save_ledger(
            ledger,
            promised_usd=meter.spent_usd + meter.reserved_usd,
            is_idle=meter.reserved_usd == 0.0,
        )
        if is_new:
            meter.wrote_ledger()
        self._heartbeat.promise(
            figures_of(self._meter, self._budget_usd),
            is_written=is_new,
            due_s=BETWEEN_ROUNDS_S + max(meter.covered_until_s, self._now() + 2 * self._actor_s),
        )

    def on_round_end(self, row: RoundRow) -> None:
        """Uploads changes, if the last upload is long enough ago, and shows the row's figures.

        Raises:
            SupersededError: Another learner continues the run.
        """
        try:
            self._results.round_finished()
        except SupersededError:
            raise
        except ResultsError as error:
            # Rounds since the last upload remain in the directory, and are uploaded with the next one.
            self._events.append("upload_postponed", error=str(error))
        self._metrics.round_finished(row)
        self._tell_of_guard(self._heartbeat.guard_problem)
        if not self._is_announced:
            # Otherwise the stack would roll back a training learner.
            self._is_announced = self._announce()

    def _tell_of_guard(self, problem: str) -> None:
        if problem and not self._is_unguarded:
            self._events.append("guard_silent", error=problem)
        elif self._is_unguarded and not problem:
            self._events.append("guard_looks")
        self._is_unguarded = bool(problem)

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """Uploads all changes, and an event with the guard's reason if the guard ends the run.

        Raises:
            ResultsError, LedgerError: AWS cannot be reached, or another learner continues the run.
        """
        if self._heartbeat.order_reason:
            self._events.append("taken_down", reason=self._heartbeat.order_reason)
        self._metrics.flush()
        self._results.finish()
        self._heartbeat.promise(
            figures_of(self._meter, self._budget_usd), due_s=self._now() + BETWEEN_ROUNDS_S
        )
