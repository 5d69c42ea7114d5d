"""What a pacing is: how actors and updates of a round follow each other. The loop is given one."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from lambda_actor.errors import told
from lambda_actor.spaces import Spaces
from runtime.config.resolved import FittedExperiment
from runtime.cost.limits import PhaseTimes
from runtime.errors import RunError
from runtime.ports.learning import HasState
from runtime.ports.money import Limits
from runtime.ports.run import EventSink
from runtime.ports.sampling import ActorSpec, Sampler
from runtime.ports.scaling import ROWS_MAX, Detected, RoundView, Scaler, ScalingDecision
from runtime.records.rows import RoundRow
from runtime.sampling.episodes import OpenEpisodes
from runtime.sampling.failures import Failures
from runtime.settings.kinds import is_import_path
from runtime.training.books import Books
from runtime.training.callbacks import Callbacks
from runtime.training.detection import Detection, Measured
from runtime.training.evaluations import Evaluations
from runtime.training.finished_round import FinishedRound
from runtime.training.progress import Progress
from runtime.training.saving import Saving
from runtime.training.updating import Updating

REJECTED_ROUNDS_MAX = 3
"""Attempts at one round; then the run ends."""


class Pacing(Protocol):
    """Runs single rounds."""

    def run_round(self, round_index: int) -> FinishedRound | None:
        """Runs one round to its end; has the round before it saved when its own actors play.

        Returns:
            What its row is made from; None if the budget does not hold the round.
        """

    def close(self) -> None:
        """Ends what still goes on, whatever ended the run."""


@dataclass(frozen=True)
class Parts:
    """What a pacing works with. Each part does its own work; none knows the pacing.

    Attributes:
        actor_event: Fields of every actor's event that no round changes.
        spaces: Of the environment.
    """

    experiment: FittedExperiment
    actor_event: Mapping[str, Any]
    spaces: Spaces
    progress: Progress
    sampler: Sampler
    updating: Updating
    detection: Detection
    scaling: Scaling
    evaluations: Evaluations
    saving: Saving
    callbacks: Callbacks
    episodes: OpenEpisodes
    failures: Failures
    books: Books
    phases: PhaseTimes
    events: EventSink
    clock: Callable[[], float]

    @property
    def stateful(self) -> dict[str, HasState]:
        """Those that a checkpoint keeps arrays of, by the name that they have in it."""
        return {"learner": self.updating.updater, "samples": self.detection, "episode": self.episodes,
                "scaler": self.scaling.scaler, "evaluation": self.evaluations,
                "callbacks": self.callbacks}

    def choose_limits(self, round_index: int) -> Limits:
        """Chooses the limits of a round, or of another attempt at it, by what the budget holds."""
        self.phases.end_round()
        return self.books.choose_limits(
            self._choices(round_index), actors=self.scaling.scaler.actors_max, round_index=round_index)

    def holds(self, round_index: int) -> bool:
        """Whether what stands in a round fits beside all that is reserved now, under whatever limits."""
        return any(self.books.meter.fits(0, limits) for limits in self._choices(round_index))

    def _choices(self, round_index: int) -> Iterator[Limits]:
        steps_max = (self.experiment.algorithm.round_steps or self.phases.samples_max) + self.phases.samples_max
        return self.phases.choices(
            detects=self.detection.can_measure,
            evaluates=self.evaluations.may_take_time(round_index, steps_max=steps_max))

    def collected_s(self, seconds: float, actors: int) -> float:
        """For how long the most actors would have been awaited, if so many were for ``seconds``; some are queued."""
        at_once = self.sampler.concurrency
        return seconds / math.ceil(actors / at_once) * math.ceil(self.scaling.scaler.actors_max / at_once)

    def actor_spec(self, round_index: int, weights: bytes, limits: Limits, **fields: Any) -> ActorSpec:
        """What the actors have in common that are started now.

        Args:
            weights: Of the newest policy.
            limits: Of the round.
            fields: Fields of the event that differ from the run's.
        """
        return ActorSpec(
            {**self.actor_event, "policy_version": self.updating.updater.policy_version, "round_index": round_index,
             **fields}, self.spaces, weights_bytes=len(weights), timeout_s=self.by_the_clock(limits).actor_s)

    def by_the_clock(self, limits: Limits) -> Limits:
        """The limits that this machine's clock enforces.

        If the bill follows the clock, the clock keeps tightened limits, but for those of actors: nobody can tell AWS
        Lambda to end one earlier. A modelled bill has nothing to do with how busy this machine is; it is the model
        that ends what is longer than its limit.
        """
        whole = self.books.meter.limits
        # Actors that cannot run at once are queued; the bill is modelled as if all ran at once.
        collect_s = self.experiment.fleet.round_deadline_s * math.ceil(
            self.scaling.scaler.actors_max / self.sampler.concurrency)
        if self.books.meter.is_by_the_clock:
            return replace(limits, actor_s=whole.actor_s, collect_s=min(collect_s, limits.collect_s))
        return replace(whole, actor_s=limits.actor_s, collect_s=collect_s)


class Scaling:
    """The scaler, and what it is shown.

    Attributes:
        scaler: Decides how many actors a round gets.
    """

    def __init__(self, scaler: Scaler, books: Books, experiment: FittedExperiment) -> None:
        """Starts without a finished round."""
        self.scaler, self._books, self._experiment = scaler, books, experiment
        self._rows: deque[RoundRow] = deque(maxlen=ROWS_MAX)

    def observe(self, row: RoundRow) -> None:
        """Shows the scaler a finished round."""
        self._rows.append(row)
        self.scaler.observe(row)

    def remember(self, rows: Iterable[RoundRow]) -> None:
        """Keeps rows of rounds that a resumed run has finished, for the scaler to look at."""
        self._rows.extend(rows)

    def decide(self, round_index: int, measured: Measured | None) -> ScalingDecision:
        """Asks the scaler; to be asked once a round.

        Args:
            measured: Of the acting policy's objective; None if nothing was measured.

        Raises:
            RunError: A scaler of the user's own raises, or one decides on more or fewer actors than it said.
        """
        scaler, kind = self.scaler, self._experiment.scaler.kind
        signals = vars(measured.detected if measured else Detected())
        view = RoundView(
            round_index, tuple(self._rows), self._books.meter.free_usd,
            {name: signals.get(name) for name in scaler.signals},
            self._experiment.stop.target_return, self._experiment.budget.usd, self._books.meter.is_by_the_clock)
        try:
            decision = scaler.decide(view)
        except RunError:
            raise
        except Exception as error:
            if not is_import_path(kind):
                raise
            raise RunError(f"scaler.kind = {kind} cannot decide: {told(error)}") from error
        if not scaler.actors_min <= decision.actor_count <= scaler.actors_max:
            raise RunError(f"scaler.kind = {kind} decides on {decision.actor_count} actors; allowed: "
                           f"{scaler.actors_min} to {scaler.actors_max}, its actors_min and actors_max")
        return decision
