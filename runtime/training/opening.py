"""Opens a run or a pool: what it runs, where its files are, and what its backend supplies."""

from __future__ import annotations

import math
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from lambda_actor.trial import TriedEnvironment, dropped
from runtime.fleet.inline import ShieldedFleet
from runtime.fleet.interfaces import Cache, Fleet
from runtime.fleet.opening import Opening, ShieldedStack
from runtime.money.meter import Meter
from runtime.money.prices import PriceTable, prices_to_json
from runtime.records import layout
from runtime.records.files import read_json_object, to_json, write_atomically
from runtime.records.observers import Display, EventLog, Observer
from runtime.records.rows import RoundRow
from runtime.records.run_directory import RunDirectory
from runtime.records.spent import spent_by_records
from runtime.show.terminal import counted, short_time

if TYPE_CHECKING:
    from runtime.experiment.resolved import ResolvedExperiment

STANDING_USD_MIN = 5e-5
"""Smaller idle costs are billed without an event, since they are shown as 0.0000."""
_ROUNDING_USD = 1e-10
"""Smaller differences between records are no money."""


class RecordsElsewhere(Observer):
    """Records of a run outside its directory, which outlive its machine. These are none; subclasses keep some."""

    def spent_usd(self) -> float:
        """Returns a lower bound of the run's US dollars when this process took it over."""
        return 0.0

    def begins(self) -> None:
        """Called right before the first round, when everything is ready."""

    def ledger_changed(self, ledger: bytes) -> None:
        """Called with a new ledger before its reservations are used."""


class LearnerFunctions(NamedTuple):
    """Functions or instances that train the policy: their fleet, and the address of their objects' store.

    `runtime.learner.functions.open_store` describes addresses.
    """

    fleet: Fleet
    store: str


@dataclass(frozen=True)
class Resources:
    """What a backend supplies for a run. The run's stack closes it.

    Attributes:
        cache: A cache that already answers.
        fleet: Runs the actors.
        meter: Reserves and bills at the backend's prices.
        actor_event: How actors reach the cache: fields of every actor's event.
        facts: Facts about it for users, by label.
        elsewhere: The run's records outside its directory.
        learner: Trains the policy; None if this process does.
        ran_s: Seconds that a killed process can have run after its last ledger; infinite if unknown.
    """

    cache: Cache
    fleet: Fleet
    meter: Meter
    actor_event: Mapping[str, Any]
    facts: Mapping[str, str]
    elsewhere: RecordsElsewhere = RecordsElsewhere()
    learner: LearnerFunctions | None = None
    ran_s: float = math.inf


class Backend(ABC):
    """A place for runs, with its prices.

    Attributes:
        is_billed: Whether someone bills what runs there.
        is_deployed: Whether it is a deployment in AWS, which also pays for CloudWatch, a bucket and the ledger.
        prices: Prices for the bill.
    """

    is_billed: bool
    is_deployed: bool = False
    prices: PriceTable

    @property
    def cost_basis(self) -> str:
        """The basis of its dollars in records: seconds of this machine at list prices, or usage that someone bills."""
        return "metered" if self.is_billed else "local"

    def fetch(self, directory: RunDirectory) -> None:  # noqa: B027
        """Takes over the run, and copies its files kept elsewhere into its directory. By default there are none.

        Called first, before anything reads the directory.

        Raises:
            RunError: The run cannot be taken over.
        """

    @abstractmethod
    def open(self, opening: Opening) -> Resources:
        """Opens the run's resources, and puts whatever must be closed on its stack.

        Raises:
            ServerError: No cache answers.
            FleetError: No actor can run.
        """


