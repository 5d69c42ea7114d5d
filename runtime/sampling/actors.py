"""Actors: started, taken in as they end, billed, replaced where they fail; a synchronous round's, and any."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lambda_actor import wire
from lambda_actor.cache import LATE
from lambda_actor.errors import CacheError, CorruptedMessageError, SchemaError, WireError
from lambda_actor.frames import unpack_frames
from lambda_actor.spaces import Spaces
from runtime.cost.model import INIT_SECONDS_MAX
from runtime.errors import ActorsKeepFailingError
from runtime.interfaces import ACTOR, Cache, CostMeter, Fleet, Invocation, OpenEpisodeRecord, Outcome, Usage, Work
from runtime.records.events import EventLog

_CACHE_ERRORS = tuple(error.__name__ for error in (CacheError, *CacheError.__subclasses__()))
_TAKE_TIMEOUT_S = 10.0
_ABANDON_TIMEOUT_S = 10.0


class CircuitBreaker:
    """Ends a run whose actors keep failing, before it has paid for failures all night."""

    def __init__(self, failures_max: int) -> None:
        self._failures_max = failures_max
        self._failures = 0

    def success(self) -> None:
        self._failures = 0

    def failure(self, reason: str) -> None:
        """Raises: ActorsKeepFailingError: This was one too many since the last success."""
        self._failures += 1
        if self._failures >= self._failures_max:
            raise ActorsKeepFailingError(
                f"{self._failures} actors in a row failed (fleet.failures_max = {self._failures_max}); "
                f"the last one: {reason}")


@dataclass(frozen=True)
class ActorSpec:
    """What actors of one policy version have in common.

    Attributes:
        event: The event but for ``invocation_id``, ``slot`` and ``episode_id``.
        spaces: What its trajectory's arrays must fit.
        weights_bytes: Size of the weights that it fetches.
        timeout_s: Longest that it is billed for.
    """

    event: Mapping[str, Any]
    spaces: Spaces
    weights_bytes: int
    timeout_s: float


@dataclass(frozen=True)
class Actor:
    """One actor to start.

    Attributes:
        slot, attempt: What the meter knows it by.
        number: The ``slot`` of its event: with the round, what its random numbers follow from.
        episode: The open episode that it continues; null for a fresh start.
    """

    invocation_id: str
    spec: ActorSpec
    slot: int
    attempt: int
    number: int
    episode: OpenEpisodeRecord | None = None

    @property
    def work(self) -> Work:
        return Work(ACTOR, self.slot, self.attempt)

    @property
    def episode_id(self) -> str:
        return self.episode.episode_id if self.episode else ""

    @property
    def policy_version(self) -> int:
        return self.spec.event["policy_version"]

    @property
    def invocation(self) -> Invocation:
        return Invocation(self.invocation_id, {
            **self.spec.event, "invocation_id": self.invocation_id, "slot": self.number,
            "episode_id": self.episode_id})


@dataclass(frozen=True)
class Ended:
    """An actor that ended, settled.

    Attributes:
        trajectory: Decoded and checked; null where none was accepted, or it was delivered before.
        reason: Why there is none.
        seconds: Billed, a cold start included; null where it never started.
        was_given_up: Whether nobody waited for it any more.
        was_delivered: Whether `Actors.deliver` gave its trajectory before it ended.
    """

    actor: Actor
    outcome: Outcome
    trajectory: dict[str, np.ndarray] | None
    reason: str
    seconds: float | None
    was_given_up: bool = False
    was_delivered: bool = False

    @property
    def is_its_own_error(self) -> bool:
        """Whether the rollout raised: not the process, not the cache, whose troubles pass."""
        return self.outcome.status == "error" and not self.outcome.error.startswith(_CACHE_ERRORS)


class Actors:
    """Actors in flight; the only one who waits for the fleet and takes from the cache."""

    def __init__(
        self, fleet: Fleet, cache: Cache, meter: CostMeter, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Args:
        clock: Monotonic seconds.
        """
        self._fleet, self._cache, self._meter, self._clock = fleet, cache, meter, clock
        self.in_flight: dict[str, Actor] = {}
        self._arrived: dict[str, bytes] = {}
        self._delivered: dict[str, int] = {}
        self._given_up_s: dict[str, float] = {}
        self._outcomes: deque[Outcome] = deque()
        self._gone: list[str] = []

    @property
    def awaited(self) -> list[Actor]:
        """Those whose trajectories may still come, in the order in which they started."""
        return [actor for one, actor in self.in_flight.items()
                if one not in self._given_up_s and one not in self._delivered]

    def start(self, actors: Sequence[Actor]) -> None:
        """Starts them; their reservations are already made."""
        self._cache.publish_episodes({actor.episode_id: actor.episode.data for actor in actors if actor.episode})
        self.in_flight.update({actor.invocation_id: actor for actor in actors})
        self._cache.expect([actor.invocation_id for actor in actors])
        self._fleet.start([actor.invocation for actor in actors])

    def next(self, timeout_s: float) -> Ended | None:
        """The next one that ended; null where none did within ``timeout_s``."""
        if not self._outcomes:
            self._outcomes.extend(self._fleet.wait(timeout_s))
        while self._outcomes:
            outcome = self._outcomes.popleft()
            if outcome.invocation_id in self.in_flight:
                return self._ended(outcome)
        for invocation_id, since_s in self._given_up_s.items():
            if self._clock() - since_s >= _ABANDON_TIMEOUT_S:
                return self._ended(self._deaf(invocation_id))
        return None

    def deliver(self, actor: Actor) -> dict[str, np.ndarray] | None:
        """The trajectory of one that need not be awaited any more, where it was accepted already.

        Null where it was not: its door is closed, and it is given up. In both cases its end is still to come.

        Raises:
            WireError: It was, but cannot be used.
        """
        if self._cache.cancel(actor.invocation_id):
            self._tell_fleet([actor])
            return None
        data = self._take(actor.invocation_id)
        self._delivered[actor.invocation_id] = len(data or b"")
        if data is None:
            raise CorruptedMessageError("its trajectory was accepted, but is not in the cache any more")
        return _checked(data, actor)

    def give_up_all(self) -> Iterator[Ended]:
        """Gives up all; yields each as it ends, and counts those that do not end, soon, to their limit."""
        with suppress(CacheError):
            for invocation_id in self.in_flight:
                # An actor that the fleet cannot kill asks the cache whether it is still wanted.
                self._cache.cancel(invocation_id)
        self._tell_fleet(list(self.in_flight.values()))
        until_s = time.monotonic() + _ABANDON_TIMEOUT_S
        while self.in_flight and time.monotonic() < until_s:
            if (ended := self.next(until_s - time.monotonic())) is not None:
                yield ended
        for invocation_id in list(self.in_flight):
            self._cache.cancel(invocation_id)
            yield self._ended(self._deaf(invocation_id))

    def forget(self) -> int:
        """Forgets those that ended; returns how many trajectories came too late since the last call."""
        gone, self._gone = self._gone, []
        return self._cache.forget(gone)

    def _tell_fleet(self, actors: Sequence[Actor]) -> None:
        now_s = self._clock()
        self._given_up_s.update({actor.invocation_id: now_s for actor in actors})
        self._fleet.abandon([actor.invocation_id for actor in actors])

    def _deaf(self, invocation_id: str) -> Outcome:
        return Outcome(invocation_id, "abandoned", error="did not end when it was given up",
                       billed_s=self.in_flight[invocation_id].spec.timeout_s, init_s=INIT_SECONDS_MAX)

    def _ended(self, outcome: Outcome) -> Ended:
        invocation_id = outcome.invocation_id
        actor = self.in_flight.pop(invocation_id)
        self._gone.append(invocation_id)
        flags = {"was_given_up": self._given_up_s.pop(invocation_id, None) is not None,
                 "was_delivered": invocation_id in self._delivered}
        delivered_bytes = self._delivered.pop(invocation_id, 0)
        data, reason = (None, "") if flags["was_delivered"] else self._trajectory_of(outcome)
        seconds = self._settle(actor, outcome, len(data or b"") + delivered_bytes)
        trajectory = None
        if data is not None:
            try:
                trajectory = _checked(data, actor)
            except WireError as error:
                reason = f"{type(error).__name__}: {error}"
        return Ended(actor, outcome, trajectory, reason, seconds, **flags)

    def _trajectory_of(self, outcome: Outcome) -> tuple[bytes | None, str]:
        """The trajectory's bytes if it was accepted, whatever became of its actor afterwards; else why not."""
        if outcome.status == "ok":
            if outcome.response["status"] == LATE:
                return None, "its trajectory came too late"
        elif self._cache.cancel(outcome.invocation_id):
            return None, outcome.error
        data = self._take(outcome.invocation_id)
        if data is None:
            self._cache.cancel(outcome.invocation_id)
            return None, "its trajectory was accepted, but is not in the cache any more"
        return data, ""

    def _take(self, invocation_id: str) -> bytes | None:
        """What was accepted of that actor; keeps what comes before it of others."""
        while invocation_id not in self._arrived:
            taken = self._cache.take(_TAKE_TIMEOUT_S)
            if taken is None:
                return None
            self._arrived[taken[0]] = taken[1]
        return self._arrived.pop(invocation_id)

    def _settle(self, actor: Actor, outcome: Outcome, trajectory_bytes: int) -> float | None:
        if not outcome.was_started:
            self._meter.settle(actor.work, None)
            return None
        episode_bytes = len(actor.episode.data) if actor.episode else 0
        return self._meter.settle(actor.work, Usage(
            outcome.billed_s, outcome.init_s, outcome.is_metered,
            traffic_bytes=actor.spec.weights_bytes + trajectory_bytes + episode_bytes))


