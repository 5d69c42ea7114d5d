"""The calls of a pool: their records in its directory, and what those in flight may cost at most."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from runtime.errors import ActorsKeepFailingError, BudgetError, RunDirectoryError
from runtime.experiment.loading import load_experiment
from runtime.experiment.schema import Experiment, changes, is_below, unchangeable
from runtime.fleet import actors as fleet_actors
from runtime.fleet.flight import Flight, Group
from runtime.money.limits import PhaseSeconds
from runtime.money.work import ACTOR, Limits, Work
from runtime.records import layout
from runtime.records.files import read_json_object, to_json, write_atomically
from runtime.records.observers import Display
from runtime.records.rows import COLUMNS, RoundRow
from runtime.records.run_directory import RunDirectory
from runtime.show.report import try_to_write_report
from runtime.training.costs import RoundMoney
from runtime.training.opening import Run
from runtime.training.round import episode_columns, tally_columns
from runtime.training.summary import summarise
from runtime.training.updating import RoundTraining


@dataclass(eq=False)
class Call:
    """A call of a pool.

    Attributes:
        number: From 1.
        error: Why some actors returned nothing; empty if all did, or until it has ended.
        handed_over: Trajectories that `ActorPool.as_completed` got so far; None for a call of `ActorPool.sample`.
        columns: Those of its row, without totals; None until it has ended.
    """

    number: int
    spec: fleet_actors.ActorSpec = field(repr=False)
    group: Group = field(repr=False)
    began_s: float = field(repr=False)
    reserved_usd: float = field(repr=False)
    handed_over: int | None = field(repr=False)
    error: str = ""
    columns: dict[str, Any] | None = field(default=None, repr=False)

    @property
    def actors(self) -> int:
        """Returns how many actors were requested."""
        return self.group.started

    @property
    def has_ended(self) -> bool:
        """Returns whether all its results have arrived."""
        return self.columns is not None

    @property
    def trajectories(self) -> list[fleet_actors.Trajectory]:
        """Returns its trajectories in the order of their slots."""
        return sorted(self.group.came, key=lambda trajectory: int(trajectory["slot"]))

    def failure(self) -> ActorsKeepFailingError:
        """Returns the error about actors that returned nothing."""
        return ActorsKeepFailingError(
            f"{self.actors - len(self.group.came)} of the {self.actors} actors of call {self.number} brought "
            "nothing; the last error: ",
            self.error,
        )

    def end(self, *, dropped: int, seconds: float, standing_usd: float) -> None:
        """Notes the columns of its row; there is no training in it.

        Args:
            dropped: Episodes dropped since the last call.
            seconds, standing_usd: Its time, and the cost of running resources, that no earlier row has.
        """
        sampled = RoundTraining(
            trajectories=len(self.group.came),
            env_steps=sum(len(trajectory["rewards"]) for trajectory in self.group.came),
        )
        sampled.add_episodes(self.trajectories)
        if len(self.group.came) < self.actors:
            self.error = self.group.tally.last_error or "the call's deadline passed"
        self.columns = {
            **dict.fromkeys(COLUMNS),
            **episode_columns(sampled),
            **tally_columns(self.group.tally),
            "round_index": self.number,
            "policy_version": int(self.spec.event["policy_version"]),
            "actor_count_wanted": self.actors,
            "actor_count": self.actors,
            "episodes_dropped": dropped or None,
            "updates": 0,
            "staleness_mean": 0.0,
            "staleness_max": 0,
            "replayed_fraction": 0.0,
            "collect_s": seconds,
            "learn_s": 0.0,
            "round_s": seconds,
            "actors_cost_usd": self.group.usd,
            "provisioned_cost_usd": 0.0,
            "learner_cost_usd": 0.0,
            "infrastructure_cost_usd": standing_usd,
            "round_cost_usd": self.group.usd + standing_usd,
            "round_reserved_usd": self.reserved_usd,
        }


class CallRecords:
    """The calls of a pool, whose rows are written in the order of their numbers.

    Attributes:
        rows: Rows of finished calls, also of earlier pools in the directory.
        number: Number of the newest call.
        calls: Calls whose rows are not written yet, by number: in flight, or waiting for the rows of earlier ones.
    """

    def __init__(self, run: Run, display: Display, name: str, *, was_resumed: bool) -> None:
        """Reads what earlier pools left in the directory.

        Args:
            name: The experiment's, for people.
            was_resumed: Whether there was an earlier pool.
        """
        self._run = run
        self._display = display
        self._name = name
        self._was_resumed = was_resumed
        self._started_s = time.monotonic()
        self.rows = run.directory.read_rounds()
        # One that was killed may have had trajectories of calls that have no row.
        begun: int = read_json_object(run.directory.path / layout.LEDGER).get("calls", 0)
        self.number = max([begun, *(row.round_index for row in self.rows)])
        # Whatever a full disk or a kill left of a last row goes.
        run.directory.keep_rounds(self.rows)
        self.calls: dict[int, Call] = {}

    @property
    def in_flight(self) -> list[Call]:
        """Returns calls that have not ended."""
        return [call for call in self.calls.values() if not call.has_ended]

    def write(self) -> None:
        """Writes the rows of calls that have ended, up to the first one that has not."""
        meter = self._run.resources.meter
        for number, call in list(self.calls.items()):
            if call.columns is None:
                return
            del self.calls[number]
            steps_before = self.rows[-1].env_steps_total if self.rows else 0
            totals = {
                "env_steps_total": steps_before + call.columns["env_steps"],
                "spent_usd": meter.spent_usd,
                "reserved_usd": meter.reserved_usd,
            }
            row = RoundRow(**call.columns | totals)
            self._run.directory.append_round(row)
            self.rows.append(row)
            self._run.resources.elsewhere.on_round_end(row)
            self._display.on_round_end(row)

    def go_back(self, number: int) -> None:
        """Removes the rows of later calls than this."""
        self.number = number
        self.rows = [row for row in self.rows if row.round_index <= number]
        self._run.directory.keep_rounds(self.rows)

    def save_ledger(self) -> None:
        """Puts the meter's state on disk, and the number of calls."""
        self._run.save_ledger(calls=self.number)

    def close(self, error: BaseException | None) -> None:
        """Writes the summary and the report.

        Args:
            error: What ended the pool; None if it was closed.
        """
        run = self._run
        is_failed = isinstance(error, Exception) and not isinstance(error, BudgetError)
        reasons: dict[Any, str] = {BudgetError: "budget", KeyboardInterrupt: "interrupted"}
        summary = summarise(
            self.rows,
            name=self._name,
            experiment=run.experiment,
            backend=run.backend,
            best=None,
            stop_reason="failed" if is_failed else reasons.get(type(error), "closed"),
            error=f"{type(error).__name__}: {error}" if is_failed else "",
            spent_usd=run.resources.meter.spent_usd,
            session_s=time.monotonic() - self._started_s,
            was_resumed=self._was_resumed,
        )
        try:
            write_atomically(run.directory.path / layout.SUMMARY, to_json(summary))
            if why := try_to_write_report(run.directory.path):
                run.events.append("report_failed", error=why)
        finally:
            run.resources.elsewhere.on_end(summary)


