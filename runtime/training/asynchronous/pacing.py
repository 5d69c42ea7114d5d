"""Asynchronous pacing: actors never wait for the learner; the learner waits only if it has nothing to train on.

The scaler's number of actors starts, each with the newest weights, and when one ends another takes its slot. The
learner collects finished trajectories, trains on them, and publishes the next version. A round ends with a fragment for
each of the scaler's actors. Actors then in flight count in the round that collects them.

Staleness is bounded: an actor that the next update would make more than ``algorithm.staleness_max`` versions old is
given up before it. If its trajectory has already arrived, that update trains on it. Replays give no actor up; the
learner waits instead, because an actor costs money and a replay does not.

Each actor's worst case is reserved before it starts. If the budget cannot hold the next round's standing parts along
with all actors in flight, the round waits for these actors and trains on them. So no paid trajectory is lost, and the
budget is used to the end.

docs/decisions/0011-asynchronous-rounds.md has the reasons.
"""

from __future__ import annotations

from concurrent.futures import wait

from runtime.errors import ActorsKeepFailingError, BudgetError
from runtime.learner.interfaces import DetectorSamples
from runtime.money.limits import PhaseSeconds
from runtime.records.rows import RoundRow
from runtime.scaler.interfaces import ScalingDecision
from runtime.training.asynchronous.actors import ActorStream
from runtime.training.asynchronous.round import StreamedAttempt, StreamedRound
from runtime.training.detection import Measurement
from runtime.training.finished_round import finished_row
from runtime.training.roles import REJECTED_ROUNDS_MAX, Meanwhile, Roles

_LOOK_S = 0.25
"""Seconds between checks of the detector while it measures."""
_PATIENCE_S = 5.0
"""Seconds that an ending run waits for a measurement it no longer needs."""


