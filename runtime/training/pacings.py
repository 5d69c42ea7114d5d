"""Pacings: the order of a round's actors and updates. The loop receives one."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from lambda_actor.errors import told
from lambda_actor.spaces import Spaces
from runtime.detector.interfaces import Detected
from runtime.errors import RunError
from runtime.experiment.kinds import is_import_path
from runtime.experiment.resolved import ResolvedExperiment
from runtime.fleet.actors import ActorSpec
from runtime.fleet.episodes import OpenEpisodes
from runtime.fleet.failures import Failures
from runtime.fleet.flight import Flight
from runtime.money.limits import PhaseTimes
from runtime.money.work import Limits
from runtime.records.observers import EventSink
from runtime.records.rows import RoundRow
from runtime.records.state import HasState
from runtime.scaler.interfaces import (
    ROWS_MAX,
    RoundView,
    Scaler,
    ScalingDecision,
)
from runtime.training.books import Books
from runtime.training.callbacks import Callbacks
from runtime.training.detection import Detection, Measured
from runtime.training.evaluations import Evaluations
from runtime.training.finished_round import FinishedRound
from runtime.training.progress import Progress
from runtime.training.saving import Saving
from runtime.training.updating import Updating

REJECTED_ROUNDS_MAX = 3
"""Attempts at one round before the run ends."""


class Pacing(Protocol):
    """Runs single rounds."""

    def run_round(self, round_index: int) -> FinishedRound | None:
        """Runs one round to its end, and saves the previous round while its own actors play.

        Returns:
            The source of its row; None if the budget does not hold the round.
        """

    def close(self) -> None:
        """Ends all remaining work, whatever ended the run."""


@dataclass(frozen=True)
class Parts:
    """A pacing's parts. Each part does its own work; none knows the pacing.

    Attributes:
        actor_event: Fields of actors' events that are the same in all rounds.
        spaces: The environment's.
    """

    experiment: ResolvedExperiment
    actor_event: Mapping[str, Any]
    spaces: Spaces
    progress: Progress
    flight: Flight
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
        """Parts with arrays in a checkpoint, by their names there."""
        return {
            "learner": self.updating.updater,
            "samples": self.detection,
            "episode": self.episodes,
            "scaler": self.scaling.scaler,
            "evaluation": self.evaluations,
            "callbacks": self.callbacks,
        }

    def choose_limits(self, round_index: int) -> Limits:
        """Chooses the limits of a round, or of another attempt at it, that fit the budget."""
        self.phases.end_round()
        return self.books.choose_limits(
            self._choices(round_index),
            actors=self.scaling.scaler.actors_max,
            round_index=round_index,
        )

    def holds(self, round_index: int) -> bool:
        """Returns whether a round's standing parts fit in addition to all current reservations, under any limits."""
        return any(self.books.meter.fits(0, limits) for limits in self._choices(round_index))

    def _choices(self, round_index: int) -> Iterator[Limits]:
        steps_max = 2 * self.phases.samples_max
        return self.phases.choices(
            detects=self.detection.can_measure,
            evaluates=self.evaluations.may_take_time(round_index, steps_max=steps_max),
        )

    def collected_s(self, seconds: float, actors: int) -> float:
        """Scales the wait for this number of actors to the maximum number; some are queued."""
        at_once = self.flight.concurrency
        return (
            seconds
            / math.ceil(actors / at_once)
            * math.ceil(self.scaling.scaler.actors_max / at_once)
        )

    def actor_spec(
        self, round_index: int, weights: bytes, limits: Limits, **fields: Any
    ) -> ActorSpec:
        """Returns the common settings of the next actors.

        Args:
            weights: The newest policy's.
            limits: The round's.
            fields: Fields of the event that differ from the run's.
        """
        return ActorSpec(
            {
                **self.actor_event,
                "policy_version": self.updating.updater.policy_version,
                "round_index": round_index,
                **fields,
            },
            self.spaces,
            weights_bytes=len(weights),
            timeout_s=self.by_the_clock(limits).actor_s,
        )

    def by_the_clock(self, limits: Limits) -> Limits:
        """Returns the limits that this machine's clock enforces.

        Where the work is billed, the clock enforces tightened limits. Actors are the exception, because AWS Lambda
        cannot be asked to end one earlier. Elsewhere, tightened limits only reserve: a busy machine ends nothing.
        """
        whole = self.books.meter.limits
        # Actors that cannot run at once are queued.
        collect_s = self.experiment.fleet.round_deadline_s * math.ceil(
            self.scaling.scaler.actors_max / self.flight.concurrency
        )
        if not self.books.meter.is_billed:
            return replace(whole, collect_s=collect_s)
        return replace(limits, actor_s=whole.actor_s, collect_s=min(collect_s, limits.collect_s))


class Scaling:
    """The scaler and its input.

    Attributes:
        scaler: Decides how many actors a round gets.
    """

    def __init__(self, scaler: Scaler, books: Books, experiment: ResolvedExperiment) -> None:
        """Starts without a finished round."""
        self.scaler, self._books, self._experiment = scaler, books, experiment
        self._rows: deque[RoundRow] = deque(maxlen=ROWS_MAX)

    def observe(self, row: RoundRow) -> None:
        """Passes a finished round to the scaler."""
        self._rows.append(row)
        self.scaler.observe(row)

    def remember(self, rows: Iterable[RoundRow]) -> None:
        """Keeps a resumed run's finished rows for the scaler."""
        self._rows.extend(rows)

    def decide(self, round_index: int, measured: Measured | None) -> ScalingDecision:
        """Asks the scaler. Call this once a round.

        Args:
            measured: Signals of the current policy's objective; None if nothing was measured.

        Raises:
            RunError: A user's scaler raises, or a scaler's decision is outside its own limits.
        """
        scaler, kind = self.scaler, self._experiment.scaler.kind
        signals = vars(measured.detected if measured else Detected())
        view = RoundView(
            round_index,
            tuple(self._rows),
            self._books.meter.free_usd,
            {name: signals.get(name) for name in scaler.signals},
            self._experiment.stop.target_return,
            self._experiment.budget.usd,
        )
        try:
            decision = scaler.decide(view)
        except RunError:
            raise
        except Exception as error:
            if not is_import_path(kind):
                raise
            raise RunError(f"scaler.kind = {kind} cannot decide: {told(error)}") from error
        if not scaler.actors_min <= decision.actor_count <= scaler.actors_max:
            raise RunError(
                f"scaler.kind = {kind} decides on {decision.actor_count} actors; allowed: "
                f"{scaler.actors_min} to {scaler.actors_max}, its actors_min and actors_max"
            )
        return decision