def _checked(data: bytes, actor: Actor) -> dict[str, np.ndarray]:
    """Raises: WireError: It is not the trajectory that this actor was asked for."""
    spaces = actor.spec.spaces
    trajectory = wire.decode(data, wire.Kind.FRAME_TRAJECTORY if spaces.is_pixels else wire.Kind.TRAJECTORY)
    _check(trajectory, actor)
    if spaces.is_pixels:
        _check_frames(trajectory, actor)
    return trajectory


def _check(trajectory: Mapping[str, np.ndarray], actor: Actor) -> None:
    """Raises: SchemaError: It is not the trajectory that this actor was asked for."""
    event, spaces, whose = actor.spec.event, actor.spec.spaces, f"trajectory of slot {actor.number}"
    steps = event["fragment_steps"]
    observations = "observation_frames" if spaces.is_pixels else "observations"
    found = {
        "invocation_id": wire.field_text(trajectory["invocation_id"]),
        "slot": int(trajectory["slot"]), "round_index": int(trajectory["round_index"]),
        "policy_version": int(trajectory["policy_version"]),
        "continued_episode": bytes(trajectory["continued_episode"]),
        observations: trajectory[observations].shape, "actions": trajectory["actions"].shape,
    }
    asked = {
        "invocation_id": actor.invocation_id, "slot": actor.number, "round_index": event["round_index"],
        "policy_version": event["policy_version"], "continued_episode": actor.episode_id.encode(),
        observations: (steps, spaces.frame_stack if spaces.is_pixels else spaces.observation_size),
        "actions": (steps,) if spaces.is_discrete else (steps, spaces.action_size),
    }
    for name, value in asked.items():
        if found[name] != value:
            raise SchemaError(f"{whose}: {name} is {found[name]}, asked for was {value}")
    actions, bootstrap_steps = trajectory["actions"], trajectory["bootstrap_steps"]
    if spaces.is_discrete and not ((actions >= 0) & (actions < spaces.action_count)).all():
        raise SchemaError(f"{whose}: actions are {actions.min()} to {actions.max()}, allowed are 0 to "
                          f"{spaces.action_count - 1}")
    if not ((bootstrap_steps >= 0) & (bootstrap_steps < steps)).all() or (np.diff(bootstrap_steps) <= 0).any():
        raise SchemaError(f"{whose}: bootstrap_steps are not increasing steps of the fragment")
    for name in ("observations", "actions", "log_probs", "rewards", "bootstrap_observations", "episode_returns"):
        if name in trajectory and not np.isfinite(trajectory[name]).all():
            raise SchemaError(f"{whose}: {name} is not finite")


