"""Actors in flight: starts, awaits, replaces, gives up and settles them, whoever asks for them."""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from lambda_actor.errors import CacheError, WireError
from lambda_actor.inline import LATE
from runtime.errors import ActorsKeepFailingError
from runtime.fleet.actors import (
    Actor,
    ActorSpec,
    ActorTally,
    OpenEpisodeRecord,
    Trajectory,
    decode_trajectory,
)
from runtime.fleet.failures import Failures
from runtime.fleet.interfaces import Cache, Fleet
from runtime.money.meter import Meter
from runtime.money.model import INIT_SECONDS_MAX
from runtime.money.work import Outcome, Work
from runtime.records.observers import EventSink

GIVE_UP_S = 10.0
"""Longest wait for the end of an abandoned actor; then it is billed to its limit."""


@dataclass(eq=False)
class Group:
    """Actors that are counted together: an attempt at a round, a stream, or a pool's call.

    Attributes:
        prefix: First part of their invocation ids.
        tries: Tries for each actor. A replacement has the same slot, number and episode.
        until_s: When replacements end, by the flight's clock.
        tally: Counts of invocations that ended.
        came: Accepted trajectories, in order of arrival.
        started: Actors that were started, without replacements.
        in_flight: Actors that have not ended.
        longest_s: Most billed seconds of an invocation, without a separately reported startup.
        usd: Their cost.
    """

    prefix: str
    tries: int = 1
    until_s: float = math.inf
    tally: ActorTally = field(default_factory=ActorTally)
    came: list[Trajectory] = field(default_factory=list)
    started: int = 0
    in_flight: int = 0
    longest_s: float | None = None
    usd: float = 0.0

    def name(self, number: int, work: Work) -> str:
        """Returns the invocation id of an actor."""
        return f"{self.prefix}-{number}-{work.attempt}"


@dataclass(eq=False)
class _InFlight:
    """An actor in flight.

    Attributes:
        group: Where it is counted.
        is_closed: Whether the cache accepts nothing from it any more.
        taken: What it had submitted when that began; None if nothing.
        delivered_bytes: Bytes of a submission that was taken in before its end; None if there is none.
        until_s: When its end is awaited no longer, by the flight's clock; infinite unless it is given up.
        reason: Why it is given up; empty if it is not.
    """

    actor: Actor
    group: Group
    is_closed: bool = False
    taken: bytes | None = None
    delivered_bytes: int | None = None
    until_s: float = math.inf
    reason: str = ""

    def give_up(self, until_s: float, reason: str) -> None:
        self.until_s = until_s
        self.reason = reason


