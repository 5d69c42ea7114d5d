"""Records of a deployed run or pool: reservations in the ledger, files in the bucket, figures on the dashboard."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from runtime.aws.learner.heartbeat import Heartbeat
from runtime.aws.learner.metrics import Metrics
from runtime.aws.learner.results_bucket import ResultsBucket
from runtime.aws.ledger import Entry, LedgerError, LostRunError
from runtime.aws.run_files import ResultsError
from runtime.experiment.resolved import ResolvedExperiment
from runtime.money.meter import BETWEEN_ROUNDS_S, Meter
from runtime.money.model import INIT_SECONDS_MAX
from runtime.records.observers import EventSink
from runtime.records.rows import RoundRow
from runtime.training.opening import RecordsElsewhere


class LedgerRecords(RecordsElsewhere):
    """Writes reservations to the ledger before they are used.

    Between two writes the ledger has too many, never too few: what is settled is only taken out when nothing is
    reserved, or with the next larger reservation. So most rounds need one write.
    """

    def __init__(
        self,
        entry: Entry,
        heartbeat: Heartbeat,
        meter: Meter,
        *,
        budget_usd: float,
        due_s: Callable[[], float],
    ) -> None:
        """Begins with a run that has already been taken over.

        Args:
            entry: The run's, when it was taken over.
            heartbeat: Receives its reservations.
            meter: Its meter.
            budget_usd: Most that it may spend, teardown included.
            due_s: Returns when the next change of the ledger is due, seconds since 1970.
        """
        self._heartbeat = heartbeat
        self._meter = meter
        self._taken_over_usd = entry.promised_usd
        self._budget_usd = budget_usd
        self._due_s = due_s
        self._written_usd = 0.0
        self._text = ""

    def spent_usd(self) -> float:
        """Returns what was spent and reserved when the run was taken over."""
        return self._taken_over_usd

    def begins(self) -> None:
        """Makes the guard watch."""
        self._heartbeat.trains()

    def ledger_changed(self, ledger: bytes) -> None:
        """Writes the ledger if it has new reservations, and tells the guard.

        Raises:
            LostRunError: Another learner continues the run.
            LedgerError: The ledger cannot be written.
        """
        meter = self._meter
        promised_usd = meter.spent_usd + meter.reserved_usd
        is_new = promised_usd > self._written_usd
        if is_new or not meter.reserved_usd:
            self._written_usd = promised_usd
            self._text = ledger.decode()
        if is_new:
            meter.wrote_ledger()
        self._heartbeat.promise(
            {
                "ledger": self._text,
                "spent_usd": meter.spent_usd,
                "reserved_usd": max(meter.reserved_usd, self._written_usd - meter.spent_usd),
                "budget_usd": self._budget_usd,
                "burn_usd_per_hour": meter.burn_usd_per_hour,
                "covered_until_s": meter.covered_until_s,
            },
            is_written=is_new,
            due_s=self._due_s(),
        )


class AwsRecords(LedgerRecords):
    """Records of a deployed run; also informs its dashboard and its stack."""

    def __init__(
        self,
        experiment: ResolvedExperiment,
        entry: Entry,
        heartbeat: Heartbeat,
        meter: Meter,
        *,
        announce: Callable[[], bool],
        results: ResultsBucket,
        metrics: Metrics,
        events: EventSink,
        now: Callable[[], float],
    ) -> None:
        """Begins with a run that has already been taken over; see `LedgerRecords` for other arguments.

        Args:
            experiment: Resolved.
            announce: Reports that training has begun; False if that failed.
            results: Receives its files.
            metrics: Receives its figures.
            events: The run's events.
            now: Seconds since 1970.
        """
        actor_s = experiment.actor.timeout_s + INIT_SECONDS_MAX

        def due_s() -> float:
            return BETWEEN_ROUNDS_S + max(meter.covered_until_s, now() + 2 * actor_s)

        super().__init__(entry, heartbeat, meter, budget_usd=experiment.budget.usd, due_s=due_s)
        self._announce = announce
        self._results = results
        self._metrics = metrics
        self._events = events
        self._is_announced = False

    def begins(self) -> None:
        """Makes the guard watch the learner, and ends the stack's wait for it."""
        super().begins()
        self._is_announced = self._announce()

    def on_round_end(self, row: RoundRow) -> None:
        """Uploads changes, if the last upload is long enough ago, and shows the row's figures.

        Raises:
            LostRunError: Another learner continues the run.
        """
        try:
            self._results.round_finished()
        except LostRunError:
            raise
        except (ResultsError, LedgerError) as error:
            # Rounds since the last upload remain in the directory, and are uploaded with the next one.
            self._events.append("upload_postponed", error=str(error))
        self._metrics.round_finished(row)
        if not self._is_announced:
            # Otherwise the stack would roll back a training learner.
            self._is_announced = self._announce()

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """Uploads all changes, and an event with the guard's reason if the guard ends the run.

        Raises:
            ResultsError, LedgerError: AWS cannot be reached, or another learner continues the run.
        """
        if self._heartbeat.order_reason:
            self._events.append("taken_down", reason=self._heartbeat.order_reason)
        self._metrics.flush()
        self._heartbeat.write()
        self._results.upload()