def _check_frames(trajectory: Mapping[str, np.ndarray], actor: Actor) -> None:
    """Raises: WireError: Its frames are not the environment's, or are not all there."""
    frames = unpack_frames(trajectory)
    whose = f"trajectory of slot {actor.number}"
    if frames.shape[1:] != actor.spec.spaces.frame_shape:
        raise SchemaError(f"{whose}: frames are {frames.shape[1:]}, asked for were {actor.spec.spaces.frame_shape}")
    for name in ("observation_frames", "bootstrap_frames"):
        if not ((trajectory[name] >= 0) & (trajectory[name] < len(frames))).all():
            raise SchemaError(f"{whose}: {name} name others than the {len(frames)} frames that are there")


@dataclass
class Collected:
    """What a round's actors brought.

    Attributes:
        trajectories: Decoded trajectory messages by slot.
        billed_s: Billed seconds of every ended invocation, cold starts included.
        slot_s: Modelled seconds by slot until its trajectory was there, or it was given up; attempts added up.
        failed: Invocations that ended without an accepted trajectory.
        last_error: Of the last one of them, for people.
        raising_episodes: Open episodes whose every continuation in this round raised.
        has_raising_slot: Whether some slot's every attempt raised.
        late: Trajectories that came after the round had given them up.
    """

    trajectories: dict[int, dict[str, np.ndarray]] = field(default_factory=dict)
    billed_s: list[float] = field(default_factory=list)
    slot_s: dict[int, float] = field(default_factory=dict)
    failed: int = 0
    last_error: str = ""
    raising_episodes: set[str] = field(default_factory=set)
    has_raising_slot: bool = False
    late: int = 0