class Flight:
    """All actors in flight. Only this waits for the fleet, takes from the cache, and settles actors, each once.

    Attributes:
        concurrency: Actors that run at once; further ones are queued.
        clock: Monotonic seconds.
        attempts: Failures in a row, by slot.
    """

    def __init__(
        self,
        fleet: Fleet,
        cache: Cache,
        meter: Meter,
        failures: Failures,
        events: EventSink,
        save_ledger: Callable[[], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts nothing yet.

        Args:
            meter: Settles each actor when it ends. Callers reserve the worst cases of actors that they start.
            failures: Ends the run if actors keep failing.
            save_ledger: Writes the meter's state to disk; called before a replacement starts.
            clock: Monotonic seconds.
        """
        self.concurrency = fleet.concurrency
        self.clock = clock
        self._fleet = fleet
        self._cache = cache
        self._meter = meter
        self._failures = failures
        self._events = events
        self._save_ledger = save_ledger
        self.attempts: Counter[int] = Counter()
        self._in_flight: dict[str, _InFlight] = {}
        self._outcomes: deque[Outcome] = deque()
        self._versions: list[int] = []
        self._episodes: set[str] = set()

    @property
    def in_flight(self) -> dict[str, Actor]:
        """Returns actors that have not ended, by invocation id, in starting order."""
        return {invocation_id: entry.actor for invocation_id, entry in self._in_flight.items()}

    @property
    def awaited(self) -> list[Actor]:
        """Returns actors whose trajectories may still arrive, in starting order."""
        return [
            entry.actor
            for entry in self._in_flight.values()
            if entry.until_s == math.inf and entry.delivered_bytes is None
        ]

    def free_slots(self) -> Iterator[int]:
        """Yields free slots, the lowest first: they are provisioned, and a slot used again is warm."""
        taken = {actor.work.slot for actor in self.in_flight.values()}
        return (slot for slot in itertools.count() if slot not in taken)

    def publish(self, policy_version: int, weights: bytes) -> None:
        """Publishes these weights, and drops those that no actor in flight can request."""
        self._cache.publish_weights(policy_version, weights)
        needed = {policy_version, *(actor.policy_version for actor in self.in_flight.values())}
        for old in [version for version in self._versions if version not in needed]:
            self._cache.forget_weights(old)
        self._versions = [
            version for version in self._versions if version in needed and version != policy_version
        ]
        self._versions.append(policy_version)

    def start(
        self,
        group: Group,
        spec: ActorSpec,
        works: Sequence[Work],
        numbers: Iterable[int],
        episodes: Iterable[OpenEpisodeRecord] = (),
    ) -> None:
        """Starts actors, whose worst cases are already reserved on disk.

        Args:
            works: Names of the reservations, one for each actor.
            numbers: A number for each. With the round, it determines an actor's random numbers.
            episodes: Open episodes that the first ones continue.
        """
        waiting = iter(episodes)
        group.started += len(works)
        self._start(
            group,
            [
                Actor(group.name(number, work), spec, work, number, next(waiting, None))
                for work, number in zip(works, numbers, strict=False)
            ],
        )

    def next(self, timeout_s: float) -> bool:
        """Takes in the next actor that ended; returns whether one did within ``timeout_s``.

        Raises:
            ActorsKeepFailingError: Too many actors failed in a row.
        """
        if (outcome := self._known()) is None:
            self._outcomes.extend(self._fleet.wait(timeout_s))
            if (outcome := self._known()) is None:
                outcome = self._overdue_outcome()
        if outcome is not None:
            self._ended(outcome)
        return outcome is not None

    def give_up(self, actors: Sequence[Actor], reason: str) -> None:
        """Stops waiting for actors: takes in what has already arrived, and abandons the others.

        The end of each is still to come.

        Raises:
            ActorsKeepFailingError: Too many actors failed in a row.
        """
        until_s = self.clock() + GIVE_UP_S
        # An actor that the fleet cannot end asks the cache whether it is still wanted, so doors are closed first.
        asked = [self._in_flight[actor.invocation_id] for actor in actors]
        submitted = {entry.actor.invocation_id: self._take(entry) for entry in asked}
        late = [entry for entry, data in submitted.items() if data is None]
        for invocation_id in late:
            self._in_flight[invocation_id].give_up(until_s, reason)
        if late:
            self._events.append("actors_abandoned", reason=reason, count=len(late))
            self._fleet.abandon(late)
        for entry in asked:
            if (data := submitted[entry.actor.invocation_id]) is not None:
                entry.taken = None
                entry.delivered_bytes = len(data)
                outcome = Outcome(entry.actor.invocation_id, "ok")
                trajectory, error = self._found(entry.group, entry.actor, outcome, data)
                self._judge(entry.group, entry.actor, outcome, trajectory, error)

    def end(self, reason: str) -> None:
        """Gives up all actors, and settles each; those that do not end soon are billed to their limit."""
        with suppress(CacheError, ActorsKeepFailingError):
            self.give_up(self.awaited, reason)
        until_s = self.clock() + GIVE_UP_S
        for entry in self._in_flight.values():
            if entry.until_s == math.inf:
                entry.give_up(until_s, reason)
        self._fleet.abandon(list(self._in_flight))
        while self._in_flight:
            # No actor in flight is awaited any more, but what it has submitted may be damaged, or out of reach.
            with suppress(CacheError, ActorsKeepFailingError):
                self.next(max(0.0, until_s - self.clock()))

    def finish(self, until_s: float, reason: str) -> None:
        """Waits for all actors until this time of the flight's clock; then gives up the rest for this reason."""
        while self._in_flight:
            if (left_s := until_s - self.clock()) > 0:
                self.next(left_s)
            else:
                self.end(reason)
        self.tidy()

    def tidy(self) -> None:
        """Makes the cache drop data that no actor in flight needs."""
        continued = {actor.episode_id for actor in self.in_flight.values()}
        self._cache.discard_episodes(sorted(self._episodes - continued))
        self._episodes &= continued

    def _start(self, group: Group, actors: Sequence[Actor]) -> None:
        episodes = {actor.episode_id: actor.episode.data for actor in actors if actor.episode}
        self._episodes.update(episodes)
        self._cache.publish_episodes(episodes)
        ids = [actor.invocation_id for actor in actors]
        self._in_flight.update({actor.invocation_id: _InFlight(actor, group) for actor in actors})
        group.in_flight += len(ids)
        self._cache.expect(ids)
        self._fleet.start([actor.invocation for actor in actors])

    def _known(self) -> Outcome | None:
        """Returns the next outcome from the fleet, without duplicates."""
        while self._outcomes:
            if (outcome := self._outcomes.popleft()).invocation_id in self._in_flight:
                return outcome
        return None

    def _overdue_outcome(self) -> Outcome | None:
        """Returns the end of an actor that was given up long ago and has not ended."""
        for invocation_id, entry in self._in_flight.items():
            if self.clock() >= entry.until_s:
                return Outcome.abandoned(
                    invocation_id,
                    billed_s=entry.actor.spec.timeout_s,
                    init_s=INIT_SECONDS_MAX,
                )
        return None

    def _take(self, entry: _InFlight) -> bytes | None:
        """Closes an actor's door, and returns its submission, even if it failed afterwards."""
        if not entry.is_closed:
            entry.taken = self._cache.take(entry.actor.invocation_id)
            entry.is_closed = True
        return entry.taken

    def _ended(self, outcome: Outcome) -> None:
        entry = self._in_flight.pop(outcome.invocation_id)
        actor, group, delivered_bytes = entry.actor, entry.group, entry.delivered_bytes
        group.in_flight -= 1
        try:
            taken = None if delivered_bytes is not None else self._take(entry)
        except CacheError:
            # It is paid, whether what it brought can be fetched or not.
            self._settle(actor, outcome, 0)
            raise
        if outcome.growth:
            self._events.append("process_replaced", slot=actor.work.slot, reason=outcome.growth)
        before_usd = self._meter.spent_usd
        seconds = self._settle(actor, outcome, len(taken or b"") + (delivered_bytes or 0))
        group.usd += self._meter.spent_usd - before_usd
        if seconds is not None:
            group.longest_s = max(group.longest_s or 0.0, outcome.billed_s)
        if delivered_bytes is not None:
            group.tally.add(actor, outcome, seconds)
            return
        trajectory, error = self._found(group, actor, outcome, taken)
        group.tally.add(actor, outcome, seconds, is_lost=trajectory is None)
        if trajectory is not None or not entry.reason:
            self._judge(group, actor, outcome, trajectory, error)
            if trajectory is None:
                self._replace(group, actor)
        else:
            self.attempts.pop(actor.work.slot, None)
            if why := entry.reason if outcome.status == "abandoned" else error:
                group.tally.failed += 1
                if not group.tally.last_error:
                    group.tally.last_error = why

    def _found(
        self, group: Group, actor: Actor, outcome: Outcome, taken: bytes | None
    ) -> tuple[Trajectory | None, str]:
        """Returns an actor's trajectory, or why it has none."""
        if taken is not None:
            try:
                return decode_trajectory(taken, actor), ""
            except WireError as error:
                return None, f"{type(error).__name__}: {error}"
        if outcome.response is None:
            return None, outcome.error
        if outcome.response["status"] != LATE:
            return None, "its trajectory was accepted, but is not in the cache any more"
        group.tally.late += 1
        return None, "its trajectory came too late"

    def _judge(
        self,
        group: Group,
        actor: Actor,
        outcome: Outcome,
        trajectory: Trajectory | None,
        error: str,
    ) -> None:
        """Counts an awaited actor as a success or a failure."""
        if trajectory is not None:
            group.came.append(trajectory)
            self.attempts.pop(actor.work.slot, None)
            self._failures.succeeded(actor)
            return
        group.tally.failed += 1
        group.tally.last_error = error
        self.attempts[actor.work.slot] += 1
        self._failures.failed(actor, outcome, error)

    def _replace(self, group: Group, actor: Actor) -> None:
        work = replace(actor.work, attempt=actor.work.attempt + 1)
        if work.attempt >= group.tries or self.clock() >= group.until_s:
            return
        if not self._meter.reserve([work]):
            self._events.append(
                "replacement_refused", slot=work.slot, reason="the budget cannot hold it"
            )
            return
        self._events.append("actor_replaced", slot=work.slot, attempt=work.attempt)
        self._save_ledger()
        name = group.name(actor.number, work)
        self._start(group, [replace(actor, invocation_id=name, work=work)])

    def _settle(self, actor: Actor, outcome: Outcome, trajectory_bytes: int) -> float | None:
        fetched_bytes = actor.spec.weights_bytes + len(actor.episode.data if actor.episode else b"")
        seconds = self._meter.settle(
            actor.work,
            outcome,
            traffic_bytes=fetched_bytes + trajectory_bytes,
            answer_bytes=trajectory_bytes,
        )
        return seconds if outcome.was_started else None
