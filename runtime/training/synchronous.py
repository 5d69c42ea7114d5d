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
from typing import Any

import numpy as np

from lambda_actor.errors import ActorError
from runtime.errors import ActorsKeepFailingError, BudgetError, RunError
from runtime.fleet.actors import ActorSpec, ActorTally
from runtime.fleet.flight import Group
from runtime.money.limits import PhaseSeconds
from runtime.money.work import ACTOR, Limits, RoundBill, Work
from runtime.records.rows import RoundRow
from runtime.scaler.interfaces import ScalingDecision
from runtime.training.detection import Measured
from runtime.training.evaluations import Decided
from runtime.training.finished_round import finished_row
from runtime.training.roles import REJECTED_ROUNDS_MAX, Meanwhile, Roles
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
    """A `runtime.training.roles.Pacing` whose actors start and end with their round."""

    def __init__(self, roles: Roles) -> None:
        """Takes those who do the work."""
        self._roles, self._rollouts = roles, roles.rollouts
        self._money, self._meter = roles.money, roles.money.meter
        self._flight, self._clock = roles.rollouts.flight, roles.rollouts.flight.clock

    def close(self) -> None:
        """Does nothing: no work is left between two rounds."""

    def run_round(self, round_index: int, meanwhile: Meanwhile) -> RoundRow | None:
        """Runs one round to its end; see `runtime.training.roles.Pacing`.

        Raises:
            ActorsKeepFailingError: The circuit breaker tripped, or too many attempts missed their quorum.
            BudgetError: The round took longer than its reserved worst case.
        """
        started_s, weights = self._clock(), self._roles.updating.updater.weights()
        attempts: list[_Attempt] = []
        bills: list[RoundBill] = []
        while len(attempts) < REJECTED_ROUNDS_MAX:
            attempt = self._collect(round_index, weights, attempts, meanwhile)
            if attempt is None:
                return None
            attempts.append(attempt)
            if self._has_quorum(attempt):
                break
            bills.append(self._reject(round_index, attempt))
        else:
            raise ActorsKeepFailingError(
                f"round {round_index} missed its quorum {REJECTED_ROUNDS_MAX} times in a row: "
                f"{self._rollouts.failures.patience.quorum:.0%} of its actors must return; the last actor's error: ",
                attempts[-1].group.tally.last_error,
            )
        try:
            return self._finish(round_index, attempts, bills, started_s)
        except BudgetError as failure:
            if self._money.is_lost(round_index, attempts[-1].limits, failure):
                return None
            raise

    def _collect(
        self, round_index: int, weights: bytes, attempts: Sequence[_Attempt], meanwhile: Meanwhile
    ) -> _Attempt | None:
        """Rolls the round's actors out; None if the budget does not hold even the smallest round."""
        roles, scaler, failures = self._roles, self._roles.scaling.scaler, self._rollouts.failures
        first = attempts[0] if attempts else None
        wanted = roles.progress.room_for(
            first.decision.actor_count if first else scaler.first_wave(round_index)
        )
        limits = roles.choose_limits(round_index)
        granted = self._meter.open_round(wanted, smallest=scaler.actors_min, limits=limits)
        self._money.save()
        if granted == 0:
            self._money.tell_exhausted(round_index, wanted)
            return None
        started_s = self._clock()
        spec = self._spec(round_index, weights, limits, attempts)
        group = Group(
            f"r{round_index}t{len(attempts)}",
            failures.patience.attempts,
            started_s + self._money.by_the_clock(limits).collect_s,
            first.group.tally if first else ActorTally(),
        )
        failures.begin()
        try:
            self._flight.publish(roles.updating.updater.policy_version, weights)
            self._start(group, spec, range(granted))
            meanwhile()
            decision, measured = self._decide(round_index, first)
            room = roles.progress.room_for(decision.actor_count)
            if granted == wanted:
                granted += self._boost(group, spec, range(granted, room))
            self._tell_what_is_missing(round_index, decision.actor_count, room, granted)
            reserved_usd = self._meter.reserved_usd
            self._flight.finish(group.until_s, "the round's deadline passed")
            self._money.save()
        except BaseException:
            with suppress(ActorError, RunError):
                self._flight.end("the run ends")
            self._money.close_interrupted(self._clock() - started_s)
            raise
        collect_s = self._clock() - started_s
        self._money.phases.saw(
            PhaseSeconds(actor_s=group.longest_s, detect_s=measured.seconds if measured else None)
        )
        self._money.saw_collection(collect_s, granted)
        return _Attempt(
            limits=limits,
            decision=decision,
            measured=measured,
            actor_count=granted,
            reserved_usd=reserved_usd,
            group=group,
            has_raising_slot=failures.has_raising_slot,
            collect_s=collect_s,
        )

    def _decide(
        self, round_index: int, first: _Attempt | None
    ) -> tuple[ScalingDecision, Measured | None]:
        """Asks the scaler, with signals measured now; a later attempt reuses the first one's decision."""
        if first is not None:
            return first.decision, None
        measured = self._roles.detection.measure()
        return self._roles.scaling.decide(round_index, measured), measured

    def _spec(
        self, round_index: int, weights: bytes, limits: Limits, rejected: Sequence[_Attempt]
    ) -> ActorSpec:
        fields: dict[str, Any] = {}
        if raised := sum(attempt.has_raising_slot for attempt in rejected):
            # The same random numbers would raise again.
            entropy = (self._roles.experiment.seed, raised)
            fields["seed"] = int(np.random.SeedSequence(entropy).generate_state(1)[0])
        version = self._roles.updating.updater.policy_version
        timeout_s = self._money.by_the_clock(limits).actor_s
        return self._rollouts.spec(round_index, version, weights, timeout_s=timeout_s, **fields)

    def _start(self, group: Group, spec: ActorSpec, slots: range) -> None:
        """Starts actors for these slots; the oldest open episodes go to the lowest slots."""
        works = [Work(ACTOR, slot) for slot in slots]
        waiting = self._rollouts.episodes.waiting[slots.start : slots.stop]
        self._flight.start(group, spec, works, slots, waiting)

    def _boost(self, group: Group, spec: ActorSpec, slots: range) -> int:
        granted = self._meter.reserve([Work(ACTOR, slot) for slot in slots])
        if granted:
            self._money.save()
            self._start(group, spec, slots[:granted])
        return granted

    def _tell_what_is_missing(self, round_index: int, wanted: int, room: int, granted: int) -> None:
        if room < wanted:
            self._money.events.append(
                "round_fitted",
                round_index=round_index,
                wanted=wanted,
                granted=room,
                reason="stop.max_steps has room for no more fragments",
            )
        if granted < room:
            self._money.tell_shrunk(round_index, room, granted)

    def _has_quorum(self, attempt: _Attempt) -> bool:
        # Slightly less than the product, which rounding can make slightly too large.
        needed = math.ceil(self._rollouts.failures.patience.quorum * attempt.actor_count - 1e-9)
        return len(attempt.group.came) >= max(1, needed)

    def _reject(self, round_index: int, attempt: _Attempt) -> RoundBill:
        """Rejects an attempt: nothing of it is trained on, and no open episode is consumed."""
        self._money.events.append(
            "round_rejected",
            round_index=round_index,
            actor_count=attempt.actor_count,
            actors_returned=len(attempt.group.came),
        )
        bill = self._meter.close_round(attempt.collect_s)
        self._money.save()
        return bill

    def _finish(
        self,
        round_index: int,
        attempts: Sequence[_Attempt],
        bills: Sequence[RoundBill],
        started_s: float,
    ) -> RoundRow:
        """Trains on the last attempt's trajectories, and bills it.

        Args:
            bills: Bills of the rejected attempts.
            started_s: When the first one began.
        """
        attempt, measured = attempts[-1], attempts[0].measured
        policy_version, train_started_s = self._roles.updating.updater.policy_version, self._clock()
        try:
            training, decided = self._train(
                round_index, attempt, measured.seconds if measured else 0.0
            )
        except BaseException:
            self._money.close_interrupted(attempt.collect_s + self._clock() - train_started_s)
            raise
        finished_s = self._clock()
        bill = self._meter.close_round(attempt.collect_s + finished_s - train_started_s)
        return finished_row(
            round_index=round_index,
            policy_version=policy_version,
            decision=attempt.decision,
            measured=measured,
            actor_count=attempt.actor_count,
            tally=attempt.group.tally,
            training=training,
            env_steps_total=self._roles.progress.env_steps_total,
            decided=decided,
            collect_s=sum(one.collect_s for one in attempts),
            round_s=finished_s - started_s,
            account=self._money.account([*bills, bill], attempt.reserved_usd),
        )

    def _train(
        self, round_index: int, attempt: _Attempt, detect_s: float
    ) -> tuple[RoundTraining, Decided]:
        """Updates the policy, and collects a due evaluation.

        Args:
            detect_s: Seconds that detection used of the time reserved for all three.
        """
        roles, training = self._roles, RoundTraining()
        limit_s = self._money.by_the_clock(attempt.limits).update_s
        left_s = limit_s - detect_s
        in_slot_order = sorted(attempt.group.came, key=lambda came: int(came["slot"]))
        update = roles.updating.train(in_slot_order, training, left_s)
        roles.detection.keep([update.samples])
        decided = roles.evaluations.end_round(
            round_index,
            roles.updating.updater.weights,
            returns=training.episode_returns,
            limit_s=left_s - training.learn_s,
        )
        self._money.phases.saw(
            PhaseSeconds(sample_s=training.learn_s / training.env_steps, evaluate_s=decided.seconds)
        )
        seconds = detect_s + training.learn_s + (decided.seconds or 0.0)
        if seconds > limit_s:
            raise BudgetError(
                f"detection, update and evaluation took {seconds:.1f} s, longer than the {limit_s} s "
                "reserved for them; raise learner.update_timeout_s"
            )
        return training, decided