class Collection:
    """The actors of one attempt at one synchronous round, which is to be made whole or given up."""

    def __init__(
        self,
        fleet: Fleet,
        cache: Cache,
        meter: CostMeter,
        events: EventLog,
        breaker: CircuitBreaker,
        spec: ActorSpec,
        *,
        prefix: str,
        attempts: int,
        deadline_s: float,
        save_ledger: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
            prefix: Of the invocation ids; unique to this attempt at this round.
            attempts: Tries for each slot.
            deadline_s: Seconds from now until which actors are awaited.
            save_ledger: Puts the meter's state on disk; called before a replacement starts.
            clock: Monotonic seconds.
        """
        self._save_ledger = save_ledger
        self._cache, self._meter, self._events = cache, meter, events
        self._breaker, self._spec, self._prefix, self._attempts = breaker, spec, prefix, attempts
        self._clock, self._deadline_s = clock, clock() + deadline_s
        self._actors = Actors(fleet, cache, meter, clock)
        self._episodes: dict[int, OpenEpisodeRecord] = {}
        self._raised: dict[int, bool] = {}
        self._may_replace = True
        self.collected = Collected()

    @property
    def started(self) -> int:
        """Slots that were started."""
        return len(self.collected.slot_s)

    def start(self, slots: Sequence[int], episodes: Mapping[int, OpenEpisodeRecord]) -> None:
        """Starts one actor for each slot; their reservations are already made.

        Args:
            episodes: The open episode that a slot continues, where there is one.
        """
        self._episodes.update(episodes)
        for slot in slots:
            self.collected.slot_s[slot] = 0.0
        self._actors.start([self._actor(slot, 0) for slot in slots])

    def finish(self) -> Collected:
        """Waits for all of them, or for the deadline.

        Raises:
            ActorsKeepFailingError: The circuit breaker.
        """
        while self._actors.in_flight:
            remaining_s = self._deadline_s - self._clock()
            if remaining_s <= 0:
                self.abandon("the round's deadline passed")
                break
            if (ended := self._actors.next(remaining_s)) is not None:
                self._take_in(ended)
        self._close()
        return self.collected

    def abandon(self, reason: str) -> None:
        """Gives up all that still run, and settles them."""
        self._may_replace = False
        if not self._actors.in_flight:
            return
        self._events.append("actors_abandoned", reason=reason, count=len(self._actors.in_flight))
        for ended in self._actors.give_up_all():
            with suppress(ActorsKeepFailingError):
                self._take_in(ended)

    def _close(self) -> None:
        self.collected.late += self._actors.forget()
        self._cache.discard_episodes([record.episode_id for record in self._episodes.values()])
        if self.collected.late:
            self._events.append("trajectories_late", count=self.collected.late)

    def _actor(self, slot: int, attempt: int) -> Actor:
        return Actor(f"{self._prefix}-{slot}-{attempt}", self._spec, slot, attempt, slot, self._episodes.get(slot))

    def _take_in(self, ended: Ended) -> None:
        slot = ended.actor.slot
        if ended.seconds is not None:
            self.collected.billed_s.append(ended.seconds)
            self.collected.slot_s[slot] += ended.seconds
        if ended.trajectory is not None:
            self.collected.trajectories[slot] = ended.trajectory
            self._breaker.success()
        else:
            self._failed(ended)

    def _failed(self, ended: Ended) -> None:
        actor = ended.actor
        self.collected.failed += 1
        self.collected.last_error = ended.reason
        if ended.outcome.status == "abandoned":
            return
        tell_failure(self._events, actor, ended.outcome.status, ended.reason)
        self._raised[actor.slot] = self._raised.get(actor.slot, True) and ended.is_its_own_error
        if actor.attempt + 1 == self._attempts and self._raised[actor.slot]:
            self.collected.has_raising_slot = True
            if actor.episode:
                self.collected.raising_episodes.add(actor.episode_id)
        self._breaker.failure(ended.reason)
        if self._may_replace and actor.attempt + 1 < self._attempts and self._clock() < self._deadline_s:
            self._replace(actor.slot, actor.attempt + 1)

    def _replace(self, slot: int, attempt: int) -> None:
        if self._meter.reserve([Work(ACTOR, slot, attempt)]):
            self._events.append("actor_replaced", slot=slot, attempt=attempt)
            self._save_ledger()
            self._actors.start([self._actor(slot, attempt)])
        else:
            self._events.append("replacement_refused", slot=slot, reason="the budget cannot hold it")


def tell_failure(events: EventLog, actor: Actor, status: str, reason: str) -> None:
    """Records an invocation without a usable trajectory."""
    events.append("actor_failed", invocation_id=actor.invocation_id, slot=actor.slot, attempt=actor.attempt,
                  status=status, error=reason)
