"""The round loop: one for every algorithm, scaler and fleet.

A round, numbered from 1:

    1. the policy's weights are published, and the actors that are due whatever the score start at once;
    2. meanwhile the detector measures the convexity ratio of that policy on the last round's samples;
    3. the scaler turns it into a number of actors, and the missing ones start with the same weights;
    4. all are awaited, their trajectories aggregated in slot order, and the policy is updated;
    5. the round's row and a checkpoint are written.

Before anything of a round starts, its worst case is reserved in the budget.

Paper: Nitro §4, Fig. 6.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from lambda_actor.errors import ActorError
from runtime.checkpoint import Checkpoint
from runtime.collection import ActorSpec, CircuitBreaker, Collected, Collection
from runtime.config import Experiment
from runtime.errors import ActorsKeepFailingError, BudgetError, CheckpointError, RunError
from runtime.interfaces import (
    Cache,
    CostMeter,
    Curvature,
    Detector,
    DetectorSamples,
    Evaluation,
    Fleet,
    Learner,
    LearnerState,
    OpenEpisodeRecord,
    RoundBill,
    Scaler,
    ScalingDecision,
)
from runtime.learner.batch import assemble_batch
from runtime.records import EventLog

_REJECTED_ROUNDS_MAX = 3
_CONTINUATIONS_RAISED_MAX = 2


@dataclass
class Progress:
    """What a run has done so far."""

    round_index: int = 0
    env_steps_total: int = 0
    evaluation_return_mean: float | None = None
    evaluation_round: int | None = None


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


class RoundLoop:
    """Runs rounds until a reason to stop; composes the parts and owns none of their work."""

    def __init__(
        self,
        experiment: Experiment,
        *,
        learner: Learner,
        detector: Detector,
        scaler: Scaler,
        fleet: Fleet,
        cache: Cache,
        meter: CostMeter,
        evaluate: Callable[[bytes], Evaluation],
        events: EventLog,
        event_fields: Mapping[str, Any],
        sizes: tuple[int, int],
        save_ledger: Callable[[], None],
        save_round: Callable[[dict[str, Any], Checkpoint], None],
        shield: Callable[[], AbstractContextManager] = nullcontext,
        time_limit: Callable[[float, str], AbstractContextManager] = lambda seconds, what: nullcontext(),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
            experiment: Resolved.
            evaluate: Returns an evaluation of a policy given as a weights message.
            event_fields: Fields of every actor's event that no round changes.
            sizes: Observation and action size.
            save_ledger: Puts the meter's state on disk.
            save_round: Puts a finished round's row and checkpoint on disk.
            shield: Entered around writes that an interrupt must not cut in two.
            time_limit: Entered with seconds and a name around what is reserved for so long; raises `BudgetError`.
            clock: Monotonic seconds.
        """
        self._experiment = experiment
        self._learner, self._detector, self._scaler = learner, detector, scaler
        self._fleet, self._cache, self._meter = fleet, cache, meter
        self._evaluate, self._events, self._event_fields, self._sizes = evaluate, events, event_fields, sizes
        self._save_ledger, self._save_round, self._shield, self._clock = save_ledger, save_round, shield, clock
        self._time_limit = time_limit
        self._breaker = CircuitBreaker(experiment.fleet.failures_max)
        self._samples: DetectorSamples | None = None
        self._episodes: list[OpenEpisodeRecord] = []
        self._suspects: Counter[str] = Counter()
        self.progress = Progress()

    def run(self) -> str:
        """Runs until there is a reason to stop, and returns it: target_return, max_rounds, max_steps or budget.

        Raises:
            ActorsKeepFailingError: The circuit breaker.
            BudgetError: A round took longer than its reserved worst case.
        """
        while (reason := self._stop_reason()) is None:
            if not self._round(self.progress.round_index + 1):
                return "budget"
        return reason

    def _stop_reason(self) -> str | None:
        stop, progress = self._experiment.stop, self.progress
        if (stop.target_return is not None and progress.evaluation_round == progress.round_index
                and progress.evaluation_return_mean is not None
                and progress.evaluation_return_mean >= stop.target_return):
            return "target_return"
        if stop.max_rounds is not None and progress.round_index >= stop.max_rounds:
            return "max_rounds"
        if stop.max_steps is not None and progress.env_steps_total >= stop.max_steps:
            return "max_steps"
        return None

    # One round

    def _round(self, round_index: int) -> bool:
        """Runs one round to its end; False where the budget does not hold it."""
        started_s = self._clock()
        weights = self._learner.weights()
        attempt = None
        for try_index in range(_REJECTED_ROUNDS_MAX):
            attempt = self._collect(round_index, try_index, weights, attempt)
            if attempt is None:
                return False
            if self._has_quorum(attempt):
                break
            self._reject(round_index, attempt)
        else:
            raise ActorsKeepFailingError(
                f"round {round_index} missed its quorum {_REJECTED_ROUNDS_MAX} times in a row (fleet.quorum = "
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
        bills = [*attempt.bills, bill]
        row |= metrics_s | {
            "round_s": finished_s - started_s - (metrics_s["evaluate_s"] or 0.0),
            **{name: sum(getattr(one, name) for one in bills) for name in vars(bill)},
            "spent_usd": self._meter.spent_usd,
            "reserved_usd": self._meter.reserved_usd,
            "round_reserved_usd": attempt.reserved_usd,
        }
        with self._shield():
            self.progress.round_index = round_index
            self._save_round(row, self._checkpoint())
            self._save_ledger()
        return True

    def _collect(self, round_index: int, try_index: int, weights: bytes, rejected: _Attempt | None) -> _Attempt | None:
        """Rolls the round's actors out; null where the budget does not hold even the smallest round."""
        wanted = rejected.decision.actor_count if rejected else self._scaler.first_wave(round_index)
        granted = self._meter.open_round(wanted, smallest=self._scaler.smallest_round)
        self._save_ledger()
        if granted == 0:
            self._events.append("budget_exhausted", round_index=round_index, wanted=wanted,
                                free_usd=self._meter.free_usd)
            return None
        started_s = self._clock()
        collection = Collection(
            self._fleet, self._cache, self._meter, self._events, self._breaker,
            self._actor_spec(round_index, weights, rejected),
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
                decision = self._scaler.decide(round_index, curvature.convexity_ratio if curvature else None)
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

    @property
    def _deadline_s(self) -> float:
        """The deadline of actors that all run at once, as many times longer as the fleet has to queue them.

        The bill is modelled as if they all ran at once.
        """
        return self._experiment.fleet.round_deadline_s * self._experiment.waves(self._fleet.concurrency)

    def _start(self, collection: Collection, slots: range) -> None:
        """Starts actors for these slots; the oldest open episodes go to the lowest slots."""
        collection.start(slots, {slot: self._episodes[slot] for slot in slots if slot < len(self._episodes)})

    def _boost(self, collection: Collection, slots: range) -> int:
        granted = self._meter.add_actors(slots)
        if granted:
            self._save_ledger()
            self._start(collection, slots[:granted])
        return granted

    def _detect(self) -> tuple[Curvature | None, float | None]:
        if not self._scaler.needs_ratio or self._samples is None:
            return None, None
        started_s = self._clock()
        with self._time_limit(self._experiment.learner.update_timeout_s, "detection"):
            curvature = self._detector.measure(self._learner, self._samples)
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
        self._drop_poisonous_episodes(attempt.collected)
        self._save_ledger()

    def _train(self, round_index: int, attempt: _Attempt) -> tuple[dict[str, Any], dict[str, Any]]:
        """Updates the policy and evaluates it; returns the row's results and its times."""
        collected, attempts = attempt.collected, attempt.all_attempts
        detect_s = next((one.detect_s for one in attempts if one.detect_s is not None), None)
        self._drop_poisonous_episodes(collected)
        trajectories = [collected.trajectories[slot] for slot in sorted(collected.trajectories)]
        batch = assemble_batch(trajectories)
        policy_version = batch.policy_version
        limit_s = self._experiment.learner.update_timeout_s - (detect_s or 0.0)
        started_s = self._clock()
        with self._time_limit(limit_s, "the update"):
            metrics, samples = self._learner.update(batch, progress=self._fraction_done())
        learn_s = self._clock() - started_s
        _check_finite(round_index, vars(metrics))
        self._samples = self._detector.select(samples) if self._scaler.needs_ratio else None
        self._update_episodes(round_index, collected)
        episodes = _episode_statistics(trajectories, policy_version)
        self.progress.env_steps_total += batch.env_steps
        evaluation, evaluate_s = self._evaluate_if_due(round_index, limit_s - learn_s)
        curvature, decision = attempt.curvature, attempt.decision
        row = {
            "round_index": round_index, "policy_version": policy_version,
            "eigenvalue_min": curvature.eigenvalue_min if curvature else None,
            "eigenvalue_max": curvature.eigenvalue_max if curvature else None,
            "convexity_ratio": curvature.convexity_ratio if curvature else None,
            "boosting_score": decision.boosting_score, "decay_weight": decision.decay_weight,
            "actor_count_wanted": decision.actor_count, "actor_count": attempt.actor_count,
            "actors_returned": len(trajectories), "actors_failed": sum(one.collected.failed for one in attempts),
            "actors_late": sum(one.collected.late for one in attempts),
            "env_steps": batch.env_steps, "env_steps_total": self.progress.env_steps_total,
            **episodes,
            "evaluation_return_mean": evaluation.return_mean if evaluation else None,
            **vars(metrics),
        }
        billed_s = [seconds for one in attempts for seconds in one.collected.billed_s]
        times = {
            "collect_s": sum(one.collect_s for one in attempts), "learn_s": learn_s, "detect_s": detect_s,
            "evaluate_s": evaluate_s,
            "modelled_round_s": sum(one.modelled_collect_s for one in attempts) + learn_s,
            "actor_billed_s_mean": float(np.mean(billed_s)), "actor_billed_s_max": float(np.max(billed_s)),
        }
        self._check_update_time((detect_s or 0.0) + learn_s + (evaluate_s or 0.0))
        return row, times

    def _update_episodes(self, round_index: int, collected: Collected) -> None:
        """Removes the open episodes that were continued, and queues those that were left open, in slot order."""
        continued = {bytes(t["continued_episode"]).decode() for t in collected.trajectories.values()}
        self._episodes = [record for record in self._episodes if record.episode_id not in continued] + [
            OpenEpisodeRecord(f"{round_index}-{slot}", bytes(trajectory["open_episode"]))
            for slot, trajectory in sorted(collected.trajectories.items()) if len(trajectory["open_episode"])]

    def _drop_poisonous_episodes(self, collected: Collected) -> None:
        """Removes open episodes whose every continuation raised, twice over: they would raise for ever."""
        self._suspects.update(collected.raising_episodes)
        dropped = {episode_id for episode_id, times in self._suspects.items() if times >= _CONTINUATIONS_RAISED_MAX}
        for episode_id in sorted(dropped):
            self._events.append("episode_dropped", episode_id=episode_id, error=collected.last_error)
            del self._suspects[episode_id]
        self._episodes = [one for one in self._episodes if one.episode_id not in dropped]

    def _evaluate_if_due(self, round_index: int, limit_s: float) -> tuple[Evaluation | None, float | None]:
        every_rounds, stop = self._experiment.evaluation.every_rounds, self._experiment.stop
        is_last = ((stop.max_rounds is not None and round_index >= stop.max_rounds)
                   or (stop.max_steps is not None and self.progress.env_steps_total >= stop.max_steps))
        if every_rounds == 0 or (round_index % every_rounds and not is_last):
            return None, None
        started_s = self._clock()
        with self._time_limit(max(limit_s, 0.001), "the evaluation"):
            evaluation = self._evaluate(self._learner.weights())
        self.progress.evaluation_return_mean = evaluation.return_mean
        self.progress.evaluation_round = round_index
        return evaluation, self._clock() - started_s

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

    def _close_interrupted(self, actors_started: int, seconds: float) -> None:
        """Settles a round that does not end; its learner is billed for the time that passed here."""
        try:
            self._meter.close_round(actors_started=actors_started, seconds=seconds)
        except BudgetError as error:
            self._events.append("reservation_exceeded", error=str(error))
        self._meter.forfeit()
        self._save_ledger()

    def _fraction_done(self) -> float:
        stop = self._experiment.stop
        fractions = [0.0]
        if stop.max_rounds is not None:
            fractions.append(self.progress.round_index / stop.max_rounds)
        if stop.max_steps is not None:
            fractions.append(self.progress.env_steps_total / stop.max_steps)
        return min(1.0, max(fractions))

    def _actor_spec(self, round_index: int, weights: bytes, rejected: _Attempt | None) -> ActorSpec:
        observation_size, action_size = self._sizes
        fields = {"policy_version": self._learner.policy_version, "round_index": round_index}
        raised = sum(one.collected.has_raising_slot for one in rejected.all_attempts) if rejected else 0
        if raised:
            # The same numbers would raise again.
            fields["seed"] = int(np.random.SeedSequence((self._experiment.seed, raised)).generate_state(1)[0])
        return ActorSpec(
            event={**self._event_fields, **fields},
            observation_size=observation_size, action_size=action_size, weights_bytes=len(weights),
            timeout_s=self._experiment.actor.timeout_s)

    # Checkpoint and resume

    def _checkpoint(self) -> Checkpoint:
        learner = self._learner.get_state()
        _check_finite(self.progress.round_index, {name: float(array.sum()) for name, array in learner.arrays.items()})
        arrays = {f"learner.{name}": array for name, array in learner.arrays.items()}
        if self._samples is not None:
            arrays |= {f"samples.{name}": array for name, array in vars(self._samples).items()}
        arrays |= {f"episode.{i}": np.frombuffer(record.data, np.uint8) for i, record in enumerate(self._episodes)}
        return Checkpoint(self.progress.round_index, arrays, {
            "learner": learner.values,
            "scaler": self._scaler.get_state(),
            "meter": self._meter.get_state(),
            "progress": dict(vars(self.progress)),
            "episode_ids": [record.episode_id for record in self._episodes],
        })

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continues after ``checkpoint``, as if the run had never ended.

        Raises:
            CheckpointError: It belongs to another network.
        """
        try:
            self._restore(checkpoint)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"the checkpoint of round {checkpoint.round_index} does not fit this program: "
                                  f"{type(error).__name__}: {error}") from error

    def _restore(self, checkpoint: Checkpoint) -> None:
        parts: dict[str, dict[str, np.ndarray]] = {"learner": {}, "samples": {}, "episode": {}}
        for name, array in checkpoint.arrays.items():
            part, _, rest = name.partition(".")
            parts[part][rest] = array.copy()
        values = checkpoint.values
        self._learner.set_state(LearnerState(parts["learner"], values["learner"]))
        self._scaler.set_state(values["scaler"])
        self._meter.set_state(values["meter"])
        self._samples = DetectorSamples(**parts["samples"]) if parts["samples"] else None
        self._episodes = [OpenEpisodeRecord(episode_id, parts["episode"][str(i)].tobytes())
                          for i, episode_id in enumerate(values["episode_ids"])]
        self.progress = Progress(**values["progress"])


def _check_finite(round_index: int, metrics: Mapping[str, float | None]) -> None:
    for name, value in metrics.items():
        if value is not None and not math.isfinite(value):
            raise RunError(f"training diverged in round {round_index}: {name} is {value}; a smaller "
                           "algorithm.ppo.learning_rate may help. The last checkpoint is from before that round")


def _episode_statistics(trajectories: list[dict[str, np.ndarray]], policy_version: int) -> dict[str, Any]:
    returns = np.concatenate([t["episode_returns"] for t in trajectories])
    lengths = np.concatenate([t["episode_lengths"] for t in trajectories])
    first_versions = np.concatenate([t["episode_first_versions"] for t in trajectories])
    return {
        "episode_return_mean": float(returns.mean()) if len(returns) else None,
        "episode_length_mean": float(lengths.mean()) if len(lengths) else None,
        "episodes_finished": len(returns),
        "episodes_spanning_versions": int((first_versions != policy_version).sum()),
    }


