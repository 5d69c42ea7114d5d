"""Where actors run, and how their messages get there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol


@dataclass(frozen=True)
class Invocation:
    """One actor to start.

    Attributes:
        event: What its handler receives (JSON values only).
        timeout_s: The most seconds that it is billed for, without its start-up; a fleet's own limit may be shorter.
        replayed_steps: Steps of its open episode that it takes again.
        limit_s: Seconds after which the local fleet ends it, if that is not the fleet's own limit.
        process: The only process of the local fleet that may serve it, counted from 0; None if any may. Other fleets do
            not read it.
    """

    invocation_id: str
    event: Mapping[str, Any]
    timeout_s: float = math.inf
    replayed_steps: int = 0
    process: int | None = None
    limit_s: float | None = None


OutcomeStatus = Literal["ok", "error", "crashed", "timeout", "abandoned"]


@dataclass(frozen=True)
class Outcome:
    """How one invocation ended.

    Attributes:
        status: ``ok`` (the handler returned), ``error`` (it raised), ``crashed`` (its process died), ``timeout``,
            ``abandoned`` (the round no longer waited for it).
        response: The handler's return value where ``ok``.
        error: What went wrong, for people, else empty.
        was_started: False where it was given up before it began: then it costs nothing.
        billed_s: Billed duration in seconds; without start-up, unless it is metered.
        init_s: Billed duration of a cold start: where it is metered, what this actor had of it, contained in
            ``billed_s``; else what it would have, were it to start cold.
        is_metered: Whether the platform said what it bills; else ``billed_s`` is modelled, or an upper bound.
        cpu_s, init_cpu_s: Measured CPU seconds of it, if it made no environment and was served alone, and of its
            start-up, if known.
        waited_s: Seconds that its environment waited for something other than a CPU; None if it may have waited, and
            nobody can tell.
    """

    invocation_id: str
    status: OutcomeStatus
    response: Mapping[str, Any] | None = None
    error: str = ""
    was_started: bool = True
    billed_s: float = 0.0
    init_s: float = 0.0
    is_metered: bool = False
    cpu_s: float = 0.0
    init_cpu_s: float = 0.0
    waited_s: float | None = 0.0


class Fleet(Protocol):
    """Where actors run."""

    concurrency: int
    """Invocations that really run at once; more are queued."""

    def start(self, invocations: Sequence[Invocation]) -> None:
        """Starts these actors, or queues them; returns at once."""

    def wait(self, timeout_s: float) -> list[Outcome]:
        """What ended since the last call; waits until there is something, at most ``timeout_s``."""

    def abandon(self, invocation_ids: Sequence[str]) -> None:
        """Gives these up: each still open one ends, soon, with an outcome of its own."""

    def close(self) -> None:
        """Ends everything; idempotent."""


class Cache(Protocol):
    """The learner's side of the trajectory cache (see `lambda_actor.cache.TrajectoryCache`)."""

    def publish_weights(self, policy_version: int, weights: bytes) -> None: ...

    def forget_weights(self, policy_version: int) -> None: ...

    def publish_episodes(self, episodes: Mapping[str, bytes]) -> None: ...

    def discard_episodes(self, episode_ids: Sequence[str]) -> None: ...

    def expect(self, invocation_ids: Sequence[str]) -> None: ...

    def take(self, invocation_id: str) -> bytes | None: ...