@dataclass(eq=False)
class Run(Opening):
    """One process's share of a run, or a pool.

    Attributes:
        backend: Where it takes place.
        resources: What the backend opened.
    """

    backend: Backend
    resources: Resources

    @property
    def actor_event(self) -> dict[str, Any]:
        """Fields of actors' events that are the same in all rounds."""
        section = self.experiment.environment
        event = {
            "run_id": self.run_id,
            "fragment_steps": self.experiment.actor.fragment_steps,
            "seed": self.experiment.seed,
            "environment_id": section.id,
            "preprocessing": section.preprocessing,
            "truncate_at_fragment": section.truncate_at_fragment,
            **self.resources.actor_event,
        }
        optional = {
            "environment_options": section.options,
            "replay": self.experiment.trial.replay,
            "drop_unfinished": bool(self.experiment.trial.dropped_because),
        }
        return event | {name: value for name, value in optional.items() if value}

    def save_ledger(self, **more: Any) -> None:
        """Puts the meter's state on disk, and wherever else it is kept.

        Args:
            more: Further fields of the ledger.
        """
        ledger = to_json({**self.resources.meter.get_state(), **more})
        self.resources.elsewhere.ledger_changed(ledger)
        write_atomically(self.directory.path / layout.LEDGER, ledger)

    def take_over_spending(self, rows: Iterable[RoundRow], save_ledger: Callable[[], None]) -> None:
        """Counts spending since the meter's state; reservations of a killed process count as spent.

        Args:
            rows: The directory's, when it was opened.
            save_ledger: Puts the meter's state on disk.
        """
        meter, events = self.resources.meter, self.events
        path = self.directory.path
        ledger = read_json_object(path / layout.LEDGER)
        # Also of rows that a resumption has cut: they are paid, even if the ledger is lost.
        recorded = spent_by_records(
            ledger=ledger,
            rows=map(vars, rows),
            summary=read_json_object(path / layout.SUMMARY),
        )
        if (path / layout.LEDGER).exists():
            self._take_ledger(ledger)
        known_usd = self.resources.elsewhere.spent_usd()
        if recorded is not None:
            known_usd = max(known_usd, recorded.most_usd)
        unknown_usd = known_usd - meter.spent_usd - meter.reserved_usd
        if unknown_usd > _ROUNDING_USD:
            meter.budget.spend(unknown_usd)
            events.append(
                "spent_elsewhere",
                usd=unknown_usd,
                reason="other records know of it: of a teardown, or of rounds that a lost ledger held",
            )
        spent_usd = meter.spent_usd
        reserved_usd = meter.reserved_usd
        forfeited_usd = meter.forfeit(self.resources.ran_s)
        standing_usd = meter.spent_usd - spent_usd - forfeited_usd
        if standing_usd >= STANDING_USD_MIN:
            events.append(
                "standing_billed",
                usd=standing_usd,
                reason="what the deployment cost since it began, or since its last round",
            )
        if forfeited_usd:
            events.append(
                "reservation_forfeited",
                usd=forfeited_usd,
                reserved_usd=reserved_usd,
            )
        save_ledger()

    def _take_ledger(self, ledger: Mapping[str, Any]) -> None:
        """Takes the ledger, which is newer than the meter's state, unless it shows less spending."""
        meter = self.resources.meter
        known, spent_usd = meter.get_state(), meter.spent_usd
        promised_usd = spent_usd + meter.reserved_usd
        try:
            meter.set_state(ledger)
            # An older one may still promise enough, because actors continue from one round to the next.
            if meter.spent_usd + meter.reserved_usd < promised_usd and meter.spent_usd < spent_usd:
                raise ValueError("less is spent in it than in the checkpoint")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            meter.set_state(known)
            self.events.append("ledger_unreadable", error=f"{type(error).__name__}: {error}")

    def write_settings(self) -> None:
        """Writes the experiment and the prices."""
        write_atomically(self.directory.path / layout.CONFIG, self.experiment.to_yaml().encode())
        write_atomically(self.directory.path / layout.PRICES, prices_to_json(self.backend.prices))

    def show_start(
        self, display: Display, facts: Mapping[str, str], warnings: Mapping[str, str]
    ) -> None:
        """Shows people where the results will be, facts, and warnings by subject."""
        marked = {f"! {subject}": text for subject, text in warnings.items()}
        display.started(self.experiment, {"results": str(self.directory.path), **facts, **marked})

    @property
    def facts(self) -> dict[str, str]:
        """Facts about the backend and about replayed episodes, by label."""
        facts = dict(self.resources.facts)
        bounds = self.environment.spaces.action_bounds
        if self.environment.rescales_actions:
            low, high = bounds[0]
            is_alike = len(set(bounds)) == 1
            reach = f"{low:g} to {high:g}" if is_alike else "each action's own bounds"
            facts["actions"] = (
                f"The policy's, from -1 to 1, are rescaled to {reach} (environment.rescale_actions)"
            )
        elif self.environment.spaces.action_size and set(bounds) != {(-1.0, 1.0)}:
            facts["actions"] = (
                "Not rescaled. A new policy's are about -1 to 1; if good ones are far from that, rescale them with a "
                "gymnasium.ActionWrapper in environment.wrappers"
            )
        trial = self.experiment.trial
        is_local = self.experiment.fleet.kind == "local" and not self.experiment.learner.has_actors
        if is_local and trial.is_slow:
            facts["processes"] = self._processes
        if replayed_steps := trial.replayed_steps(self.experiment.actor.fragment_steps):
            facts["episodes"] = (
                "The end of a fragment cuts episodes. Another process that continues one first replays it: "
                f"{replayed_steps:,.0f} steps on average, if all last until their limit of "
                f"{trial.replay_steps_max + 1:,}. A longer actor.fragment_steps replays less"
            )
        return facts

    @property
    def _processes(self) -> str:
        """Says how many environments of a slow simulator exist at once, and whether more would be faster."""
        trial, actors = self.experiment.trial, self.experiment.scaler.most_actors
        processes = self.experiment.fleet.processes or 1
        environments = counted(processes * self.experiment.environment.vector, "environment")
        text = (
            f"A step takes {short_time(trial.step_s)}. fleet.processes = {processes} play {actors} actors in "
            f"{environments}"
        )
        if self.experiment.evaluation.every_rounds:
            text += ", and evaluations have one more"
        if trial.wait_s > trial.step_s / 2 and processes < actors:
            text += (
                f". The simulator mostly waits, so more are faster: --set fleet.processes={actors}"
            )
        return text

    @property
    def warnings(self) -> dict[str, str]:
        """What people should know of environment and directory before actors play, by subject."""
        warnings = self.environment.warnings
        if reason := self.directory.unlocked_because:
            warnings["lock"] = (
                f"the file system of {self.directory.path} has no locks ({reason}): nothing keeps another process from "
                "training there too"
            )
        if problem := self.experiment.trial.dropped_because:
            warnings["dropped"] = dropped(problem)
        wanted, limit = (
            self.experiment.environment.max_episode_steps,
            self.environment.episode_steps_max,
        )
        if wanted and limit and limit < wanted:
            warnings["limit"] = (
                f"environment.max_episode_steps = {wanted:,} has no effect, because the environment or a wrapper ends "
                f"episodes after {limit:,} steps"
            )
        return warnings


def open_run(
    experiment: ResolvedExperiment,
    environment: TriedEnvironment,
    directory: RunDirectory,
    backend: Backend,
    stack: ShieldedStack,
) -> Run:
    """Opens everything that a run needs to play; no signal cuts its fleets' calls. `Opening` has the arguments."""
    events = EventLog(directory.path / layout.EVENTS)
    opening = Opening(experiment, environment, directory, stack, uuid.uuid4().hex, events)
    resources = backend.open(opening)
    resources = replace(resources, fleet=ShieldedFleet(resources.fleet, stack.shield))
    if resources.learner is not None:
        fleet = ShieldedFleet(resources.learner.fleet, stack.shield)
        resources = replace(resources, learner=resources.learner._replace(fleet=fleet))
    return Run(**vars(opening), backend=backend, resources=resources)
