"""Handles failing actors: events, the circuit breaker, and episodes that always raise."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from lambda_actor.errors import CacheError
from runtime.errors import ActorsKeepFailingError
from runtime.fleet.actors import Actor
from runtime.fleet.episodes import OpenEpisodes
from runtime.money.work import Outcome
from runtime.records.observers import EventSink

CACHE_ERRORS: tuple[str, ...] = (
    CacheError.__name__,
    *(error.__name__ for error in CacheError.__subclasses__()),
)
"""Class names of errors that are not an environment's."""


@dataclass(frozen=True)
class Patience:
    """Limits for failures.

    Attributes:
        quorum: Share of a synchronous round's actors that must return.
        attempts: Tries for each slot of a synchronous round, and for an open episode whose continuation raises.
        failures_max: Consecutive failures that end the run.
    """

    quorum: float = 0.95
    attempts: int = 3
    failures_max: int = 16


class Failures:
    """Counts failed actors, with any pacing of rounds.

    Ends a run whose actors keep failing, before it pays for failures all night.

    Attributes:
        patience: The limits.
        has_raising_slot: Whether every try of some slot or episode has raised since `begin`.
    """

    def __init__(self, events: EventSink, episodes: OpenEpisodes, patience: Patience) -> None:
        """Starts without failures.

        Args:
            events: Records each failure.
            episodes: Informed of episodes whose every continuation raises.
            patience: The limits.
        """
        self.patience = patience
        self._events = events
        self._episodes = episodes
        self._in_a_row = 0
        self._raised: Counter[str] = Counter()
        self.has_raising_slot = False

    def begin(self) -> None:
        """Forgets which rollouts have raised, for a new attempt at a round."""
        self._raised.clear()
        self.has_raising_slot = False

    def succeeded(self, actor: Actor) -> None:
        """Records an accepted trajectory."""
        self._raised.pop(_key(actor), None)
        self._in_a_row = 0

    def failed(self, actor: Actor, outcome: Outcome, reason: str) -> None:
        """Records an awaited actor without a usable trajectory.

        Args:
            outcome: How its invocation ended.
            reason: Why there is no trajectory.

        Raises:
            ActorsKeepFailingError: Too many failures in a row.
        """
        self._events.append(
            "actor_failed",
            invocation_id=actor.invocation_id,
            slot=actor.work.slot,
            attempt=actor.work.attempt,
            status=outcome.status,
            error=reason,
        )
        key = _key(actor)
        # A rollout that raised is to blame itself; problems of process and cache pass.
        self._raised[key] += outcome.status == "error" and outcome.error_type not in CACHE_ERRORS
        if self._raised[key] >= self.patience.attempts:
            del self._raised[key]
            self.has_raising_slot = True
            if actor.episode is not None:
                self._episodes.suspect(actor.episode_id, reason)
        self._in_a_row += 1
        if self._in_a_row >= self.patience.failures_max:
            raise ActorsKeepFailingError(
                f"{self._in_a_row} actors in a row failed; the last one: ", reason
            )


def _key(actor: Actor) -> str:
    return actor.episode_id or f"slot {actor.work.slot}"
