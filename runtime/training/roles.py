"""The roles of a training: who does what in a round. Its pacing tells them when.

Paper: Nitro §4, Fig. 6: the learner updates the policy, the detector measures it, the scaler decides, actors roll out.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from lambda_actor.errors import describe_error
from runtime.detector.interfaces import Detected, Detector
from runtime.errors import RunError
from runtime.experiment.algorithm import AlgorithmSettings
from runtime.experiment.kinds import is_import_path
from runtime.fleet.actors import ActorSpec
from runtime.fleet.episodes import OpenEpisodes
from runtime.fleet.failures import Failures, Patience
from runtime.fleet.flight import Flight
from runtime.money.meter import Meter
from runtime.money.work import Limits
from runtime.records.rows import RoundRow
from runtime.scaler.interfaces import ROWS_MAX, RoundView, Scaler, ScalingDecision
from runtime.training.costs import RoundMoney
from runtime.training.detection import Detection, Measured
from runtime.training.evaluations import Evaluations, PolicyEvaluator
from runtime.training.opening import Run
from runtime.training.progress import Progress
from runtime.training.updating import TimeLimit, Updating

if TYPE_CHECKING:
    from runtime.learner.updaters import Updater

PATIENCE = Patience()


class Rollouts:
    """Actors that roll out the policy.

    Attributes:
        flight: Starts them and takes in how they end.
        episodes: Open episodes, which the next ones continue.
        failures: Counts failed ones.
    """

    def __init__(
        self,
        run: Run,
        save_ledger: Callable[[], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        patience: Patience = PATIENCE,
    ) -> None:
        """Starts no actor yet.

        Args:
            run: Theirs.
            save_ledger: Puts the meter's state on disk.
            clock: Monotonic seconds.
            patience: Tolerance for failing actors.
        """
        self._event = run.actor_event
        self._spaces = run.spaces
        self.episodes = OpenEpisodes(run.events)
        self.failures = Failures(run.events, self.episodes, patience)
        self.flight = Flight(
            run.resources.fleet,
            run.resources.cache,
            run.resources.meter,
            self.failures,
            run.events,
            save_ledger,
            clock=clock,
        )

    def spec(
        self,
        round_index: int,
        policy_version: int,
        weights: bytes,
        *,
        timeout_s: float,
        raised: int = 0,
        **more: Any,
    ) -> ActorSpec:
        """Returns the common settings of the next actors.

        Args:
            weights: The newest policy's.
            raised: Attempts at the round in which a slot always raised. The same random numbers would raise again.
            more: Further fields of the event.
        """
        fields = {"policy_version": policy_version, "round_index": round_index, **more}
        event = {**self._event, **fields}
        if raised:
            entropy = np.random.SeedSequence((event["seed"], raised))
            event["seed"] = int(entropy.generate_state(1)[0])
        return ActorSpec(event, self._spaces, len(weights), timeout_s)


@dataclass(frozen=True)
class Roles:
    """The roles of a training. Each does its own work; none knows the pacing."""

    algorithm: AlgorithmSettings
    progress: Progress
    rollouts: Rollouts
    updating: Updating
    detection: Detection
    scaling: Scaling
    evaluations: Evaluations
    money: RoundMoney

    def choose_limits(self, round_index: int, actors: int | None = None) -> Limits:
        """Chooses the limits of a round, or of another attempt at it, that fit the budget.

        Args:
            actors: The most actors to reserve for; None for the scaler's.
        """
        self.money.phases.end_round()
        most = self.scaling.scaler.actors_max if actors is None else actors
        return self.money.choose_limits(round_index, most, **self._phases(round_index))

    def holds(self, round_index: int) -> bool:
        """Returns whether a round's standing parts fit in addition to all current reservations, under any limits."""
        choices = self.money.choices(**self._phases(round_index))
        return any(self.money.meter.fits(0, limits) for limits in choices)

    def _phases(self, round_index: int) -> dict[str, bool]:
        steps_max = 2 * self.money.phases.samples_max
        evaluates = self.evaluations.may_take_time(round_index, steps_max=steps_max)
        return {"detects": self.detection.can_measure, "evaluates": evaluates}


