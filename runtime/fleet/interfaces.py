"""Fleets, where actors run, and the cache for their messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from runtime.money.work import Outcome


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
