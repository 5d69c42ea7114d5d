"""One round's actors: started, awaited until the deadline, replaced where they fail, billed, and taken in."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lambda_actor import wire
from lambda_actor.cache import LATE
from lambda_actor.errors import CacheError, SchemaError, WireError
from runtime.cost.meter import INIT_SECONDS_MAX
from runtime.errors import ActorsKeepFailingError
from runtime.interfaces import Cache, CostMeter, Fleet, Invocation, OpenEpisodeRecord, Outcome
from runtime.records import EventLog

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
    """What every actor of a round has in common.

    Attributes:
        event: The event but for ``invocation_id``, ``slot`` and ``episode_id``.
        observation_size, action_size: What its trajectory's arrays must have.
        weights_bytes: Size of the weights that it fetches.
        timeout_s: Longest that it is billed for.
    """

    event: Mapping[str, Any]
    observation_size: int
    action_size: int
    weights_bytes: int
    timeout_s: float


@dataclass
class Collected:
    """What a round's actors brought.

    Attributes:
        trajectories: Decoded TRAJECTORY messages by slot.
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
    """The actors of one attempt at one round."""

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
        self._fleet, self._cache, self._meter, self._events = fleet, cache, meter, events
        self._breaker, self._spec, self._prefix, self._attempts = breaker, spec, prefix, attempts
        self._clock, self._deadline_s = clock, clock() + deadline_s
        self._pending: dict[str, tuple[int, int]] = {}
        self._episodes: dict[int, OpenEpisodeRecord] = {}
        self._invoked: list[str] = []
        self._arrived: dict[str, bytes] = {}
        self._raised: dict[int, bool] = {}
        self._outcomes: deque[Outcome] = deque()
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
        self._cache.publish_episodes({record.episode_id: record.data for record in episodes.values()})
        for slot in slots:
            self.collected.slot_s[slot] = 0.0
        self._invoke([(slot, 0) for slot in slots])

    def finish(self) -> Collected:
        """Waits for all of them, or for the deadline.

        Raises:
            ActorsKeepFailingError: The circuit breaker.
        """
        while self._pending:
            remaining_s = self._deadline_s - self._clock()
            if remaining_s <= 0:
                self.abandon("the round's deadline passed")
                break
            self._take_in(remaining_s)
        self._close()
        return self.collected

    def abandon(self, reason: str) -> None:
        """Gives up all that still run, and settles them."""
        self._may_replace = False
        if not self._pending:
            return
        self._events.append("actors_abandoned", reason=reason, count=len(self._pending))
        with suppress(CacheError):
            for invocation_id in self._pending:
                # An actor that the fleet cannot kill asks the cache whether it is still wanted.
                self._cache.cancel(invocation_id)
        self._fleet.abandon(list(self._pending))
        give_up_s = time.monotonic() + _ABANDON_TIMEOUT_S
        while self._pending and time.monotonic() < give_up_s:
            with suppress(ActorsKeepFailingError):
                self._take_in(give_up_s - time.monotonic())
        for invocation_id, (slot, attempt) in self._pending.items():
            self._cache.cancel(invocation_id)
            self._settle(slot, attempt, Outcome(
                invocation_id, "abandoned", billed_s=self._spec.timeout_s, init_s=INIT_SECONDS_MAX), 0)
            self.collected.failed += 1
        self._pending.clear()

    def _close(self) -> None:
        self.collected.late += self._cache.forget(self._invoked)
        self._cache.discard_episodes([record.episode_id for record in self._episodes.values()])
        if self.collected.late:
            self._events.append("trajectories_late", count=self.collected.late)

    def _invoke(self, slots_and_attempts: Sequence[tuple[int, int]]) -> None:
        invocations = []
        for slot, attempt in slots_and_attempts:
            invocation_id = f"{self._prefix}-{slot}-{attempt}"
            self._pending[invocation_id] = (slot, attempt)
            self._invoked.append(invocation_id)
            invocations.append(Invocation(invocation_id, {
                **self._spec.event, "invocation_id": invocation_id, "slot": slot,
                "episode_id": self._episode_id(slot)}))
        self._cache.expect([invocation.invocation_id for invocation in invocations])
        self._fleet.start(invocations)

    def _episode_id(self, slot: int) -> str:
        return self._episodes[slot].episode_id if slot in self._episodes else ""

    def _take_in(self, timeout_s: float) -> None:
        """Handles what ended; an outcome that ends the run leaves the others for the next call."""
        if not self._outcomes:
            self._outcomes.extend(self._fleet.wait(timeout_s))
        while self._outcomes:
            self._ended(self._outcomes.popleft())

    def _ended(self, outcome: Outcome) -> None:
        if outcome.invocation_id not in self._pending:
            return
        slot, attempt = self._pending.pop(outcome.invocation_id)
        data, reason = self._trajectory_of(outcome)
        if not outcome.was_started:
            self._meter.actor_never_started(slot, attempt)
            self._failed(slot, attempt, outcome, reason)
            return
        self._settle(slot, attempt, outcome, len(data or b""))
        if data is not None:
            try:
                trajectory = wire.decode(data, wire.Kind.TRAJECTORY)
                self._check(trajectory, slot, outcome.invocation_id)
            except WireError as error:
                reason = f"{type(error).__name__}: {error}"
            else:
                self.collected.trajectories[slot] = trajectory
                self._breaker.success()
                return
        self._failed(slot, attempt, outcome, reason)

    def _trajectory_of(self, outcome: Outcome) -> tuple[bytes | None, str]:
        """The trajectory's bytes if it was accepted, whatever became of its actor afterwards; else why not."""
        if outcome.status == "ok":
            if outcome.response["status"] == LATE:
                return None, "its trajectory came too late"
        elif self._cache.cancel(outcome.invocation_id):
            return None, outcome.error
        while outcome.invocation_id not in self._arrived:
            taken = self._cache.take(_TAKE_TIMEOUT_S)
            if taken is None:
                self._cache.cancel(outcome.invocation_id)
                return None, "its trajectory was accepted, but is not in the cache any more"
            self._arrived[taken[0]] = taken[1]
        return self._arrived.pop(outcome.invocation_id), ""

    def _check(self, trajectory: Mapping[str, np.ndarray], slot: int, invocation_id: str) -> None:
        """Raises: SchemaError: It is not the trajectory that this slot was asked for."""
        steps = self._spec.event["fragment_steps"]
        found = {
            "invocation_id": wire.field_text(trajectory["invocation_id"]),
            "slot": int(trajectory["slot"]), "round_index": int(trajectory["round_index"]),
            "policy_version": int(trajectory["policy_version"]),
            "continued_episode": bytes(trajectory["continued_episode"]),
            "observations": trajectory["observations"].shape, "actions": trajectory["actions"].shape,
        }
        asked = {
            "invocation_id": invocation_id, "slot": slot, "round_index": self._spec.event["round_index"],
            "policy_version": self._spec.event["policy_version"],
            "continued_episode": self._episode_id(slot).encode(),
            "observations": (steps, self._spec.observation_size), "actions": (steps, self._spec.action_size),
        }
        for name, value in asked.items():
            if found[name] != value:
                raise SchemaError(f"trajectory of slot {slot}: {name} is {found[name]}, asked for was {value}")
        bootstrap_steps = trajectory["bootstrap_steps"]
        if not ((bootstrap_steps >= 0) & (bootstrap_steps < steps)).all() or (np.diff(bootstrap_steps) <= 0).any():
            raise SchemaError(f"trajectory of slot {slot}: bootstrap_steps are not increasing steps of the fragment")
        for name in ("observations", "actions", "log_probs", "rewards", "bootstrap_observations", "episode_returns"):
            if not np.isfinite(trajectory[name]).all():
                raise SchemaError(f"trajectory of slot {slot}: {name} is not finite")

    def _settle(self, slot: int, attempt: int, outcome: Outcome, trajectory_bytes: int) -> None:
        episode = self._episodes.get(slot)
        traffic_bytes = self._spec.weights_bytes + trajectory_bytes + (len(episode.data) if episode else 0)
        with_start_s = self._meter.actor_ended(
            slot, attempt, billed_s=outcome.billed_s, init_s=outcome.init_s, is_metered=outcome.is_metered,
            traffic_bytes=traffic_bytes)
        self.collected.billed_s.append(with_start_s)
        self.collected.slot_s[slot] += with_start_s

    def _failed(self, slot: int, attempt: int, outcome: Outcome, reason: str) -> None:
        self.collected.failed += 1
        self.collected.last_error = reason
        if outcome.status == "abandoned":
            return
        self._events.append("actor_failed", invocation_id=outcome.invocation_id, slot=slot, attempt=attempt,
                            status=outcome.status, error=reason)
        self._raised[slot] = self._raised.get(slot, True) and _is_its_own_error(outcome)
        if attempt + 1 == self._attempts and self._raised[slot]:
            self.collected.has_raising_slot = True
            if slot in self._episodes:
                self.collected.raising_episodes.add(self._episode_id(slot))
        self._breaker.failure(reason)
        if self._may_replace and attempt + 1 < self._attempts and self._clock() < self._deadline_s:
            if self._meter.add_replacement(slot, attempt + 1):
                self._events.append("actor_replaced", slot=slot, attempt=attempt + 1)
                self._save_ledger()
                self._invoke([(slot, attempt + 1)])
            else:
                self._events.append("replacement_refused", slot=slot, reason="the budget cannot hold it")


def _is_its_own_error(outcome: Outcome) -> bool:
    """Whether the rollout raised: not the process, not the cache, whose troubles pass."""
    return outcome.status == "error" and not outcome.error.startswith(_CACHE_ERRORS)