@dataclass(frozen=True)
class Scaling:
    """The scaler and its input.

    Attributes:
        scaler: Decides how many actors a round gets.
        kind: ``scaler.kind``, for errors.
        meter: Knows what is free of the budget.
        target_return: ``stop.target_return``.
        budget_usd: ``budget.usd``.
        seed: ``seed``.
        rows: Finished rounds, oldest first.
    """

    scaler: Scaler
    kind: str
    meter: Meter
    target_return: float | None
    budget_usd: float
    seed: int
    rows: deque[RoundRow] = field(default_factory=lambda: deque(maxlen=ROWS_MAX))

    def observe(self, row: RoundRow) -> None:
        """Passes a finished round to the scaler."""
        self.rows.append(row)
        self.scaler.observe(row)

    def decide(self, round_index: int, measured: Measured | None) -> ScalingDecision:
        """Asks the scaler. Call this once a round.

        Args:
            measured: Signals of the current policy's objective; None if nothing was measured.

        Raises:
            RunError: A user's scaler raises, or a scaler's decision is outside its own limits.
        """
        scaler = self.scaler
        signals = vars(measured.detected if measured else Detected())
        view = RoundView(
            round_index,
            tuple(self.rows),
            self.meter.free_usd,
            {name: signals.get(name) for name in scaler.signals},
            self.target_return,
            self.budget_usd,
            self.seed,
        )
        try:
            decision = scaler.decide(view)
            is_allowed = scaler.actors_min <= decision.actor_count <= scaler.actors_max
        except RunError:
            raise
        except Exception as error:
            if not is_import_path(self.kind):
                raise
            raise RunError(
                f"scaler.kind = {self.kind} cannot decide: {describe_error(error)}"
            ) from error
        if not is_allowed:
            raise RunError(
                f"scaler.kind = {self.kind} decides on {decision.actor_count} actors; allowed: "
                f"{scaler.actors_min} to {scaler.actors_max}, its actors_min and actors_max"
            )
        return decision


def make_roles(
    run: Run,
    *,
    updater: Updater,
    detector: Detector,
    evaluator: PolicyEvaluator,
    time_limit: TimeLimit,
    clock: Callable[[], float] = time.monotonic,
    patience: Patience = PATIENCE,
) -> Roles:
    """Distributes the work of a training's rounds.

    Args:
        run: An open run.
        updater: Trains the policy.
        detector: Measures signals for the scaler.
        evaluator: Evaluates policies in parallel with training.
        time_limit: Ends work that exceeds its reserved time.
        clock: Monotonic seconds.
        patience: Tolerance for failing actors.
    """
    experiment, meter, events = run.experiment, run.resources.meter, run.events
    scaler = experiment.scaler.make()
    progress = Progress(experiment.stop, experiment.steps_together)
    rollouts = Rollouts(run, run.save_ledger, clock=clock, patience=patience)
    concurrency = rollouts.flight.concurrency
    money = RoundMoney(experiment, meter, events, run.save_ledger, concurrency=concurrency)
    assemble = partial(
        updater.assemble, spaces=run.spaces, clip_rewards=experiment.environment.clip_rewards
    )
    return Roles(
        experiment.algorithm,
        progress,
        rollouts,
        Updating(
            updater,
            assemble,
            experiment.algorithm,
            rollouts.episodes,
            progress,
            time_limit=time_limit,
            clock=clock,
        ),
        Detection(
            detector,
            updater,
            signals=scaler.signals,
            subset_size=experiment.detector.subset_size,
            timeout_s=experiment.learner.update_timeout_s,
            clock=clock,
        ),
        Scaling(
            scaler,
            experiment.scaler.kind,
            meter,
            experiment.stop.target_return,
            experiment.budget.usd,
            experiment.seed,
        ),
        Evaluations(
            evaluator,
            progress,
            every_rounds=experiment.evaluation.every_rounds,
            has_whole_episodes=not experiment.environment.truncate_at_fragment,
        ),
        money,
    )