class Reservations:
    """Reserves the worst case of calls, and running resources until the last deadline of any call in flight."""

    def __init__(self, run: Run, flight: Flight, save_ledger: Callable[[], None]) -> None:
        """Starts with nothing reserved."""
        self._flight = flight
        self._budget_usd = run.experiment.budget.usd
        self._money = RoundMoney(
            run.experiment,
            run.resources.meter,
            run.events,
            save_ledger,
            concurrency=flight.concurrency,
        )
        self._opened_s: float | None = None
        self._until_s = self._standing_usd = 0.0
        self._counted_s = time.monotonic()

    @contextmanager
    def of_call(self, number: int, actors: int, until_s: float) -> Iterator[list[Work]]:
        """A block for which the worst case of a call's actors is reserved, until its deadline.

        Actors that it does not start are released, also after Ctrl-C.

        Raises:
            BudgetError: It does not fit; nothing is reserved.
        """
        meter = self._money.meter
        is_first = not self._flight.in_flight
        works = [Work(ACTOR, slot) for slot in islice(self._flight.free_slots(), actors)]
        limits = self._money.choose_limits(number, actors)
        free = (
            f"${meter.free_usd:.6f} are free of ${self._budget_usd:g}, and calls in flight hold "
            f"${meter.reserved_usd:.6f}"
        )
        try:
            is_open = self._open(until_s if is_first else max(until_s, self._until_s), limits)
            granted = meter.reserve(works) if is_open else 0
            if not is_open and not is_first:
                self._open(self._until_s, limits)
            if granted < actors:
                raise BudgetError(
                    f"the budget does not hold another call of {actors} actors, only of {granted}: {free}; "
                    f"each actor may cost what it does until {limits.actor_s:.3g} s; nothing was started"
                )
            yield works
        finally:
            for work in set(works) - {actor.work for actor in self._flight.in_flight.values()}:
                with suppress(BudgetError):
                    meter.cancel(work)
            if not self._flight.in_flight:
                self.close()

    def finish(self, call: Call) -> tuple[float, float]:
        """Learns from a finished call how long the next ones take.

        Returns:
            Its seconds, and US dollars of running resources, that no earlier call has.
        """
        now_s = time.monotonic()
        phases = self._money.phases
        phases.saw(
            PhaseSeconds(actor_s=call.group.longest_s, collect_s=now_s - call.began_s, sample_s=0.0)
        )
        phases.end_round()
        if not self._flight.in_flight:
            self.close()
        seconds = now_s - max(call.began_s, self._counted_s)
        usd = self._standing_usd
        self._counted_s = now_s
        self._standing_usd = 0.0
        return seconds, usd

    def close(self) -> None:
        """Settles running resources since the first of the overlapping calls."""
        if self._opened_s is None:
            return
        before_usd = self._money.meter.spent_usd
        seconds = time.monotonic() - self._opened_s
        self._opened_s = None
        self._money.close_standing(seconds)
        self._standing_usd += self._money.meter.spent_usd - before_usd

    def _open(self, until_s: float, limits: Limits) -> bool:
        """Settles running resources until now, and reserves them until then; returns whether they fit."""
        self.close()
        now_s = time.monotonic()
        limits = replace(limits, collect_s=max(0.0, until_s - now_s))
        if not self._money.meter.open_standing(limits):
            return False
        self._opened_s = now_s
        self._until_s = until_s
        return True


def environment_and_seed(experiment: Experiment) -> dict[str, Any]:
    """Returns what may not change from one pool in a directory to the next: it decides what trajectories are."""
    return {
        path: value
        for path, value in unchangeable(experiment).items()
        if is_below(path, ("environment", "seed"))
    }


def check_continues(experiment: Experiment, directory: RunDirectory) -> None:
    """Checks that a directory is an earlier pool's whose records can be continued.

    Raises:
        RunError: It is not.
    """
    stored = load_experiment(directory.path / layout.CONFIG, is_of_run=True).resolved()
    problems = (
        changes(environment_and_seed(experiment), environment_and_seed(stored), "there")
        if stored.learner.is_external
        else ["it is a training's"]
    )
    if problems:
        raise RunDirectoryError(
            f"out = {directory.path}: {'; '.join(problems)}; allowed: another directory, or one of "
            "a pool of the same environment and seed"
        )
