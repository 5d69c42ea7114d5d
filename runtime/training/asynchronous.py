"""Asynchronous pacing: actors never wait for the learner, and the learner only when it has nothing to train on.

The scaler's number of actors starts, each with the newest weights, and as soon as one ends another takes its slot. The
learner takes in what is there, trains on it, and publishes the next version. A round ends with a fragment for each of
the scaler's actors, or with ``algorithm.round_steps``. Actors that are then in flight count for the round in which they
are taken in.

Staleness is bounded: an actor that the next update would leave more than ``algorithm.staleness_max`` versions behind
is given up before it, unless its trajectory is there already, which then is trained on in that very update.

docs/decisions/0011-asynchronous-rounds.md says why, and what follows from it for money, failures and resumptions.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lambda_actor.errors import ActorError, WireError
from runtime.errors import ActorsKeepFailingError, BudgetError, RunError
from runtime.ports.fleet import Outcome
from runtime.ports.learning import DetectorSamples
from runtime.ports.money import ACTOR, Limits, RoundBill, Work
from runtime.ports.sampling import Actor, Ended, OpenEpisodeRecord, Trajectory
from runtime.ports.scaling import Detected, ScalingDecision
from runtime.sampling.episodes import continued_episode
from runtime.training.detection import Measurement
from runtime.training.pacings import REJECTED_ROUNDS_MAX, Parts, result_columns
from runtime.training.updating import RoundTraining

_DETECTOR_PATIENCE_S = 5.0
"""Seconds that a run that ends waits for a measurement that nobody needs any more."""
_LOOK_S = 0.25
"""Seconds between two looks at the detector while it measures."""


@dataclass
class _Round:
    """One round until its row is written, rejected attempts at it included."""

    round_index: int
    policy_version: int
    started_s: float
    decision: ScalingDecision
    limits: Limits
    is_decided: bool = False
    detected: Detected | None = None
    detect_s: float | None = None
    modelled_detect_s: float | None = None
    deadline_s: float = 0.0
    ends_s: float = 0.0
    numbers: Iterator[int] = field(default_factory=itertools.count)
    training: RoundTraining = field(default_factory=RoundTraining)
    samples: deque[DetectorSamples] = field(default_factory=deque)
    arrived: list[Trajectory] = field(default_factory=list)
    billed_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    waited_s: float = 0.0
    most_in_flight: int = 0
    most_reserved_usd: float = 0.0
    failed: int = 0
    late: int = 0
    given_up: int = 0
    last_error: str = ""
    is_shrunk: bool = False
    bills: list[RoundBill] = field(default_factory=list)
    modelled_s: float = 0.0
    attempt_billed: int = 0
    attempt_learn_s: float = 0.0


class AsynchronousPacing:
    """A `runtime.training.pacings.Pacing` whose rounds are stretches of a stream."""

    def __init__(self, parts: Parts) -> None:
        """Takes the parts of the run."""
        self._parts, self._settings, self._clock = parts, parts.settings, parts.clock
        self._sampler, self._meter, self._events = parts.sampler, parts.books.meter, parts.events
        self._attempts: Counter[int] = Counter()
        self._weights = b""
        self._measurement: Measurement | None = None
        self._opened_s: float | None = None
        self._promised_usd = 0.0
        self._is_exhausted = False

    def close(self) -> None:
        """Gives up what is in flight, settles it, and ends the detector's thread."""
        if self._sampler.in_flight:
            self._events.append("actors_abandoned", reason="the run ends", count=len(self._sampler.in_flight))
        try:
            for _ in self._sampler.give_up_all():
                pass
            self._sampler.tidy()
        except (ActorError, RunError) as error:
            # Their reservations count as spent then.
            self._events.append("actors_not_settled", error=f"{type(error).__name__}: {error}")
        if self._opened_s is not None:
            self._parts.books.close_interrupted(0, self._clock() - self._opened_s)
        else:
            self._parts.books.forfeit()
        measurement, self._measurement = self._measurement, None
        if measurement is not None and (problem := measurement.end(_DETECTOR_PATIENCE_S)):
            self._events.append("detection_failed", error=problem)

    # One round

    def run_round(self, round_index: int) -> dict[str, Any] | None:
        """Runs one round to its end, as `runtime.training.pacings.Pacing` says.

        Raises:
            ActorsKeepFailingError: The circuit breaker, or too many attempts brought nothing.
            BudgetError: The round took longer than its reserved worst case.
        """
        current = _Round(round_index, self._parts.updating.updater.policy_version, self._clock(),
                         ScalingDecision(self._parts.scaling.scaler.first_wave(round_index)), self._meter.limits)
        try:
            return self._run(current)
        except BudgetError as error:
            if self._parts.books.is_lost(round_index, current.limits, error):
                return None
            raise

    def _run(self, current: _Round) -> dict[str, Any] | None:
        for _ in range(REJECTED_ROUNDS_MAX):
            if not self._open(current):
                return None
            self._sample(current)
            if current.training.trajectories:
                return self._finish(current)
            if self._is_exhausted:
                # Nothing more can come of this round.
                self._bill(current, 0.0)
                return None
            self._events.append("round_rejected", round_index=current.round_index, actor_count=current.most_in_flight,
                                actors_returned=0)
            self._bill(current, 0.0)
        raise ActorsKeepFailingError(
            f"round {current.round_index} brought no trajectory {REJECTED_ROUNDS_MAX} times in a row, each time until "
            "its deadline; the last actor's error: ", current.last_error)

    def _open(self, current: _Round) -> bool:
        """Reserves what stands for a round, and fills its slots; False if the budget does not hold it."""
        # What actors had reserved has come back since.
        self._is_exhausted = False
        current.limits = self._parts.choose_limits(current.round_index)
        if not self._meter.open_standing(current.limits):
            self._tell_exhausted(current)
            return False
        now_s = self._opened_s = self._clock()
        # Whatever is on disk does not know of this round.
        self._promised_usd = 0.0
        kept = self._parts.by_the_clock(current.limits)
        current.deadline_s = now_s + kept.collect_s
        current.ends_s = current.deadline_s + kept.update_s
        current.attempt_billed, current.attempt_learn_s = len(current.billed_s), current.training.modelled_s
        self._publish()
        self._measure(current)
        self._decide(current)
        self._fill(current)
        if self._sampler.in_flight:
            self._parts.saving.flush()
            return True
        self._tell_exhausted(current)
        self._bill(current, 0.0)
        return False

    def _sample(self, current: _Round) -> None:
        """Trains on what comes until the round is complete, its deadline has passed, or nothing more will come.

        If the budget holds no further actor, or not yet another round, those in flight are awaited in this one.
        """
        while (left_s := current.deadline_s - self._clock()) > 0:
            self._decide(current)
            if self._is_complete(current):
                break
            self._take_in(current, 0.0)
            self._fill(current)
            if self._has_minibatch(current) and self._train(current):
                continue
            if self._measurement and self._awaits_decision(current):
                self._measurement.wait(min(left_s, _LOOK_S))
                continue
            if self._replay(current):
                continue
            if not self._sampler.in_flight:
                break
            started_s = self._clock()
            self._take_in(current, min(left_s, _LOOK_S) if self._measurement else left_s)
            current.waited_s += self._clock() - started_s
        self._train(current)

    def _is_complete(self, current: _Round) -> bool:
        return (self._missing_steps(current) <= 0 and not self._is_exhausted and not self._awaits_decision(current)
                and (self._parts.holds(current.round_index + 1) or not self._sampler.in_flight))

    def _awaits_decision(self, current: _Round) -> bool:
        """Whether all that is due anyway has been trained on, and the scaler has yet to say how large the round is."""
        return not current.is_decided and self._settings.round_steps is None and self._missing_steps(current) <= 0

    def _missing_steps(self, current: _Round) -> int:
        """Environment steps that have yet to be trained on in this round."""
        fragment_steps = self._settings.fragment_steps
        missing = self._steps_wanted(current) - current.training.env_steps
        return min(missing, self._parts.progress.room_for(math.ceil(missing / fragment_steps)) * fragment_steps)

    def _steps_wanted(self, current: _Round) -> int:
        return self._settings.round_steps or current.decision.actor_count * self._settings.fragment_steps

    def _steps_arrived(self, current: _Round) -> int:
        """Environment steps that are trained on next."""
        return len(current.arrived) * self._settings.fragment_steps

    def _has_minibatch(self, current: _Round) -> bool:
        """Whether as much has arrived as a gradient step takes, or the round needs no more."""
        return self._steps_arrived(current) >= min(
            self._settings.minibatch_steps, max(1, self._missing_steps(current)))

    def _finish(self, current: _Round) -> dict[str, Any]:
        """Takes in an evaluation that is due, and bills the round; returns its row."""
        round_index, training = current.round_index, current.training
        decided = self._parts.evaluations.end_round(
            round_index, self._parts.updating.updater.weights, returns=training.episode_returns, idle_s=0.0,
            limit_s=self._limit_s(current))
        if self._clock() > current.ends_s:
            raise BudgetError("updates and evaluation went on after the round's deadline for more than the "
                              f"{self._parts.by_the_clock(current.limits).update_s:g} s that are reserved for them; "
                              "raise learner.update_timeout_s")
        self._parts.detection.keep(current.samples)
        self._tidy(current)
        row = result_columns(
            round_index, training, decided, policy_version=current.policy_version, detected=current.detected,
            decision=current.decision,
            actor_count=current.most_in_flight if self._settings.round_steps else training.trajectories,
            failed=current.failed, late=current.late, env_steps_total=self._parts.progress.env_steps_total)
        self._bill(current, decided.modelled_s or 0.0)
        return row | {
            "collect_s": current.waited_s, "learn_s": training.learn_s, "detect_s": current.detect_s,
            "round_s": self._clock() - current.started_s,
            "modelled_detect_s": current.modelled_detect_s, "modelled_learn_s": training.modelled_s,
            "modelled_round_s": current.modelled_s,
            "actors_billed": len(current.billed_s),
            "actor_billed_s_mean": float(np.mean(current.billed_s)) if current.billed_s else None,
            "actor_billed_s_max": max(current.billed_s, default=None),
            "actor_cpu_s_mean": float(np.mean(current.cpu_s)) if current.cpu_s else None,
            **self._parts.books.columns(current.bills, current.most_reserved_usd),
        }

    def _bill(self, current: _Round, evaluate_s: float) -> None:
        """Bills an attempt at a round, and an evaluation, for which the learner never waits; actors in flight go on."""
        learn_s = current.training.modelled_s - current.attempt_learn_s
        modelled_s = max(self._modelled_collect_s(current), learn_s)
        self._parts.phases.saw(
            collect_s=self._clock() - self._opened_s if self._meter.is_by_the_clock and self._opened_s else modelled_s,
            sample_s=learn_s / current.training.env_steps if current.training.env_steps else None,
            evaluate_s=evaluate_s or None, detect_s=current.modelled_detect_s)
        current.modelled_s += modelled_s
        self._opened_s = None
        current.bills.append(self._meter.close_round(actors_started=0, seconds=modelled_s + evaluate_s))

    def _modelled_collect_s(self, current: _Round) -> float:
        """Seconds until its trajectories, and the decision, would be there, were each actor on a machine of its own.

        As long as the slots are busy on average; the deadline ends it, and a round that misses steps lasts so long.
        """
        limit_s = min(self._settings.round_deadline_s, current.limits.collect_s)
        if self._clock() >= current.deadline_s and self._missing_steps(current) > 0:
            return limit_s
        decided_s = 0.0 if self._settings.round_steps else current.modelled_detect_s or 0.0
        busy_s = sum(current.billed_s[current.attempt_billed:]) / max(1, current.most_in_flight)
        return min(max(decided_s, busy_s), limit_s)

    def _tidy(self, current: _Round) -> None:
        """Lets the cache forget what nobody asks for any more, and tells what was amiss."""
        if self._missing_steps(current) > 0 and not self._is_exhausted:
            self._events.append("round_cut", round_index=current.round_index, env_steps=current.training.env_steps,
                                wanted=self._steps_wanted(current),
                                reason="its deadline passed; a longer fleet.round_deadline_s or a smaller "
                                       f"{'algorithm.round' if self._settings.round_steps else 'actor.fragment'}_steps "
                                       "would let it be complete")
        current.late = self._sampler.tidy()
        if current.late:
            self._events.append("trajectories_late", count=current.late)
        if current.given_up:
            limit = self._settings.staleness_max
            self._events.append("actors_abandoned", count=current.given_up,
                                reason=f"an update would have left them more than algorithm.staleness_max = {limit} "
                                       "versions behind")

    # Actors

    def _fill(self, current: _Round) -> None:
        """Starts actors in the free slots, as many as are wanted and the budget holds, the oldest episodes first."""
        slots = self._reserved_slots(current)
        self._promise(current)
        current.most_in_flight = max(current.most_in_flight, len(self._sampler.in_flight) + len(slots))
        if not slots:
            return
        waiting = self._waiting_episodes(current)
        spec = self._settings.actor_spec(
            current.round_index, self._parts.updating.updater.policy_version, self._weights,
            limits=self._parts.by_the_clock(current.limits))
        actors = []
        for slot in slots:
            number = next(current.numbers)
            actors.append(Actor(f"r{current.round_index}a{number}", spec, self._work(slot), number,
                                next(waiting, None)))
            if self._attempts[slot]:
                self._events.append("actor_replaced", slot=slot, attempt=self._attempts[slot])
        self._sampler.start(actors)

    def _reserved_slots(self, current: _Round) -> list[int]:
        """The lowest free slots, each with its worst case reserved; none if too few would be in flight."""
        if self._is_exhausted or self._missing_steps(current) <= 0:
            return []
        in_flight, wanted = len(self._sampler.in_flight), self._in_flight_wanted(current)
        taken = {actor.work.slot for actor in self._sampler.in_flight.values()}
        free = (slot for slot in itertools.count() if slot not in taken)
        slots: list[int] = []
        while in_flight + len(slots) < wanted:
            slot = next(free)
            if not self._meter.reserve([self._work(slot)]):
                self._shrunk(current, in_flight + len(slots))
                if in_flight + len(slots) < min(wanted, self._parts.scaling.scaler.actors_min):
                    self._is_exhausted = True
                    for reserved in slots:
                        self._meter.settle(self._work(reserved), None)
                    return []
                break
            slots.append(slot)
        return slots

    def _in_flight_wanted(self, current: _Round) -> int:
        """Actors to keep in flight: towards a round's end as many as it misses, and as are due in the next one anyway.

        Otherwise those that a boosted round leaves in flight would be samples of many smaller rounds to come. A round
        of ``algorithm.round_steps`` keeps its count to the end. None plays what ``stop.max_steps`` has no room for.
        """
        wanted, arrived = current.decision.actor_count, len(current.arrived)
        if self._settings.round_steps is None:
            missing = math.ceil(self._missing_steps(current) / self._settings.fragment_steps) - arrived
            wanted = min(wanted, missing + self._parts.scaling.scaler.first_wave(current.round_index + 1))
        coming = len(self._sampler.awaited) + arrived
        room = self._parts.progress.room_for(coming + wanted) - coming
        return min(wanted, len(self._sampler.in_flight) + room)

    def _waiting_episodes(self, current: _Round) -> Iterator[OpenEpisodeRecord]:
        """Open episodes that no actor continues and whose size is paid for, the oldest first."""
        bytes_max = self._parts.by_the_clock(current.limits).episode_bytes
        taken = {actor.episode_id for actor in self._sampler.awaited}
        taken |= {continued_episode(trajectory) for trajectory in current.arrived}
        return (record for record in self._parts.episodes.not_in(taken)
                if bytes_max is None or len(record.data) <= bytes_max)

    def _promise(self, current: _Round) -> None:
        """Has the ledger on disk cover all that is reserved now, and some actors ahead, so that few writes do."""
        current.most_reserved_usd = max(current.most_reserved_usd, self._meter.reserved_usd)
        if self._parts.books.promised_usd > self._promised_usd:
            with self._meter.ahead(math.ceil(current.decision.actor_count / 4)):
                self._parts.books.save()
                self._promised_usd = self._parts.books.promised_usd

    def _shrunk(self, current: _Round, granted: int) -> None:
        if not current.is_shrunk:
            self._events.append("round_shrunk", round_index=current.round_index, wanted=current.decision.actor_count,
                                granted=granted, free_usd=self._meter.free_usd)
        current.is_shrunk = True

    def _tell_exhausted(self, current: _Round) -> None:
        self._events.append("budget_exhausted", round_index=current.round_index, wanted=current.decision.actor_count,
                            free_usd=self._meter.free_usd)

    def _take_in(self, current: _Round, timeout_s: float) -> None:
        """Takes in what has ended, as much as the round misses; waits for the first one, at most ``timeout_s``.

        The rest is taken in by the next round. A round that misses nothing awaits those in flight, and takes in all.
        """
        while not (0 < self._missing_steps(current) <= self._steps_arrived(current) or self._awaits_decision(current)):
            if (ended := self._sampler.next(timeout_s)) is None:
                break
            self._ended(current, ended)
            timeout_s = 0.0

    def _ended(self, current: _Round, ended: Ended) -> None:
        slot = ended.actor.work.slot
        if ended.seconds is not None:
            current.billed_s.append(ended.seconds)
            self._parts.phases.saw(actor_s=ended.outcome.billed_s)
        if ended.outcome.cpu_s:
            current.cpu_s.append(ended.outcome.cpu_s)
        if ended.trajectory is not None:
            self._arrived(current, ended.actor, ended.trajectory)
        elif ended.was_given_up:
            current.failed += ended.seconds is not None
            self._attempts[slot] = 0
        elif not ended.was_delivered:
            self._failed(current, ended.actor, ended.outcome, ended.reason)

    def _arrived(self, current: _Round, actor: Actor, trajectory: Trajectory) -> None:
        current.arrived.append(trajectory)
        self._attempts[actor.work.slot] = 0
        self._parts.failures.succeeded(actor)

    def _failed(self, current: _Round, actor: Actor, outcome: Outcome, reason: str) -> None:
        current.failed += 1
        current.last_error = reason
        self._attempts[actor.work.slot] += 1
        self._parts.failures.failed(actor, outcome, reason)

    def _work(self, slot: int) -> Work:
        return Work(ACTOR, slot, self._attempts[slot])

    # The learner

    def _train(self, current: _Round) -> bool:
        """Trains on what has arrived; False if nothing has."""
        if not current.arrived:
            return False
        self._give_up_stale(current)
        trajectories, current.arrived = current.arrived, []
        update = self._parts.updating.train(trajectories, current.training, self._limit_s(current))
        if self._parts.detection.is_wanted:
            current.samples.append(update.samples)
            while sum(map(_size, current.samples)) - _size(current.samples[0]) >= self._settings.subset_size:
                current.samples.popleft()
        self._publish()
        return True

    def _replay(self, current: _Round) -> bool:
        """Trains on what the updater keeps; False if it may not, or somebody in flight would get too stale by it."""
        versions = [*(actor.policy_version for actor in self._sampler.awaited),
                    *(int(trajectory["policy_version"]) for trajectory in current.arrived)]
        if any(map(self._is_stale, versions)) or self._has_learned_enough(current):
            return False
        if not self._parts.updating.replay(current.training, self._limit_s(current)):
            return False
        self._publish()
        return True

    def _has_learned_enough(self, current: _Round) -> bool:
        """Whether tightened limits have no time for replays."""
        learned_s = current.training.modelled_s - current.attempt_learn_s
        return current.limits.is_tightened and learned_s >= current.limits.collect_s

    def _give_up_stale(self, current: _Round) -> None:
        """Gives up whom the next update would leave too far behind; what of theirs is accepted already has arrived."""
        for actor in [actor for actor in self._sampler.awaited if self._is_stale(actor.policy_version)]:
            try:
                trajectory = self._sampler.deliver(actor)
            except WireError as error:
                reason = f"{type(error).__name__}: {error}"
                self._failed(current, actor, Outcome(actor.invocation_id, "ok"), reason)
                continue
            if trajectory is None:
                current.given_up += 1
            else:
                self._arrived(current, actor, trajectory)

    def _is_stale(self, policy_version: int) -> bool:
        """Whether the next update would leave what that version samples too far behind."""
        return self._parts.updating.updater.policy_version + 1 - policy_version > self._settings.staleness_max

    def _publish(self) -> None:
        updater = self._parts.updating.updater
        self._weights = updater.weights()
        self._sampler.publish(updater.policy_version, self._weights)

    def _limit_s(self, current: _Round) -> float:
        """What is left of the reserved time, but no more than one update may take."""
        return min(current.ends_s - self._clock(), self._parts.by_the_clock(current.limits).update_s)

    # The detector

    def _measure(self, current: _Round) -> None:
        """Begins to measure the newest policy on the last round's samples, unless a measurement still goes on."""
        if not current.is_decided and self._measurement is None:
            self._measurement = self._parts.detection.begin()

    def _decide(self, current: _Round) -> None:
        """Asks the scaler once a round, when the detector is done, or at once if it has nothing to measure."""
        if current.is_decided:
            return
        if self._measurement and not self._measurement.is_done:
            self._tell_if_slow(self._measurement)
            return
        if self._measurement:
            measurement, self._measurement = self._measurement, None
            current.detected, current.detect_s = self._parts.detection.result(measurement)
            current.modelled_detect_s = self._parts.detection.modelled_s(current.detected, current.detect_s)
        current.decision = self._parts.scaling.decide(current.round_index, current.detected)
        current.is_decided = True

    def _tell_if_slow(self, measurement: Measurement) -> None:
        """Once a measurement: until it is done, rounds have no score."""
        limit_s = self._meter.limits.update_s
        if measurement.lasts_s > limit_s and not measurement.is_told:
            measurement.is_told = True
            self._events.append("detection_slow", after_s=limit_s, reason="a smaller detector.subset_size or "
                                "detector.lanczos_steps makes it faster")


def _size(samples: DetectorSamples) -> int:
    return len(samples.advantages)
