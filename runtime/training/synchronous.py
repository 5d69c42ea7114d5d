"""Synchronous rounds: all actors of a round roll out the same policy, and the update waits for them.

A round, numbered from 1:

    1. the policy's weights are published, and the actors that are due whatever the score start at once;
    2. meanwhile the detector measures the convexity ratio of that policy on the last round's samples;
    3. the scaler turns it into a number of actors, and the missing ones start with the same weights;
    4. all are awaited, their trajectories aggregated in slot order, and the policy is updated;
    5. the round's row and a checkpoint are written.

Before anything of a round starts, its worst case is reserved in the budget.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from lambda_actor.errors import ActorError
from runtime.errors import ActorsKeepFailingError, BudgetError, RunError
from runtime.interfaces import ACTOR, Curvature, RoundBill, ScalingDecision, Work
from runtime.sampling.actors import ActorSpec, Collected, Collection
from runtime.training.loop import REJECTED_ROUNDS_MAX, RoundLoop, Training


@dataclass
class _Attempt:
    """One attempt at a round, until it is accepted."""

    decision: ScalingDecision
    curvature: Curvature | None
    actor_count: int
    reserved_usd: float
    collected: Collected
    detect_s: float | None
    collect_s: float
    modelled_collect_s: float
    bills: list[RoundBill]
    rejected: _Attempt | None

    @property
    def all_attempts(self) -> list[_Attempt]:
        """The rejected attempts at this round, oldest first, and this one."""
        return [*(self.rejected.all_attempts if self.rejected else []), self]


class SynchronousRounds(RoundLoop):
    """Rounds whose actors start and end together."""

    def _round(self, round_index: int) -> bool:
        started_s = self._clock()
        weights = self._learner.weights()
        attempt = None
        for try_index in range(REJECTED_ROUNDS_MAX):
            attempt = self._collect(round_index, try_index, weights, attempt)
            if attempt is None:
                return False
            if self._has_quorum(attempt):
                break
            self._reject(round_index, attempt)
        else:
            raise ActorsKeepFailingError(
                f"round {round_index} missed its quorum {REJECTED_ROUNDS_MAX} times in a row (fleet.quorum = "
                f"{self._experiment.fleet.quorum}); the last actor's error: {attempt.collected.last_error or 'none'}")
        train_started_s = self._clock()
        try:
            row, metrics_s = self._train(round_index, attempt)
        except BaseException:
            self._close_interrupted(
                attempt.actor_count, attempt.modelled_collect_s + self._clock() - train_started_s)
            raise
        finished_s = self._clock()
        bill = self._meter.close_round(
            actors_started=attempt.actor_count,
            seconds=attempt.modelled_collect_s + metrics_s["learn_s"] + (metrics_s["evaluate_s"] or 0.0))
        row |= metrics_s | {
            "round_s": finished_s - started_s - (metrics_s["evaluate_s"] or 0.0),
            **self._costs([*attempt.bills, bill], attempt.reserved_usd),
        }
        with self._shield():
            self.progress.round_index = round_index
            self._observe(row)
            self._save_round(row, self._checkpoint())
            self._save_ledger()
        return True

    def _collect(self, round_index: int, try_index: int, weights: bytes, rejected: _Attempt | None) -> _Attempt | None:
        """Rolls the round's actors out; null where the budget does not hold even the smallest round."""
        wanted = rejected.decision.actor_count if rejected else self._scaler.first_wave(round_index)
        granted = self._meter.open_round(wanted, smallest=self._scaler.actors_min)
        self._save_ledger()
        if granted == 0:
            self._events.append("budget_exhausted", round_index=round_index, wanted=wanted,
                                free_usd=self._meter.free_usd)
            return None
        started_s = self._clock()
        collection = Collection(
            self._fleet, self._cache, self._meter, self._events, self._breaker,
            self._spec(round_index, weights, rejected),
            prefix=f"r{round_index}t{try_index}", attempts=self._experiment.fleet.attempts,
            deadline_s=self._deadline_s, save_ledger=self._save_ledger, clock=self._clock)
        try:
            self._cache.publish_weights(self._learner.policy_version, weights)
            self._cache.forget_weights(self._learner.policy_version - 1)
            self._start(collection, range(granted))
            if rejected:
                curvature, detect_s, decision = rejected.curvature, None, rejected.decision
            else:
                curvature, detect_s = self._detect()
                decision = self._scale(round_index, curvature)
                if granted == wanted:
                    granted += self._boost(collection, range(granted, decision.actor_count))
            if granted < decision.actor_count:
                self._events.append("round_shrunk", round_index=round_index, wanted=decision.actor_count,
                                    granted=granted, free_usd=self._meter.free_usd)
            reserved_usd = self._meter.reserved_usd
            collected = collection.finish()
            self._save_ledger()
        except BaseException:
            with suppress(ActorError, RunError):
                collection.abandon("the run ends")
            self._close_interrupted(collection.started, self._clock() - started_s)
            raise
        return _Attempt(
            decision, curvature, granted, reserved_usd, collected, detect_s, self._clock() - started_s,
            self._modelled_collect_s(collected, min(wanted, granted), detect_s), rejected.bills if rejected else [],
            rejected)

    def _spec(self, round_index: int, weights: bytes, rejected: _Attempt | None) -> ActorSpec:
        raised = sum(one.collected.has_raising_slot for one in rejected.all_attempts) if rejected else 0
        if not raised:
            return self._actor_spec(round_index, weights)
        # The same numbers would raise again.
        seed = int(np.random.SeedSequence((self._experiment.seed, raised)).generate_state(1)[0])
        return self._actor_spec(round_index, weights, seed=seed)

    def _start(self, collection: Collection, slots: range) -> None:
        """Starts actors for these slots; the oldest open episodes go to the lowest slots."""
        collection.start(slots, {slot: self._episodes[slot] for slot in slots if slot < len(self._episodes)})

    def _boost(self, collection: Collection, slots: range) -> int:
        granted = self._meter.reserve([Work(ACTOR, slot) for slot in slots])
        if granted:
            self._save_ledger()
            self._start(collection, slots[:granted])
        return granted

    def _detect(self) -> tuple[Curvature | None, float | None]:
        if not self._reads("convexity_ratio") or self._samples is None:
            return None, None
        started_s = self._clock()
        with self._time_limit(self._experiment.learner.update_timeout_s, "detection"):
            curvature = self._detector.measure(
                self._learner.curvature_problem(self._detector.objective, self._samples))
        return curvature, self._clock() - started_s

    def _has_quorum(self, attempt: _Attempt) -> bool:
        # A hair less than the product, which can come out a hair too large.
        needed = math.ceil(self._experiment.fleet.quorum * attempt.actor_count - 1e-9)
        return len(attempt.collected.trajectories) >= max(1, needed)

    def _reject(self, round_index: int, attempt: _Attempt) -> None:
        """Gives up an attempt: nothing of it is trained on, and no open episode is consumed."""
        self._events.append("round_rejected", round_index=round_index, actor_count=attempt.actor_count,
                            actors_returned=len(attempt.collected.trajectories))
        attempt.bills.append(self._meter.close_round(
            actors_started=attempt.actor_count, seconds=attempt.modelled_collect_s))
        self._drop_poisonous_episodes(attempt.collected.raising_episodes, attempt.collected.last_error)
        self._save_ledger()

    def _train(self, round_index: int, attempt: _Attempt) -> tuple[dict[str, Any], dict[str, Any]]:
        """Updates the policy and evaluates it; returns the row's results and its times."""
        collected, attempts = attempt.collected, attempt.all_attempts
        detect_s = next((one.detect_s for one in attempts if one.detect_s is not None), None)
        self._drop_poisonous_episodes(collected.raising_episodes, collected.last_error)
        policy_version = self._learner.policy_version
        limit_s = self._experiment.learner.update_timeout_s - (detect_s or 0.0)
        training = Training()
        update = self._update(round_index, [collected.trajectories[slot] for slot in sorted(collected.trajectories)],
                              training, limit_s)
        self._samples = self._detector.select(update.samples) if self._reads("convexity_ratio") else None
        learn_s = training.learn_s
        evaluation, evaluate_s = self._evaluate_if_due(round_index, limit_s - learn_s)
        row = self._results(
            round_index, training, evaluation, policy_version=policy_version, curvature=attempt.curvature,
            decision=attempt.decision, actor_count=attempt.actor_count,
            failed=sum(one.collected.failed for one in attempts), late=sum(one.collected.late for one in attempts))
        billed_s = [seconds for one in attempts for seconds in one.collected.billed_s]
        times = {
            "collect_s": sum(one.collect_s for one in attempts), "learn_s": learn_s, "detect_s": detect_s,
            "evaluate_s": evaluate_s,
            "modelled_round_s": sum(one.modelled_collect_s for one in attempts) + learn_s,
            "actors_billed": len(billed_s),
            "actor_billed_s_mean": float(np.mean(billed_s)), "actor_billed_s_max": float(np.max(billed_s)),
        }
        self._check_update_time((detect_s or 0.0) + learn_s + (evaluate_s or 0.0))
        return row, times

    def _modelled_collect_s(self, collected: Collected, first_wave: int, detect_s: float | None) -> float:
        """Seconds until all actors would be back, were each on a machine of its own.

        The first wave starts at once, the boost when the detector is done; the deadline ends both.
        """
        first_s = max((s for slot, s in collected.slot_s.items() if slot < first_wave), default=0.0)
        boost_s = max((s for slot, s in collected.slot_s.items() if slot >= first_wave), default=0.0)
        return min(max(first_s, (detect_s or 0.0) + boost_s), self._experiment.fleet.round_deadline_s)

    def _check_update_time(self, seconds: float) -> None:
        limit_s = self._experiment.learner.update_timeout_s
        if seconds > limit_s:
            raise BudgetError(f"detection, update and evaluation took {seconds:.1f} s, longer than the {limit_s} s "
                              "reserved for them; raise learner.update_timeout_s")
