"""Synchronous pacing: all actors of a round roll out the same policy, and the update waits for them.

A round, numbered from 1:

    1. the policy's weights are published, and the actors that are due whatever the score start at once;
    2. meanwhile the last round's row and checkpoint are written, and
    3. the detector measures, of that policy and on the last round's samples, what the scaler reads;
    4. the scaler turns it into a number of actors, and the missing ones start with the same weights;
    5. all are awaited, their trajectories aggregated in slot order, and the policy is updated.

Before anything of a round starts, its worst case is reserved in the budget.

Paper: Nitro §4, Fig. 6.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from lambda_actor.errors import ActorError
from runtime.errors import ActorsKeepFailingError, BudgetError, RunError
from runtime.ports.money import ACTOR, Limits, RoundBill, Work
from runtime.ports.sampling import ActorSpec
from runtime.ports.scaling import Detected, ScalingDecision
from runtime.sampling.collection import Collected, Collection
from runtime.training.pacings import REJECTED_ROUNDS_MAX, Parts, result_columns
from runtime.training.updating import RoundTraining


@dataclass
class _Attempt:
    """One attempt at a round, until it is accepted."""

    decision: ScalingDecision
    detected: Detected | None
    limits: Limits
    actor_count: int
    reserved_usd: float
    collected: Collected
    detect_s: float | None
    modelled_detect_s: float | None
    collect_s: float
    modelled_collect_s: float
    bills: list[RoundBill]
    rejected: _Attempt | None

    @property
    def all_attempts(self) -> list[_Attempt]:
        """The rejected attempts at this round, oldest first, and this one."""
        return [*(self.rejected.all_attempts if self.rejected else []), self]


class SynchronousPacing:
    """A `runtime.training.pacings.Pacing` whose actors start and end with their round."""

    def __init__(self, parts: Parts) -> None:
        """Takes the parts of the run."""
        self._parts, self._settings, self._clock = parts, parts.settings, parts.clock
        self._meter = parts.books.meter

    def close(self) -> None:
        """Nothing goes on between two rounds."""

    def run_round(self, round_index: int) -> dict[str, Any] | None:
        """Runs one round to its end, as `runtime.training.pacings.Pacing` says.

        Raises:
            ActorsKeepFailingError: The circuit breaker, or too many attempts missed their quorum.
            BudgetError: The round took longer than its reserved worst case.
        """
        started_s = self._clock()
        weights = self._parts.updating.updater.weights()
        attempt: _Attempt | None = None
        for try_index in range(REJECTED_ROUNDS_MAX):
            attempt = self._collect(round_index, try_index, weights, attempt)
            if attempt is None:
                return None
            if self._has_quorum(attempt):
                break
            self._reject(round_index, attempt)
        else:
            raise ActorsKeepFailingError(
                f"round {round_index} missed its quorum {REJECTED_ROUNDS_MAX} times in a row (fleet.quorum = "
                f"{self._settings.quorum}); the last actor's error: ",
                attempt.collected.last_error if attempt else "")
        train_started_s = self._clock()
        try:
            row, times = self._train(round_index, attempt)
        except BaseException as failure:
            self._parts.books.close_interrupted(
                attempt.actor_count, attempt.modelled_collect_s + self._clock() - train_started_s)
            if isinstance(failure, BudgetError) and self._parts.books.is_lost(round_index, attempt.limits, failure):
                return None
            raise
        finished_s = self._clock()
        try:
            bill = self._meter.close_round(
                actors_started=attempt.actor_count,
                seconds=attempt.modelled_collect_s + times["modelled_learn_s"] + (row["modelled_evaluate_s"] or 0.0))
        except BudgetError as failure:
            if self._parts.books.is_lost(round_index, attempt.limits, failure):
                return None
            raise
        return row | times | {
            "round_s": finished_s - started_s,
            **self._parts.books.columns([*attempt.bills, bill], attempt.reserved_usd),
        }

    def _collect(self, round_index: int, try_index: int, weights: bytes, rejected: _Attempt | None) -> _Attempt | None:
        """Rolls the round's actors out; None if the budget does not hold even the smallest round."""
        parts, scaler = self._parts, self._parts.scaling.scaler
        wanted = rejected.decision.actor_count if rejected else scaler.first_wave(round_index)
        wanted = parts.progress.room_for(wanted)
        limits = parts.choose_limits(round_index)
        granted = self._meter.open_round(wanted, smallest=scaler.actors_min, limits=limits)
        parts.books.save()
        if granted == 0:
            parts.events.append("budget_exhausted", round_index=round_index, wanted=wanted,
                                free_usd=self._meter.free_usd)
            return None
        started_s = self._clock()
        collection = Collection(
            parts.sampler, self._meter, parts.failures, parts.events,
            self._spec(round_index, weights, limits, rejected),
            prefix=f"r{round_index}t{try_index}", attempts=self._settings.attempts,
            deadline_s=parts.by_the_clock(limits).collect_s, save_ledger=parts.books.save, clock=self._clock)
        try:
            parts.sampler.publish(parts.updating.updater.policy_version, weights)
            self._start(collection, range(granted))
            parts.saving.flush()
            if rejected:
                detected, detect_s, decision = rejected.detected, None, rejected.decision
                modelled_detect_s = None
            else:
                detected, detect_s = parts.detection.measure()
                modelled_detect_s = parts.detection.modelled_s(detected, detect_s)
                decision = parts.scaling.decide(round_index, detected)
                if granted == wanted:
                    granted += self._boost(collection, range(granted, parts.progress.room_for(decision.actor_count)))
            room = parts.progress.room_for(decision.actor_count)
            if room < decision.actor_count:
                parts.events.append("round_fitted", round_index=round_index, wanted=decision.actor_count, granted=room,
                                    reason="stop.max_steps has room for no more fragments")
            if granted < room:
                parts.events.append("round_shrunk", round_index=round_index, wanted=room, granted=granted,
                                    free_usd=self._meter.free_usd)
            reserved_usd = self._meter.reserved_usd
            collected = collection.finish()
            parts.books.save()
        except BaseException:
            with suppress(ActorError, RunError):
                collection.abandon("the run ends")
            parts.books.close_interrupted(collection.started, self._clock() - started_s)
            raise
        collect_s = self._clock() - started_s
        modelled_collect_s = min(
            self._modelled_collect_s(collected, min(wanted, granted), modelled_detect_s), limits.collect_s)
        parts.phases.saw(
            actor_s=max(collected.run_s, default=None), detect_s=modelled_detect_s,
            collect_s=parts.collected_s(collect_s, granted) if self._meter.is_by_the_clock else modelled_collect_s)
        return _Attempt(
            decision, detected, limits, granted, reserved_usd, collected, detect_s, modelled_detect_s, collect_s,
            modelled_collect_s, rejected.bills if rejected else [], rejected)

    def _spec(self, round_index: int, weights: bytes, limits: Limits, rejected: _Attempt | None) -> ActorSpec:
        fields = {}
        if raised := sum(one.collected.has_raising_slot for one in rejected.all_attempts) if rejected else 0:
            # The same numbers would raise again.
            fields["seed"] = int(np.random.SeedSequence((self._settings.seed, raised)).generate_state(1)[0])
        return self._settings.actor_spec(
            round_index, self._parts.updating.updater.policy_version, weights,
            limits=self._parts.by_the_clock(limits), **fields)

    def _start(self, collection: Collection, slots: range) -> None:
        """Starts actors for these slots; the oldest open episodes go to the lowest slots."""
        waiting = self._parts.episodes.waiting
        collection.start(slots, {slot: waiting[slot] for slot in slots if slot < len(waiting)})

    def _boost(self, collection: Collection, slots: range) -> int:
        granted = self._meter.reserve([Work(ACTOR, slot) for slot in slots])
        if granted:
            self._parts.books.save()
            self._start(collection, slots[:granted])
        return granted

    def _has_quorum(self, attempt: _Attempt) -> bool:
        # A hair less than the product, which can come out a hair too large.
        needed = math.ceil(self._settings.quorum * attempt.actor_count - 1e-9)
        return len(attempt.collected.trajectories) >= max(1, needed)

    def _reject(self, round_index: int, attempt: _Attempt) -> None:
        """Gives up an attempt: nothing of it is trained on, and no open episode is consumed."""
        self._parts.events.append("round_rejected", round_index=round_index, actor_count=attempt.actor_count,
                                  actors_returned=len(attempt.collected.trajectories))
        attempt.bills.append(self._meter.close_round(
            actors_started=attempt.actor_count, seconds=attempt.modelled_collect_s))
        self._parts.books.save()

    def _train(self, round_index: int, attempt: _Attempt) -> tuple[dict[str, Any], dict[str, Any]]:
        """Updates the policy, and takes in an evaluation that is due; returns the row's results and its times."""
        parts, attempts = self._parts, attempt.all_attempts
        updater, trajectories = parts.updating.updater, attempt.collected.trajectories
        detect_s = next((one.detect_s for one in attempts if one.detect_s is not None), None)
        policy_version = updater.policy_version
        limit_s = parts.by_the_clock(attempt.limits).update_s - (detect_s or 0.0)
        training = RoundTraining()
        update = parts.updating.train([trajectories[slot] for slot in sorted(trajectories)], training, limit_s)
        parts.detection.keep([update.samples])
        learn_s = training.learn_s
        decided = parts.evaluations.end_round(
            round_index, updater.weights, returns=training.episode_returns,
            idle_s=max(0.0, attempt.modelled_collect_s - (attempt.modelled_detect_s or 0.0)), limit_s=limit_s - learn_s)
        row = result_columns(
            round_index, training, decided, policy_version=policy_version, detected=attempt.detected,
            decision=attempt.decision, actor_count=attempt.actor_count,
            failed=sum(one.collected.failed for one in attempts), late=sum(one.collected.late for one in attempts),
            env_steps_total=parts.progress.env_steps_total)
        billed_s = [seconds for one in attempts for seconds in one.collected.billed_s]
        cpu_s = [seconds for one in attempts for seconds in one.collected.cpu_s]
        times = {
            "collect_s": sum(one.collect_s for one in attempts), "learn_s": learn_s, "detect_s": detect_s,
            "modelled_detect_s": next((one.modelled_detect_s for one in attempts if one.detect_s is not None), None),
            "modelled_learn_s": training.modelled_s,
            "modelled_round_s": sum(one.modelled_collect_s for one in attempts) + training.modelled_s,
            "actors_billed": len(billed_s),
            "actor_billed_s_mean": float(np.mean(billed_s)), "actor_billed_s_max": float(np.max(billed_s)),
            "actor_cpu_s_mean": float(np.mean(cpu_s)) if cpu_s else None,
        }
        parts.phases.saw(sample_s=training.modelled_s / training.env_steps, evaluate_s=decided.work_s)
        self._check_update_time(attempt.limits, (detect_s or 0.0) + learn_s + (decided.seconds or 0.0))
        return row, times

    def _modelled_collect_s(self, collected: Collected, first_wave: int, modelled_detect_s: float | None) -> float:
        """Seconds until all actors would be back, were each on a machine of its own.

        The first wave starts at once, the boost when the detector is done; the deadline ends both.
        """
        first_s = max((s for slot, s in collected.slot_s.items() if slot < first_wave), default=0.0)
        boost_s = max((s for slot, s in collected.slot_s.items() if slot >= first_wave), default=0.0)
        return min(max(first_s, (modelled_detect_s or 0.0) + boost_s), self._settings.round_deadline_s)

    def _check_update_time(self, limits: Limits, seconds: float) -> None:
        limit_s = self._parts.by_the_clock(limits).update_s
        if seconds > limit_s:
            raise BudgetError(f"detection, update and evaluation took {seconds:.1f} s, longer than the {limit_s} s "
                              "reserved for them; raise learner.update_timeout_s")
