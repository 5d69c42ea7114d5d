"""Synchronous pacing: all actors of a round roll out the same policy, and the update waits for them.

A round, numbered from 1:

    1. the policy's weights are published, and the minimum number of actors starts at once;
    2. meanwhile the last round's row and checkpoint are written, and
    3. the detector measures that policy's signals for the scaler on the last round's samples;
    4. the scaler decides the number of actors, and the missing ones start with the same weights;
    5. the round waits for all, aggregates their trajectories in slot order, and updates the policy.

Before a round starts, its worst case is reserved in the budget.

Paper: Nitro §4, Fig. 6.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from lambda_actor.errors import ActorError
from runtime.errors import ActorsKeepFailingError, BudgetError, RunError
from runtime.fleet.actors import ActorSpec, ActorTally
from runtime.fleet.flight import Group
from runtime.money.work import ACTOR, Limits, RoundBill, Work
from runtime.scaler.interfaces import ScalingDecision
from runtime.training.detection import Measured
from runtime.training.evaluations import Decided
from runtime.training.finished_round import FinishedRound
from runtime.training.pacings import REJECTED_ROUNDS_MAX, Parts
from runtime.training.updating import RoundTraining


@dataclass(frozen=True, kw_only=True)
class _Attempt:
    """One attempt at a round whose actors have ended.

    Attributes:
        decision: The scaler's; a later attempt reuses the first one's.
        measured: Signals of the decision; None in a later attempt.
        reserved_usd: The highest reservation at any time.
        group: Its actors; all attempts at a round share a tally.
        has_raising_slot: Whether every try of some slot raised.
    """

    limits: Limits
    decision: ScalingDecision
    measured: Measured | None
    actor_count: int
    reserved_usd: float
    group: Group
    has_raising_slot: bool
    collect_s: float


class SynchronousPacing:
    """A `runtime.training.pacings.Pacing` whose actors start and end with their round."""

    def __init__(self, parts: Parts) -> None:
        """Takes the parts of the run."""
        self._parts, self._experiment, self._clock = parts, parts.experiment, parts.clock
        self._meter = parts.books.meter

    def close(self) -> None:
        """Does nothing: no work is left between two rounds."""

    def run_round(self, round_index: int) -> FinishedRound | None:
        """Runs one round to its end; see `runtime.training.pacings.Pacing`.

        Raises:
            ActorsKeepFailingError: The circuit breaker tripped, or too many attempts missed their quorum.
            BudgetError: The round took longer than its reserved worst case.
        """
        started_s, weights = self._clock(), self._parts.updating.updater.weights()
        attempts: list[_Attempt] = []
        bills: list[RoundBill] = []
        while len(attempts) < REJECTED_ROUNDS_MAX:
            attempt = self._collect(round_index, weights, attempts)
            if attempt is None:
                return None
            attempts.append(attempt)
            if self._has_quorum(attempt):
                break
            bills.append(self._reject(round_index, attempt))
        else:
            raise ActorsKeepFailingError(
                f"round {round_index} missed its quorum {REJECTED_ROUNDS_MAX} times in a row: "
                f"{self._parts.failures.patience.quorum:.0%} of its actors must return; the last actor's error: ",
                attempts[-1].group.tally.last_error,
            )
        try:
            return self._finish(round_index, attempts, bills, started_s)
        except BudgetError as failure:
            if self._parts.books.is_lost(round_index, attempts[-1].limits, failure):
                return None
            raise

    def _collect(
        self, round_index: int, weights: bytes, attempts: Sequence[_Attempt]
    ) -> _Attempt | None:
        """Rolls the round's actors out; None if the budget does not hold even the smallest round."""
        parts, scaler = self._parts, self._parts.scaling.scaler
        wanted = parts.progress.room_for(
            attempts[0].decision.actor_count if attempts else scaler.first_wave(round_index)
        )
        limits = parts.choose_limits(round_index)
        granted = self._meter.open_round(wanted, smallest=scaler.actors_min, limits=limits)
        parts.books.save()
        if granted == 0:
            parts.books.tell_exhausted(round_index, wanted)
            return None
        started_s = self._clock()
        spec = self._spec(round_index, weights, limits, attempts)
        group = Group(
            f"r{round_index}t{len(attempts)}",
            parts.failures.patience.attempts,
            started_s + parts.by_the_clock(limits).collect_s,
            attempts[0].group.tally if attempts else ActorTally(),
        )
        parts.failures.begin()
        try:
            parts.flight.publish(parts.updating.updater.policy_version, weights)
            self._start(group, spec, range(granted))
            parts.saving.flush()
            measured = None if attempts else parts.detection.measure()
            decision = (
                attempts[0].decision if attempts else parts.scaling.decide(round_index, measured)
            )
            room = parts.progress.room_for(decision.actor_count)
            if not attempts and granted == wanted:
                granted += self._boost(group, spec, range(granted, room))
            self._tell_what_is_missing(round_index, decision.actor_count, room, granted)
            reserved_usd = self._meter.reserved_usd
            parts.flight.finish(group.until_s, "the round's deadline passed")
            parts.books.save()
        except BaseException:
            with suppress(ActorError, RunError):
                parts.flight.end("the run ends")
            parts.books.close_interrupted(self._clock() - started_s)
            raise
        collect_s = self._clock() - started_s
        parts.phases.saw(
            actor_s=group.longest_s,
            detect_s=measured.seconds if measured else None,
            collect_s=parts.collected_s(collect_s, granted),
        )
        return _Attempt(
            limits=limits,
            decision=decision,
            measured=measured,
            actor_count=granted,
            reserved_usd=reserved_usd,
            group=group,
            has_raising_slot=parts.failures.has_raising_slot,
            collect_s=collect_s,
        )

    def _spec(
        self, round_index: int, weights: bytes, limits: Limits, rejected: Sequence[_Attempt]
    ) -> ActorSpec:
        fields = self._parts.callbacks.actor_fields
        if raised := sum(one.has_raising_slot for one in rejected):
            # The same random numbers would raise again.
            fields["seed"] = int(
                np.random.SeedSequence((self._experiment.seed, raised)).generate_state(1)[0]
            )
        return self._parts.actor_spec(round_index, weights, limits, **fields)

    def _start(self, group: Group, spec: ActorSpec, slots: range) -> None:
        """Starts actors for these slots; the oldest open episodes go to the lowest slots."""
        works = [Work(ACTOR, slot) for slot in slots]
        waiting = self._parts.episodes.waiting[slots.start : slots.stop]
        self._parts.flight.start(group, spec, works, slots, waiting)

    def _boost(self, group: Group, spec: ActorSpec, slots: range) -> int:
        granted = self._meter.reserve([Work(ACTOR, slot) for slot in slots])
        if granted:
            self._parts.books.save()
            self._start(group, spec, slots[:granted])
        return granted

    def _tell_what_is_missing(self, round_index: int, wanted: int, room: int, granted: int) -> None:
        if room < wanted:
            self._parts.events.append(
                "round_fitted",
                round_index=round_index,
                wanted=wanted,
                granted=room,
                reason="stop.max_steps has room for no more fragments",
            )
        if granted < room:
            self._parts.events.append(
                "round_shrunk",
                round_index=round_index,
                wanted=room,
                granted=granted,
                free_usd=self._meter.free_usd,
            )

    def _has_quorum(self, attempt: _Attempt) -> bool:
        # Slightly less than the product, which rounding can make slightly too large.
        needed = math.ceil(self._parts.failures.patience.quorum * attempt.actor_count - 1e-9)
        return len(attempt.group.came) >= max(1, needed)

    def _reject(self, round_index: int, attempt: _Attempt) -> RoundBill:
        """Rejects an attempt: nothing of it is trained on, and no open episode is consumed."""
        self._parts.events.append(
            "round_rejected",
            round_index=round_index,
            actor_count=attempt.actor_count,
            actors_returned=len(attempt.group.came),
        )
        bill = self._meter.close_round(attempt.collect_s)
        self._parts.books.save()
        return bill

    def _finish(
        self,
        round_index: int,
        attempts: Sequence[_Attempt],
        bills: Sequence[RoundBill],
        started_s: float,
    ) -> FinishedRound:
        """Trains on the last attempt's trajectories, and bills it.

        Args:
            bills: Bills of the rejected attempts.
            started_s: When the first one began.
        """
        attempt, measured = attempts[-1], attempts[0].measured
        policy_version, train_started_s = self._parts.updating.updater.policy_version, self._clock()
        try:
            training, decided = self._train(
                round_index, attempt, measured.seconds if measured else 0.0
            )
        except BaseException:
            self._parts.books.close_interrupted(attempt.collect_s + self._clock() - train_started_s)
            raise
        finished_s = self._clock()
        bill = self._meter.close_round(attempt.collect_s + finished_s - train_started_s)
        return FinishedRound(
            round_index=round_index,
            policy_version=policy_version,
            decision=attempt.decision,
            measured=measured,
            actor_count=attempt.actor_count,
            tally=attempt.group.tally,
            training=training,
            env_steps_total=self._parts.progress.env_steps_total,
            decided=decided,
            collect_s=sum(one.collect_s for one in attempts),
            round_s=finished_s - started_s,
            account=self._parts.books.account([*bills, bill], attempt.reserved_usd),
        )

    def _train(
        self, round_index: int, attempt: _Attempt, detect_s: float
    ) -> tuple[RoundTraining, Decided]:
        """Updates the policy, and collects a due evaluation.

        Args:
            detect_s: Seconds that detection used of the time reserved for all three.
        """
        parts, training = self._parts, RoundTraining()
        limit_s = parts.by_the_clock(attempt.limits).update_s
        left_s = limit_s - detect_s
        update = parts.updating.train(
            sorted(attempt.group.came, key=lambda one: int(one["slot"])), training, left_s
        )
        parts.detection.keep([update.samples])
        decided = parts.evaluations.end_round(
            round_index,
            parts.updating.updater.weights,
            returns=training.episode_returns,
            limit_s=left_s - training.learn_s,
        )
        parts.phases.saw(sample_s=training.learn_s / training.env_steps, evaluate_s=decided.seconds)
        seconds = detect_s + training.learn_s + (decided.seconds or 0.0)
        if seconds > limit_s:
            raise BudgetError(
                f"detection, update and evaluation took {seconds:.1f} s, longer than the {limit_s} s "
                "reserved for them; raise learner.update_timeout_s"
            )
        return training, decided
