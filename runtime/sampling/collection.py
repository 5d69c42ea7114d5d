"""Actors of one attempt at one synchronous round."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from runtime.errors import ActorsKeepFailingError
from runtime.ports.money import ACTOR, CostMeter, Work
from runtime.ports.run import EventSink
from runtime.ports.sampling import (
    Actor,
    ActorSpec,
    ActorTally,
    Ended,
    OpenEpisodeRecord,
    Sampler,
    Trajectory,
)
from runtime.sampling.failures import Failures


@dataclass
class Collected(ActorTally):
    """Results of an attempt's actors.

    Attributes:
        trajectories: Decoded trajectory messages by slot.
        run_s: Billed seconds of every ended invocation, without separately reported startups.
        has_raising_slot: Whether every try of some slot raised.
    """

    trajectories: dict[int, Trajectory] = field(default_factory=dict)
    run_s: list[float] = field(default_factory=list)
    has_raising_slot: bool = False


class Collection:
    """Starts the actors of an attempt, replaces failed ones, and waits for all or for the deadline.

    Attributes:
        started: Slots that were started.
    """

    def __init__(
        self,
        sampler: Sampler,
        meter: CostMeter,
        failures: Failures,
        events: EventSink,
        spec: ActorSpec,
        *,
        prefix: str,
        deadline_s: float,
        save_ledger: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begins the attempt; the deadline counts from now.

        Args:
            prefix: First part of the invocation ids; unique to this attempt at this round.
            deadline_s: Seconds to wait for actors.
            save_ledger: Writes the meter's state to disk; called before a replacement starts.
            clock: Monotonic seconds.
        """
        self._sampler, self._meter, self._failures, self._events = sampler, meter, failures, events
        self._spec, self._prefix = spec, prefix
        self._save_ledger, self._clock, self._deadline_s = save_ledger, clock, clock() + deadline_s
        self._episodes: dict[int, OpenEpisodeRecord] = {}
        self.started = 0
        self._may_replace = True
        self.collected = Collected()
        failures.begin()

    def start(self, slots: Sequence[int], episodes: Mapping[int, OpenEpisodeRecord]) -> None:
        """Starts one actor for each slot, after their reservations.

        Args:
            episodes: Open episodes to continue, by slot.
        """
        self._episodes.update(episodes)
        self.started += len(slots)
        self._sampler.start([self._actor(slot, 0) for slot in slots])

    def finish(self) -> Collected:
        """Waits for all actors, or for the deadline.

        Raises:
            ActorsKeepFailingError: Too many actors failed in a row.
        """
        while self._sampler.in_flight:
            left_s = self._deadline_s - self._clock()
            if left_s <= 0:
                self.abandon("the round's deadline passed")
                break
            if (ended := self._sampler.next(left_s)) is not None:
                self._take_in(ended)
        self.collected.late += self._sampler.tidy()
        self.collected.has_raising_slot = self._failures.has_raising_slot
        if self.collected.late:
            self._events.append("trajectories_late", count=self.collected.late)
        return self.collected

    def abandon(self, reason: str) -> None:
        """Abandons all running actors, and settles them."""
        self._may_replace = False
        if not self._sampler.in_flight:
            return
        self._events.append("actors_abandoned", reason=reason, count=len(self._sampler.in_flight))
        for ended in self._sampler.give_up_all():
            with suppress(ActorsKeepFailingError):
                self._take_in(ended)

    def _actor(self, slot: int, attempt: int) -> Actor:
        return Actor(
            f"{self._prefix}-{slot}-{attempt}",
            self._spec,
            Work(ACTOR, slot, attempt),
            slot,
            self._episodes.get(slot),
        )

    def _take_in(self, ended: Ended) -> None:
        slot = ended.actor.work.slot
        self.collected.add_times(ended)
        if ended.seconds is not None:
            self.collected.run_s.append(ended.outcome.billed_s)
        if ended.trajectory is not None:
            self.collected.trajectories[slot] = ended.trajectory
            self._failures.succeeded(ended.actor)
            return
        self.collected.failed += 1
        self.collected.last_error = ended.reason
        if ended.outcome.status != "abandoned":
            self._failures.failed(ended.actor, ended.outcome, ended.reason)
            self._replace(slot, ended.actor.work.attempt + 1)

    def _replace(self, slot: int, attempt: int) -> None:
        if (
            not self._may_replace
            or attempt >= self._failures.patience.attempts
            or self._clock() >= self._deadline_s
        ):
            return
        if self._meter.reserve([Work(ACTOR, slot, attempt)]):
            self._events.append("actor_replaced", slot=slot, attempt=attempt)
            self._save_ledger()
            self._sampler.start([self._actor(slot, attempt)])
        else:
            self._events.append(
                "replacement_refused", slot=slot, reason="the budget cannot hold it"
            )
