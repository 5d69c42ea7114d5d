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

docs/design/algorithms.md has the reasons.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from concurrent.futures import wait
from dataclasses import dataclass, field

from runtime.errors import ActorsKeepFailingError
from runtime.fleet.actors import OpenEpisodeRecord
from runtime.fleet.episodes import continued_episode
from runtime.fleet.flight import Group
from runtime.money.limits import PhaseSeconds
from runtime.money.work import ACTOR, Work
from runtime.records.rows import RoundRow
from runtime.scaler.interfaces import ScalingDecision
from runtime.training.detection import Measurement
from runtime.training.pacing import REJECTED_ROUNDS_MAX, Meanwhile, Pacing
from runtime.training.roles import Roles
from runtime.training.round import Round

_LOOK_S = 0.25
"""Seconds between checks of the detector while it measures."""


@dataclass
class StreamedRound(Round):
    """A section of the stream.

    Attributes:
        deadline_s: Until when its current attempt waits for trajectories, by the clock.
        numbers: Numbers of the next actors. With its number an actor gets its own random numbers, and a resumed round
            draws the same again.
        is_shrunk: Whether the budget held fewer actors than were wanted.
        is_exhausted: Whether the budget has held too few actors since the current attempt began.
    """

    deadline_s: float = 0.0
    numbers: Iterator[int] = field(default_factory=itertools.count)
    is_shrunk: bool = False
    is_exhausted: bool = False


