"""The actors of a stream: keeps them in flight and collects their results."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from lambda_actor.errors import ActorError, WireError
from runtime.errors import RunError
from runtime.ports.fleet import Outcome
from runtime.ports.money import ACTOR, Work
from runtime.ports.sampling import Actor, ActorTally, Ended, OpenEpisodeRecord, Trajectory
from runtime.sampling.episodes import continued_episode
from runtime.training.asynchronous.round import StreamedRound
from runtime.training.pacings import Parts


@dataclass
class Intake:
    """Results of a stream's actors in one round.

    Attributes:
        tally: Counts of the invocations that ended.
        arrived: Trajectories for the next update.
        numbers: Numbers of the next actors. With its number an actor gets its own random numbers, and a resumed round
            draws the same again.
        most_in_flight: The most actors at the same time.
        most_reserved_usd: The highest reservation, in dollars.
        given_up: Actors that the next update would have made too stale.
        is_shrunk: Whether the budget held fewer actors than were wanted.
    """

    tally: ActorTally = field(default_factory=ActorTally)
    arrived: list[Trajectory] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=itertools.count)
    most_in_flight: int = 0
    most_reserved_usd: float = 0.0
    given_up: int = 0
    is_shrunk: bool = False


class ActorStream:
    """Starts actors in free slots with the newest weights, and collects the ones that end.

    Attributes:
        intake: The current round's results.
        is_exhausted: Whether the budget has held too few actors since the current attempt at the round began.
    """

    def __init__(self, parts: Parts) -> None:
        """Starts without actors."""
        self._parts, self._experiment = parts, parts.experiment
        self._sampler, self._meter, self._events = parts.sampler, parts.books.meter, parts.events
        self._attempts: Counter[int] = Counter()
        self._weights = b""
        self._promised_usd = 0.0
        self.intake = Intake()
        self.is_exhausted = False

    @property
    def steps_arrived(self) -> int:
        """Environment steps for the next update."""
        return len(self.intake.arrived) * self._experiment.actor.fragment_steps

    def begin_attempt(self) -> None:
        """Begins another attempt at the round."""
        # Actors that ended have freed their reservations.
        self.is_exhausted = False
        # The ledger on disk does not include this round yet.
        self._promised_usd = 0.0

    def publish(self) -> None:
        """Gives the newest weights to the next actors."""
        updater = self._parts.updating.updater
        self._weights = updater.weights()
        self._sampler.publish(updater.policy_version, self._weights)

    def fill(self, current: StreamedRound) -> None:
        """Starts actors in free slots, limited by demand and budget. The oldest open episodes come first."""
        slots = self._reserved_slots(current)
        self._promise(current)
        self.intake.most_in_flight = max(
            self.intake.most_in_flight, len(self._sampler.in_flight) + len(slots)
        )
        if not slots:
            return
        waiting = iter(self._waiting_episodes())
        spec = self._parts.actor_spec(current.round_index, self._weights, current.limits)
        actors = []
        for slot in slots:
            number = next(self.intake.numbers)
            actors.append(
                Actor(
                    f"r{current.round_index}a{number}",
                    spec,
                    self._work(slot),
                    number,
                    next(waiting, None),
                )
            )
            if self._attempts[slot]:
                self._events.append("actor_replaced", slot=slot, attempt=self._attempts[slot])
        self._sampler.start(actors)

    def _reserved_slots(self, current: StreamedRound) -> list[int]:
        """Returns the lowest free slots, each with its worst case reserved; none if too few would be in flight.

        Low slots come first because they are provisioned, and a slot used again is warm.
        """
        if self.is_exhausted or current.missing_steps <= 0:
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
                    self.is_exhausted = True
                    for reserved in slots:
                        self._meter.settle(self._work(reserved), None)
                    return []
                break
            slots.append(slot)
        return slots

    def _in_flight_wanted(self, current: StreamedRound) -> int:
        """Returns how many actors to keep in flight: near a round's end, what it is missing and the next one's minimum.

        Otherwise a boosted round would leave samples in flight for many smaller rounds. No actor starts that
        ``stop.max_steps`` has no room for.
        """
        arrived = len(self.intake.arrived)
        missing = math.ceil(current.missing_steps / self._experiment.actor.fragment_steps) - arrived
        wanted = min(
            current.decision.actor_count,
            missing + self._parts.scaling.scaler.first_wave(current.round_index + 1),
        )
        coming = len(self._sampler.awaited) + arrived
        room = self._parts.progress.room_for(coming + wanted) - coming
        return min(wanted, len(self._sampler.in_flight) + room)

    def _waiting_episodes(self) -> list[OpenEpisodeRecord]:
        """Returns open episodes that no actor continues, the oldest first."""
        taken = {actor.episode_id for actor in self._sampler.awaited}
        taken |= {continued_episode(trajectory) for trajectory in self.intake.arrived}
        return self._parts.episodes.not_in(taken)

    def _promise(self, current: StreamedRound) -> None:
        """Makes the ledger on disk cover all current reservations, and some future actors to save writes.

        A quarter of the round's actors is reserved ahead while the ledger is written. It is written again only if more
        is reserved than it promises. An actor cannot use up its worst case within the 10 s of a cold start, so the
        promise holds even if actors run without a break that lasts more than 2 s.
        """
        self.intake.most_reserved_usd = max(self.intake.most_reserved_usd, self._meter.reserved_usd)
        if self._parts.books.promised_usd > self._promised_usd:
            with self._meter.ahead(math.ceil(current.decision.actor_count / 4)):
                self._parts.books.save()
                self._promised_usd = self._parts.books.promised_usd

    def _shrunk(self, current: StreamedRound, granted: int) -> None:
        if not self.intake.is_shrunk:
            self._events.append(
                "round_shrunk",
                round_index=current.round_index,
                wanted=current.decision.actor_count,
                granted=granted,
                free_usd=self._meter.free_usd,
            )
        self.intake.is_shrunk = True

    def take_in(self, current: StreamedRound, timeout_s: float) -> None:
        """Collects ended actors until the round has enough; waits for the first one, at most ``timeout_s``.

        The next round collects the rest. A round with enough steps waits for actors in flight, and collects all.
        """
        while not (0 < current.missing_steps <= self.steps_arrived or current.awaits_decision):
            if (ended := self._sampler.next(timeout_s)) is None:
                break
            self._ended(ended)
            timeout_s = 0.0

    def _ended(self, ended: Ended) -> None:
        self.intake.tally.add_times(ended)
        if ended.seconds is not None:
            self._parts.phases.saw(actor_s=ended.outcome.billed_s)
        if ended.trajectory is not None:
            self._arrived(ended.actor, ended.trajectory)
        elif ended.was_given_up:
            self.intake.tally.failed += ended.seconds is not None
            self._attempts[ended.actor.work.slot] = 0
        elif not ended.was_delivered:
            self._failed(ended.actor, ended.outcome, ended.reason)

    def _arrived(self, actor: Actor, trajectory: Trajectory) -> None:
        self.intake.arrived.append(trajectory)
        self._attempts[actor.work.slot] = 0
        self._parts.failures.succeeded(actor)

    def _failed(self, actor: Actor, outcome: Outcome, reason: str) -> None:
        self.intake.tally.failed += 1
        self.intake.tally.last_error = reason
        self._attempts[actor.work.slot] += 1
        self._parts.failures.failed(actor, outcome, reason)

    def _work(self, slot: int) -> Work:
        return Work(ACTOR, slot, self._attempts[slot])

    def hand_over(self) -> list[Trajectory]:
        """Hands arrived trajectories to the next update, and gives up actors that it would make too stale.

        An actor whose trajectory has already been accepted is not given up: its trajectory joins the update.
        """
        for actor in [
            actor for actor in self._sampler.awaited if self._is_stale(actor.policy_version)
        ]:
            try:
                trajectory = self._sampler.deliver(actor)
            except WireError as error:
                reason = f"{type(error).__name__}: {error}"
                self._failed(actor, Outcome(actor.invocation_id, "ok"), reason)
                continue
            if trajectory is None:
                self.intake.given_up += 1
            else:
                self._arrived(actor, trajectory)
        arrived, self.intake.arrived = self.intake.arrived, []
        return arrived

    def has_stale(self) -> bool:
        """Returns whether the next update would make an actor in flight, or an arrived trajectory, too stale."""
        versions = [
            *(actor.policy_version for actor in self._sampler.awaited),
            *(int(trajectory["policy_version"]) for trajectory in self.intake.arrived),
        ]
        return any(map(self._is_stale, versions))

    def _is_stale(self, policy_version: int) -> bool:
        """Returns whether the next update would make that version's samples too stale."""
        staleness = self._parts.updating.updater.policy_version + 1 - policy_version
        return staleness > self._experiment.algorithm.staleness_max

    def tidy(self) -> None:
        """Deletes unneeded cache entries and records late trajectories and abandoned actors."""
        self.intake.tally.late = self._sampler.tidy()
        if self.intake.tally.late:
            self._events.append("trajectories_late", count=self.intake.tally.late)
        if self.intake.given_up:
            limit = self._experiment.algorithm.staleness_max
            self._events.append(
                "actors_abandoned",
                count=self.intake.given_up,
                reason=f"an update would have left them more than algorithm.staleness_max = {limit} "
                "versions behind",
            )

    def close(self) -> None:
        """Gives up and settles all actors in flight."""
        if self._sampler.in_flight:
            self._events.append(
                "actors_abandoned", reason="the run ends", count=len(self._sampler.in_flight)
            )
        try:
            for _ in self._sampler.give_up_all():
                pass
            self._sampler.tidy()
        except (ActorError, RunError) as error:
            # Their reservations then count as spent.
            self._events.append("actors_not_settled", error=f"{type(error).__name__}: {error}")
