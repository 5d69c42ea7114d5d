"""Interfaces of a run: backend, evaluation, callbacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from runtime.fleet.interfaces import Cache, Fleet
from runtime.money.work import CostMeter, PriceTable
from runtime.records.observers import EventSink, Observer

if TYPE_CHECKING:
    from lambda_actor.spaces import Spaces
    from runtime.experiment.resolved import ResolvedExperiment
    from runtime.records.rows import RoundRow
    from runtime.records.run_directory import RunDirectory


HERE = "local"
"""The basis of dollars that nobody bills."""


@dataclass(frozen=True)
class Evaluation:
    """Whole episodes in a separate environment, played by `runtime.training.evaluation`.

    Attributes:
        returns: By episode.
        lengths: By episode, in steps.
        seconds: CPU-seconds that it took, including episodes that only led to these.
        steps_before: Steps of those leading episodes.
    """

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    seconds: float = field(default=0.0, compare=False)
    steps_before: int = field(default=0, compare=False)

    @property
    def return_mean(self) -> float:
        return float(np.mean(self.returns))


class PolicyEvaluator(Protocol):
    """Evaluates policies during training, one at a time."""

    def begin(self, weights: bytes, round_index: int) -> None:
        """Starts to evaluate the policy after a round. Returns at once."""

    def result(self, timeout_s: float) -> Evaluation:
        """Waits for the started evaluation.

        Raises:
            BudgetError: It takes longer than ``timeout_s``.
            ActorError: The environment cannot be played.
        """


@dataclass(frozen=True)
class RunContext:
    """Information for a backend about the run that it supplies.

    Attributes:
        experiment: Resolved and fitted to its environment.
        spaces: Spaces of that environment.
        run_id: Id of this process's part of the run. A resumed run gets another one.
        directory: The run's directory.
        events: Records events other than finished rounds.
        stack: Closes what the backend opened, at the run's end and newest first.
        shield: Makes a block that an interrupt cannot split, for resources that must be closed once they are open.
    """

    experiment: ResolvedExperiment
    spaces: Spaces
    run_id: str
    directory: RunDirectory
    events: EventSink
    stack: ExitStack
    shield: Callable[[], AbstractContextManager[None]]


class RunControl(Protocol):
    """Actions that a callback may take on its run.

    Attributes:
        environment_kwargs: A copy of the arguments for the next round's environments.
    """

    @property
    def environment_kwargs(self) -> dict[str, Any]: ...

    def stop(self, reason: str) -> None:
        """Ends the run now, before the next round; its ``stop_reason`` is ``callback: `` and the reason."""

    def change_environment(self, **kwargs: Any) -> None:
        """Changes some of ``environment.kwargs`` from the next round on.

        Open episodes are dropped, because they began in another environment. Evaluations keep the kwargs of the
        experiment file, so their returns remain comparable.

        Raises:
            ValueError: They are not JSON values, or the rounds are asynchronous.
        """


class Callback:
    """A base class for callbacks of your own, which can observe a run, stop it, and change its environment.

    Methods do nothing unless a subclass overrides them. An exception ends the run. A resumed run calls a callback with
    the last finished round once more, after `load_state` has undone the first call's effects.
    """

    def on_evaluation(self, row: RoundRow, run: RunControl) -> None:
        """Called before `on_round_end` if an evaluation has ended: ``row.evaluation_return_mean``."""

    def on_round_end(self, row: RoundRow, run: RunControl) -> None:
        """Called when a finished round and its checkpoint are on disk."""

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """Called when the run has ended for any reason. ``summary`` is the content of ``summary.json``."""

    def state(self) -> Any:
        """Returns the state that later rounds depend on, as JSON values. Each checkpoint includes it."""
        return None

    def load_state(self, state: Any) -> None:
        """Continues from a result of `state`."""


class Keeping(Observer, Protocol):
    """Keeps a run where it outlives its machine, and reports its cost to the guard."""

    def spent_usd(self) -> float:
        """Returns a lower bound of the run's US dollars at takeover, from records elsewhere."""
        return 0.0

    def begins(self) -> None:
        """Called right before the first round, when everything is ready."""
        return

    def ledger_changed(self, ledger: bytes) -> None:
        """Called with a new ledger before its reservations are used."""
        return


@dataclass(frozen=True)
class Supplies:
    """A backend's supplies for a run. The run's stack closes them.

    Attributes:
        cache: A cache that already answers.
        fleet: Runs the actors.
        meter: Reserves and bills at the backend's prices.
        keeping: Keeps the run's files.
        actor_event: How actors reach the cache: fields of every actor's event.
        facts: Facts about it for users, by label.
        prewarmed_actors: Actors to start once before the first round, to prove that they can start; 0 for none.
        learner_fleet: Invokes the learner function; None if this process trains the policy.
        learner_store: Place of that function's objects; see `runtime.learner.functions.store`.
        instances: The same fleet as `fleet` and `learner_fleet` if its processes play and train, otherwise None.
    """

    cache: Cache
    fleet: Fleet
    meter: CostMeter
    keeping: Keeping
    actor_event: Mapping[str, Any]
    facts: Mapping[str, str]
    prewarmed_actors: int = 0
    learner_fleet: Fleet | None = None
    learner_store: str = ""
    instances: Fleet | None = None


class Backend(Protocol):
    """Supplies the cache, the fleet, the meter and the keeping of a run.

    Attributes:
        cost_basis: `HERE` for seconds of this machine at list prices, or ``metered`` if someone bills them.
        prices: Prices for the bill.
    """

    cost_basis: str
    prices: PriceTable

    def fetch(self, directory: RunDirectory) -> None:
        """Takes over the run, and copies its files kept elsewhere into its directory.

        Called first, before anything reads the directory.

        Raises:
            RunError: The run cannot be taken over.
        """

    def supply(self, run: RunContext) -> Supplies:
        """Opens the run's resources.

        Raises:
            ServerError: No cache answers.
            FleetError: No actor can run.
        """