class AsynchronousPacing(Pacing):
    """A pacing whose rounds are sections of a stream of actors."""

    def __init__(self, roles: Roles) -> None:
        """Starts without actors."""
        super().__init__(roles)
        # Its tally and prefix are the current round's, its trajectories those for the next update.
        self._group = Group("")
        self._weights = b""
        self._promised_usd = 0.0
        self._measurement: Measurement | None = None

    def run_round(self, round_index: int, meanwhile: Meanwhile) -> RoundRow | None:
        """Runs one round to its end; see `Pacing`."""
        first_wave = ScalingDecision(self._roles.scaling.scaler.first_wave(round_index))
        version = self._roles.updating.updater.policy_version
        current = StreamedRound(round_index, version, self._clock(), first_wave)
        # Actors in flight count in the round in which they end.
        self._group.prefix = f"r{round_index}a"
        self._group.tally = current.tally
        self._group.longest_s = None
        for _ in range(REJECTED_ROUNDS_MAX):
            if not self._open(current):
                return None
            if self._flight.in_flight:
                meanwhile()
                self._sample(current)
            if current.training.trajectories:
                return self._finish(current)
            self._saw_phases(current)
            if current.is_exhausted:
                self._tell_exhausted(current)
                self._bill(current)
                return None
            self._reject(current, actor_count=current.decision.actor_count, actors_returned=0)
        raise ActorsKeepFailingError(
            f"round {round_index} brought no trajectory {REJECTED_ROUNDS_MAX} times in a row, each time until "
            "its deadline; the last actor's error: ",
            current.tally.last_error,
        )

    def _open(self, current: StreamedRound) -> bool:
        """Fills a round's slots; returns False if the budget does not hold its standing parts."""
        # Actors that ended have freed their reservations, and the ledger on disk does not include this round yet.
        current.is_exhausted = False
        self._promised_usd = 0.0
        limits = self._roles.choose_limits(current.round_index)
        if not self._money.meter.open_standing(limits):
            self._tell_exhausted(current)
            return False
        self._opened_s = self._clock()
        current.deadline_s = self._opened_s + self._money.deadline_s
        self._publish()
        if not current.is_decided and self._measurement is None:
            # The newest policy, on the last round's samples.
            self._measurement = self._roles.detection.begin()
        self._decide(current)
        self._fill(current)
        return True

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
        while (left_s := current.deadline_s - self._clock()) > 0:
            self._decide(current)
            if self._is_complete(current):
                break
            self._take_in(current, 0.0)
            self._fill(current)
            if self._has_minibatch(current) and self._train(current):
                continue
            measurement = self._measurement
            if measurement and self._awaits_decision(current):
                wait([measurement], min(left_s, _LOOK_S))
                continue
            if self._replay(current):
                continue
            if not self._flight.in_flight:
                break
            started_s = self._clock()
            self._take_in(current, min(left_s, _LOOK_S) if measurement else left_s)
            current.collect_s += self._clock() - started_s
        self._train(current)

    # How much is missing

    def _missing_steps(self, current: StreamedRound) -> int:
        """Returns the environment steps still to train on in this round."""
        progress = self._roles.progress
        wanted = current.decision.actor_count * progress.fragment_steps
        missing = wanted - current.training.env_steps
        fragments = math.ceil(missing / progress.fragment_steps)
        return min(missing, progress.room_for(fragments) * progress.fragment_steps)

    @property
    def _steps_arrived(self) -> int:
        """Environment steps for the next update."""
        return len(self._group.came) * self._roles.progress.fragment_steps

    def _awaits_decision(self, current: StreamedRound) -> bool:
        """Returns whether the minimum has been trained on, and the scaler has not decided the round's size yet."""
        return not current.is_decided and self._missing_steps(current) <= 0

    def _is_complete(self, current: StreamedRound) -> bool:
        return (
            current.is_decided
            and self._missing_steps(current) <= 0
            and not current.is_exhausted
            and (self._roles.holds(current.round_index + 1) or not self._flight.in_flight)
        )

    def _has_minibatch(self, current: StreamedRound) -> bool:
        """Returns whether enough has arrived for a gradient step or for the rest of the round."""
        rest = max(1, self._missing_steps(current))
        return self._steps_arrived >= min(self._roles.algorithm.minibatch_steps, rest)

    # Actors

    def _publish(self) -> None:
        """Gives the newest weights to the next actors."""
        updater = self._roles.updating.updater
        self._weights = updater.weights()
        self._flight.publish(updater.policy_version, self._weights)

    def _fill(self, current: StreamedRound) -> None:
        """Starts actors in free slots, limited by demand and budget. The oldest open episodes come first."""
        works = self._reserved(current)
        self._promise(current)
        if not works:
            return
        for work in works:
            if work.attempt:
                self._money.events.append("actor_replaced", slot=work.slot, attempt=work.attempt)
        spec = self._roles.rollouts.spec(
            current.round_index,
            self._roles.updating.updater.policy_version,
            self._weights,
            timeout_s=self._money.meter.limits.actor_s,
        )
        self._flight.start(self._group, spec, works, current.numbers, self._waiting_episodes())

    def _reserved(self, current: StreamedRound) -> list[Work]:
        """Reserves the worst cases of actors in free slots; of none if too few would be in flight."""
        if current.is_exhausted or self._missing_steps(current) <= 0:
            return []
        wanted = self._in_flight_wanted(current)
        in_flight = len(self._flight.in_flight)
        free, works = self._flight.free_slots(), list[Work]()
        while in_flight + len(works) < wanted:
            slot = next(free)
            work = Work(ACTOR, slot, self._flight.attempts[slot])
            if self._money.meter.reserve([work]):
                works.append(work)
                continue
            self._tell_shrunk(current, in_flight + len(works))
            if in_flight + len(works) >= min(wanted, self._roles.scaling.scaler.actors_min):
                break
            current.is_exhausted = True
            for reserved in works:
                self._money.meter.cancel(reserved)
            return []
        return works

    def _in_flight_wanted(self, current: StreamedRound) -> int:
        """Returns how many actors to keep in flight: near a round's end, what it is missing and the next one's minimum.

        Otherwise a boosted round would leave samples in flight for many smaller rounds. No actor starts that
        ``stop.max_steps`` has no room for.
        """
        progress, arrived = self._roles.progress, len(self._group.came)
        missing = math.ceil(self._missing_steps(current) / progress.fragment_steps) - arrived
        first_wave = self._roles.scaling.scaler.first_wave(current.round_index + 1)
        wanted = min(current.decision.actor_count, missing + first_wave)
        coming = len(self._flight.awaited) + arrived
        room = progress.room_for(coming + wanted) - coming
        return min(wanted, len(self._flight.in_flight) + room)

    def _waiting_episodes(self) -> list[OpenEpisodeRecord]:
        """Returns open episodes that no actor continues, the oldest first."""
        taken = {actor.episode_id for actor in self._flight.awaited}
        taken |= {continued_episode(trajectory) for trajectory in self._group.came}
        return self._roles.rollouts.episodes.not_in(taken)

    def _promise(self, current: StreamedRound) -> None:
        """Makes the ledger on disk cover all current reservations, and some future actors to save writes.

        A quarter of the round's actors is reserved ahead while the ledger is written. It is written again only if more
        is reserved than it promises. An actor cannot use up its worst case within the 10 s of a cold start, so the
        promise holds even if actors run without a break that lasts more than 2 s.
        """
        meter = self._money.meter
        current.most_reserved_usd = max(current.most_reserved_usd, meter.reserved_usd)
        if self._money.promised_usd > self._promised_usd:
            with meter.ahead(math.ceil(current.decision.actor_count / 4)):
                self._money.save()
                self._promised_usd = self._money.promised_usd

    def _tell_exhausted(self, current: StreamedRound) -> None:
        self._money.tell_exhausted(current.round_index, current.decision.actor_count)

    def _tell_shrunk(self, current: StreamedRound, granted: int) -> None:
        if not current.is_shrunk:
            self._money.tell_shrunk(current.round_index, current.decision.actor_count, granted)
        current.is_shrunk = True

    def _take_in(self, current: StreamedRound, timeout_s: float) -> None:
        """Collects ended actors until the round has enough; waits for the first one, at most ``timeout_s``.

        The next round collects the rest. A round with enough steps waits for actors in flight, and collects all.
        """
        while not (
            0 < self._missing_steps(current) <= self._steps_arrived
            or self._awaits_decision(current)
        ):
            if not self._flight.next(timeout_s):
                break
            timeout_s = 0.0

    # Updates

    def _train(self, current: StreamedRound) -> bool:
        """Trains on arrived trajectories; returns False if there are none.

        Actors that this update makes too stale are given up, unless their trajectories have been accepted.
        """
        if not self._group.came:
            return False
        limit = self._roles.algorithm.staleness_max
        self._flight.give_up(
            [actor for actor in self._flight.awaited if self._is_stale(actor.policy_version)],
            f"an update would have left them more than algorithm.staleness_max = {limit} versions behind",
        )
        arrived, self._group.came = self._group.came, []
        update = self._roles.updating.train(arrived, current.training, self._limit_s(current))
        self._roles.detection.add(update.samples)
        self._publish()
        return True

    def _replay(self, current: StreamedRound) -> bool:
        """Trains on the updater's stored trajectories; returns False if it may not, or if any would get too stale."""
        awaited = [actor.policy_version for actor in self._flight.awaited]
        arrived = [int(trajectory["policy_version"]) for trajectory in self._group.came]
        if any(map(self._is_stale, awaited + arrived)):
            return False
        if not self._roles.updating.replay(current.training, self._limit_s(current)):
            return False
        self._publish()
        return True

    def _is_stale(self, policy_version: int) -> bool:
        """Returns whether the next update would make that version's samples too stale."""
        staleness = self._roles.updating.updater.policy_version + 1 - policy_version
        return staleness > self._roles.algorithm.staleness_max

    def _limit_s(self, current: StreamedRound) -> float:
        """Returns the rest of the reserved time, at most the limit of one update."""
        late_s = max(0.0, self._clock() - current.deadline_s)
        return self._money.update_s - late_s

    # The end of a round

    def _finish(self, current: StreamedRound) -> RoundRow:
        """Collects a due evaluation, and bills the round."""
        roles, training = self._roles, current.training
        decided = roles.evaluations.end_round(
            current.round_index,
            roles.updating.updater.weights,
            returns=training.episode_returns,
            limit_s=self._limit_s(current),
        )
        roles.detection.end_round()
        if self._missing_steps(current) > 0 and not current.is_exhausted:
            self._money.events.append(
                "round_cut",
                round_index=current.round_index,
                env_steps=training.env_steps,
                wanted=current.decision.actor_count * roles.progress.fragment_steps,
                reason="its deadline passed; a longer fleet.round_deadline_s or a smaller "
                "actor.fragment_steps would let it be complete",
            )
        self._flight.tidy()
        self._saw_phases(current, decided.seconds)
        current.actor_count = training.trajectories
        return self._end(current, decided)

    def _saw_phases(self, current: StreamedRound, evaluate_s: float | None = None) -> None:
        """Records how long the phases of an attempt took, for the next rounds' limits."""
        training = current.training
        self._money.phases.saw(
            PhaseSeconds(
                actor_s=self._group.longest_s,
                collect_s=self._clock() - self._opened_s,
                sample_s=training.learn_s / training.env_steps if training.env_steps else None,
                detect_s=current.measured.seconds if current.measured else None,
                evaluate_s=evaluate_s,
            )
        )