class AsynchronousPacing:
    """A `runtime.training.roles.Pacing` whose rounds are sections of a stream."""

    def __init__(self, roles: Roles) -> None:
        """Takes those who do the work."""
        self._roles, self._money, self._flight = roles, roles.money, roles.rollouts.flight
        self._clock, self._actors = self._flight.clock, ActorStream(roles)
        self._opened_s: float | None = None
        self._measurement: Measurement | None = None

    def close(self) -> None:
        """Gives up and settles all actors in flight, and waits a little for the detector's thread."""
        self._actors.close()
        if self._opened_s is not None:
            self._money.close_interrupted(self._clock() - self._opened_s)
        else:
            self._money.forfeit()
        if self._measurement is not None:
            wait([self._measurement], _PATIENCE_S)

    def run_round(self, round_index: int, meanwhile: Meanwhile) -> RoundRow | None:
        """Runs one round to its end; see `runtime.training.roles.Pacing`.

        Raises:
            ActorsKeepFailingError: The circuit breaker tripped, or too many attempts returned nothing.
            BudgetError: The round took longer than its reserved worst case.
        """
        current = StreamedRound(
            self._roles.experiment,
            self._roles.progress,
            round_index,
            ScalingDecision(self._roles.scaling.scaler.first_wave(round_index)),
            StreamedAttempt(self._money.meter.limits),
            self._roles.updating.updater.policy_version,
            self._clock(),
        )
        self._actors.begin_round(round_index)
        try:
            return self._run(current, meanwhile)
        except BudgetError as error:
            if self._money.is_lost(round_index, current.attempt.limits, error):
                return None
            raise

    def _run(self, current: StreamedRound, meanwhile: Meanwhile) -> RoundRow | None:
        for _ in range(REJECTED_ROUNDS_MAX):
            if not self._open(current, meanwhile):
                return None
            self._sample(current)
            if current.training.trajectories:
                return self._finish(current)
            if self._actors.is_exhausted:
                # The budget allows no more actors for this round.
                self._bill(current)
                return None
            self._money.events.append(
                "round_rejected",
                round_index=current.round_index,
                actor_count=current.most_in_flight,
                actors_returned=0,
            )
            self._bill(current)
        raise ActorsKeepFailingError(
            f"round {current.round_index} brought no trajectory {REJECTED_ROUNDS_MAX} times in a row, each time until "
            "its deadline; the last actor's error: ",
            self._actors.group.tally.last_error,
        )

    def _open(self, current: StreamedRound, meanwhile: Meanwhile) -> bool:
        """Reserves a round's standing parts and fills its slots; returns False if the budget does not hold it."""
        self._actors.begin_attempt()
        limits = self._roles.choose_limits(current.round_index)
        if not self._money.meter.open_standing(limits):
            self._money.tell_exhausted(current.round_index, current.decision.actor_count)
            return False
        now_s = self._opened_s = self._clock()
        kept = self._money.by_the_clock(limits)
        deadline_s = now_s + kept.collect_s
        current.attempt = StreamedAttempt(
            limits, deadline_s, deadline_s + kept.update_s, current.training.learn_s
        )
        self._actors.publish()
        if not current.is_decided and self._measurement is None:
            # The newest policy, on the last round's samples.
            self._measurement = self._roles.detection.begin()
        self._decide(current)
        self._actors.fill(current)
        if self._flight.in_flight:
            meanwhile()
            return True
        self._money.tell_exhausted(current.round_index, current.decision.actor_count)
        self._bill(current)
        return False

    def _decide(self, current: StreamedRound) -> None:
        """Asks the scaler once a round, when the detector is done, or at once if there is nothing to measure.

        A round waits for the detector only after it has trained on the minimum count of actors. Otherwise a detector
        slower than the smallest round would never boost one.
        """
        if current.is_decided or (self._measurement and not self._measurement.done()):
            return
        if self._measurement:
            measurement, self._measurement = self._measurement, None
            current.measured = measurement.result()
        current.decision = self._roles.scaling.decide(current.round_index, current.measured)
        current.is_decided = True

    def _sample(self, current: StreamedRound) -> None:
        """Trains on arriving trajectories until the round is complete, its deadline passes, or no actor is left.

        If the budget cannot hold another actor or the next round, this round waits for the actors in flight.
        """
        while (left_s := current.attempt.deadline_s - self._clock()) > 0:
            self._decide(current)
            if self._is_complete(current):
                break
            self._actors.take_in(current, 0.0)
            self._actors.fill(current)
            if self._has_minibatch(current) and self._train(current):
                continue
            measurement = self._measurement
            if measurement and current.awaits_decision:
                wait([measurement], min(left_s, _LOOK_S))
                continue
            if self._replay(current):
                continue
            if not self._flight.in_flight:
                break
            started_s = self._clock()
            self._actors.take_in(current, min(left_s, _LOOK_S) if measurement else left_s)
            current.waited_s += self._clock() - started_s
        self._train(current)

    def _is_complete(self, current: StreamedRound) -> bool:
        return (
            current.missing_steps <= 0
            and not self._actors.is_exhausted
            and not current.awaits_decision
            and (self._roles.holds(current.round_index + 1) or not self._flight.in_flight)
        )

    def _has_minibatch(self, current: StreamedRound) -> bool:
        """Returns whether enough has arrived for a gradient step or for the rest of the round."""
        return self._actors.steps_arrived >= min(
            self._roles.experiment.algorithm.minibatch_steps, max(1, current.missing_steps)
        )

    def _train(self, current: StreamedRound) -> bool:
        """Trains on arrived trajectories; returns False if there are none."""
        if not self._actors.group.came:
            return False
        trajectories = self._actors.hand_over()
        update = self._roles.updating.train(trajectories, current.training, self._limit_s(current))
        if self._roles.detection.is_wanted:
            current.samples.append(update.samples)
            while (
                sum(map(_size, current.samples)) - _size(current.samples[0])
                >= self._roles.experiment.detector.subset_size
            ):
                current.samples.popleft()
        self._actors.publish()
        return True

    def _replay(self, current: StreamedRound) -> bool:
        """Trains on the updater's stored trajectories; returns False if it may not, or if any would get too stale."""
        # Where the clock enforces tightened limits, they leave no time for replays.
        has_learned_enough = (
            self._money.meter.is_billed
            and current.attempt.limits.is_tightened
            and current.learned_s >= current.attempt.limits.collect_s
        )
        if (
            self._actors.has_stale()
            or has_learned_enough
            or not self._roles.updating.replay(current.training, self._limit_s(current))
        ):
            return False
        self._actors.publish()
        return True

    def _limit_s(self, current: StreamedRound) -> float:
        """Returns the rest of the reserved time, at most the limit of one update."""
        return min(
            current.attempt.ends_s - self._clock(),
            self._money.by_the_clock(current.attempt.limits).update_s,
        )

    def _finish(self, current: StreamedRound) -> RoundRow:
        """Collects a due evaluation, and bills the round."""
        training = current.training
        decided = self._roles.evaluations.end_round(
            current.round_index,
            self._roles.updating.updater.weights,
            returns=training.episode_returns,
            limit_s=self._limit_s(current),
        )
        if self._clock() > current.attempt.ends_s:
            raise BudgetError(
                "updates and evaluation continued after the round's deadline for more than the "
                f"{self._money.by_the_clock(current.attempt.limits).update_s:g} s that are reserved for them; "
                "raise learner.update_timeout_s"
            )
        self._roles.detection.keep(current.samples)
        self._tell_if_cut(current)
        self._flight.tidy()
        self._bill(current, decided.seconds)
        return finished_row(
            round_index=current.round_index,
            policy_version=current.policy_version,
            decision=current.decision,
            measured=current.measured,
            actor_count=training.trajectories,
            tally=self._actors.group.tally,
            training=training,
            env_steps_total=self._roles.progress.env_steps_total,
            decided=decided,
            collect_s=current.waited_s,
            round_s=self._clock() - current.started_s,
            account=self._money.account(current.bills, current.most_reserved_usd),
        )

    def _tell_if_cut(self, current: StreamedRound) -> None:
        if current.missing_steps > 0 and not self._actors.is_exhausted:
            self._money.events.append(
                "round_cut",
                round_index=current.round_index,
                env_steps=current.training.env_steps,
                wanted=current.steps_wanted,
                reason="its deadline passed; a longer fleet.round_deadline_s or a smaller "
                "actor.fragment_steps would let it be complete",
            )

    def _bill(self, current: StreamedRound, evaluate_s: float | None = None) -> None:
        """Bills an attempt at a round until now. Actors in flight continue."""
        assert self._opened_s is not None, "it was opened"
        seconds, env_steps = self._clock() - self._opened_s, current.training.env_steps
        self._money.phases.saw(
            PhaseSeconds(
                actor_s=self._actors.group.longest_s,
                collect_s=seconds,
                sample_s=current.learned_s / env_steps if env_steps else None,
                detect_s=current.measured.seconds if current.measured else None,
                evaluate_s=evaluate_s,
            )
        )
        self._opened_s = None
        current.bills.append(self._money.meter.close_round(seconds))


def _size(samples: DetectorSamples) -> int:
    return len(samples.advantages)
