"""What a run is made of besides its parts: backend, observers, evaluation and events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from runtime.ports.fleet import Cache, Fleet
from runtime.ports.money import CostMeter, PriceTable, WorkTimes

if TYPE_CHECKING:
    from lambda_actor.spaces import Spaces
    from runtime.config.resolved import FittedExperiment
    from runtime.config.schema import Experiment
    from runtime.records.layout import RunFiles
    from runtime.records.rows import RoundRow


class EventSink(Protocol):
    """Records what happens besides finished rounds."""

    def append(self, kind: str, **fields: Any) -> None:
        """Records one event; ``fields`` are JSON values."""


@dataclass(frozen=True)
class Evaluation:
    """Whole episodes in an environment of its own, as `runtime.training.evaluation` plays them.

    Attributes:
        returns: By episode.
        lengths: By episode, in steps.
        seconds: CPU-seconds that it took, with episodes that only led to these.
        steps_before: Steps of those episodes.
    """

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    seconds: float = field(default=0.0, compare=False)
    steps_before: int = field(default=0, compare=False)

    @property
    def return_mean(self) -> float:
        return float(np.mean(self.returns))


class PolicyEvaluator(Protocol):
    """Evaluates policies beside the training, one at a time."""

    def begin(self, weights: bytes, round_index: int) -> None:
        """Begins to evaluate the policy that a round left; returns at once."""

    def result(self, timeout_s: float) -> Evaluation:
        """Waits for what was begun.

        Raises:
            BudgetError: It takes longer than ``timeout_s``.
            ActorError: The environment cannot be played.
        """


@dataclass(frozen=True)
class RunContext:
    """What a backend knows of the run that it supplies.

    Attributes:
        experiment: Resolved and fitted to its environment.
        spaces: Of that environment.
        run_id: Of this process' share of the run; a resumption has another one.
        directory: The run's.
        events: Records what happens besides finished rounds.
        stack: Closes, at the run's end and newest first, what the backend opened.
        shield: Makes a block that an interrupt does not cut in two; for what must be closed once it is open.
    """

    experiment: FittedExperiment
    spaces: Spaces
    run_id: str
    directory: RunFiles
    events: EventSink
    stack: ExitStack
    shield: Callable[[], AbstractContextManager[None]]


class Observer(Protocol):
    """Looks at a run: is told of each finished round, once it is on disk. A subclass names what it wants to know."""

    def on_evaluation(self, row: RoundRow) -> None:
        """Is called before `on_round_end` if an evaluation was taken in: ``row.evaluation_return_mean``."""
        return

    def on_round_end(self, row: RoundRow) -> None:
        """Is called when a finished round is on disk, its checkpoint included."""
        return

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """Is called when the run has ended, whatever ended it, and its summary is on disk."""
        return


def tell_round(observers: Iterable[Observer], row: RoundRow) -> None:
    """Tells observers, one after the other, of a finished round that is on disk, and of its evaluation first."""
    for observer in observers:
        if row.evaluation_return_mean is not None:
            observer.on_evaluation(row)
        observer.on_round_end(row)


class RunControl(Protocol):
    """What a callback may do to the run that it looks at.

    Attributes:
        environment_kwargs: With which the environments of the next round are made; a copy.
    """

    @property
    def environment_kwargs(self) -> dict[str, Any]: ...

    def stop(self, reason: str) -> None:
        """Ends the run now, before the next round; its ``stop_reason`` is ``callback: `` and the reason."""

    def change_environment(self, **kwargs: Any) -> None:
        """Changes some of ``environment.kwargs``, from the next round on, until they are changed again.

        Episodes that are open are dropped, because they began in another environment. Evaluations keep the kwargs of
        the experiment file, so that their returns stay comparable.

        Raises:
            ValueError: They are no JSON values, or the rounds are asynchronous.
        """


class Callback:
    """A base class for callbacks of your own: look at a run, stop it, change its environment.

    Each method does nothing unless a subclass has its own. What it raises ends the run. A resumed run calls a callback
    with the last finished round once more, after `load_state` has undone what it made of that round the first time.
    """

    def on_evaluation(self, row: RoundRow, run: RunControl) -> None:
        """Is called before `on_round_end` if an evaluation was taken in: ``row.evaluation_return_mean``."""

    def on_round_end(self, row: RoundRow, run: RunControl) -> None:
        """Is called when a finished round is on disk, its checkpoint included."""

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """Is called when the run has ended, whatever ended it; ``summary`` is what ``summary.json`` holds."""

    def state(self) -> Any:
        """Returns what the rounds to come depend on, as JSON values; it is in each checkpoint."""
        return None

    def load_state(self, state: Any) -> None:
        """Goes on from what `state` returned."""


class Keeping(Observer, Protocol):
    """Keeps a run where it outlives its machine, and tells of it whoever watches over its cost."""

    def spent_usd(self) -> float:
        """The least, in US dollars, that the run had cost when it was taken over, by records elsewhere."""
        return 0.0

    def begins(self) -> None:
        """Is called right before the first round: everything is there, and actors start."""
        return

    def ledger_changed(self, ledger: bytes) -> None:
        """Is called with a new ledger before what it promises is used."""
        return


@dataclass(frozen=True)
class Supplies:
    """What a backend gives a run; what of it must be closed is on the run's stack.

    Attributes:
        cache: Answers already.
        fleet: Where actors run.
        meter: Reserves and bills at the backend's prices.
        keeping: Keeps the run's files.
        actor_event: How actors reach the cache: fields of every actor's event.
        facts: What people are told of it, by label.
        prewarmed_actors: Actors to start once before the first round, as proof that they start at all; 0 for none.
        times: For how long the learner's work counts in the bill; None = as long as was measured.
        learner_fleet: Invokes the learner function; None if the policy is trained here.
        learner_store: Where that function finds and leaves what it needs; see `runtime.learner.remote.store`.
        instances: The same fleet as `fleet` and `learner_fleet`, if its processes play and train; else None.
        digests: Of files that decide what rounds are, by the key of the experiment file that names them: a resumption
            must find the same.
    """

    cache: Cache
    fleet: Fleet
    meter: CostMeter
    keeping: Keeping
    actor_event: Mapping[str, Any]
    facts: Mapping[str, str]
    prewarmed_actors: int = 0
    times: WorkTimes | None = None
    learner_fleet: Fleet | None = None
    learner_store: str = ""
    instances: Fleet | None = None
    digests: Mapping[str, str] = field(default_factory=dict)


class Backend(Protocol):
    """Supplies the cache, the fleet, the meter and the keeping of a run.

    Attributes:
        cost_basis: ``modelled``, or ``metered`` if durations are those that are billed.
        prices: What the bill is made from.
    """

    cost_basis: str
    prices: PriceTable

    def fetch(self, directory: RunFiles) -> None:
        """Takes the run over, and puts what is kept of it elsewhere into its directory.

        Is called first, before anything in the directory is looked at.

        Raises:
            RunError: It cannot be taken over.
        """

    def supply(self, run: RunContext) -> Supplies:
        """Opens what the run needs.

        Raises:
            ServerError: No cache answers.
            FleetError: No actor can run.
        """


class Display(Observer, Protocol):
    """Shows a run while it runs."""

    def started(self, experiment: Experiment, facts: Mapping[str, str], rows: Sequence[RoundRow] = ()) -> None:
        """Shows what is about to run; ``rows`` are the rounds that it continues after."""
        return

    def evaluating(self, round_index: int, done: int, episodes: int) -> None:
        """Shows how many episodes of an evaluation are done; another thread than the training's may call it.

        Args:
            round_index: The round that left the evaluated policy.
            done: Episodes that are over.
            episodes: Of the evaluation; it has ended when as many are done.
        """
        return

    def event(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Shows what happened besides finished rounds."""
        return

    def close(self) -> None:
        """Ends the showing; may be called before it began."""
        return
