"""Fleets, where actors run, and the cache for their messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol


@dataclass(frozen=True)
class Invocation:
    """One actor to start.

    Attributes:
        event: What its handler receives (JSON values only).
        limit_s: Seconds after which the local fleet ends it, if not the fleet's own limit.
        process: The only process of the local fleet that may serve it, counted from 0; None = any. Other fleets ignore
            it.
    """

    invocation_id: str
    event: Mapping[str, Any]
    process: int | None = None
    limit_s: float | None = None


OutcomeStatus = Literal["ok", "error", "crashed", "timeout", "abandoned"]


@dataclass(frozen=True)
class Outcome:
    """How one invocation ended.

    Attributes:
        status: ``ok`` (the handler returned), ``error`` (it raised), ``crashed`` (its process died), ``timeout``,
            ``abandoned`` (the round no longer waited for it).
        response: The handler's return value if ``ok``.
        error: A message for users if something went wrong, otherwise empty.
        was_started: False if it was given up before it started. Then it costs nothing.
        billed_s: Billed seconds, without start-up unless it is metered.
        init_s: Billed seconds of a cold start. If metered, this actor's part, contained in ``billed_s``. Otherwise what
            a cold start would take.
        is_metered: Whether the platform reported the billed duration. Otherwise ``billed_s`` is counted here, or an
            upper bound.
        cpu_s, init_cpu_s: Measured CPU seconds of the invocation, if it made no environment and was served alone, and
            of its start-up, if known.
        waited_s: Seconds that its environment waited for something other than a CPU; None if they are unknown.
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
    """Invocations that run at once; further ones are queued."""

    def start(self, invocations: Sequence[Invocation]) -> None:
        """Starts these actors or queues them. Returns at once."""

    def wait(self, timeout_s: float) -> list[Outcome]:
        """Returns the outcomes since the last call. Waits up to ``timeout_s`` for the first one."""

    def abandon(self, invocation_ids: Sequence[str]) -> None:
        """Gives up these invocations. Each open one ends soon with an outcome of its own."""

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
