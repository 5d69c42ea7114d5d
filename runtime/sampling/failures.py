"""What follows when actors fail: an event, a tripped breaker, the end of episodes that always raise."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from lambda_actor.errors import CacheError
from runtime.errors import ActorsKeepFailingError
from runtime.ports.fleet import Outcome
from runtime.ports.run import EventSink
from runtime.ports.sampling import Actor
from runtime.sampling.episodes import OpenEpisodes

_CACHE_ERRORS: tuple[str, ...] = (CacheError.__name__, *(one.__name__ for one in CacheError.__subclasses__()))


@dataclass(frozen=True)
class Patience:
    """How many failures are borne.

    Attributes:
        quorum: Share of a synchronous round's actors that must return for it to be trained on.
        attempts: Tries for each slot of a synchronous round, and for an open episode whose continuation raises.
        failures_max: Failures without a success between them that end the run.
    """

    quorum: float = 0.95
    attempts: int = 3
    failures_max: int = 16


class Failures:
    """Keeps account of failed actors, whatever the pacing of rounds.

    Ends a run whose actors keep failing, before it has paid for failures all night.

    Attributes:
        patience: How many are borne.
        has_raising_slot: Whether some slot's, or some episode's, every try has raised since `begin`.
    """

    def __init__(self, events: EventSink, episodes: OpenEpisodes, patience: Patience) -> None:
        """Starts with no failure.

        Args:
            events: Records each failure.
            episodes: Are told of episodes whose every continuation raises.
            patience: How many failures are borne.
        """
        self._events, self._episodes, self.patience = events, episodes, patience
        self._in_a_row = 0
        self._raised: Counter[str] = Counter()
        self.has_raising_slot = False

    def begin(self) -> None:
        """Forgets which rollouts have raised: a new attempt at a round begins."""
        self._raised.clear()
        self.has_raising_slot = False

    def succeeded(self, actor: Actor) -> None:
        """Notes an accepted trajectory."""
        self._raised.pop(_key(actor), None)
        self._in_a_row = 0

    def failed(self, actor: Actor, outcome: Outcome, reason: str) -> None:
        """Notes an actor that brought no usable trajectory although it was awaited.

        Args:
            outcome: How its invocation ended.
            reason: Why there is no trajectory.

        Raises:
            ActorsKeepFailingError: One failure too many in a row.
        """
        self._events.append("actor_failed", invocation_id=actor.invocation_id, slot=actor.work.slot,
                            attempt=actor.work.attempt, status=outcome.status, error=reason)
        key = _key(actor)
        self._raised[key] += _is_its_own(outcome)
        if self._raised[key] >= self.patience.attempts:
            del self._raised[key]
            self.has_raising_slot = True
            if actor.episode is not None:
                self._episodes.suspect(actor.episode_id, reason)
        self._in_a_row += 1
        if self._in_a_row >= self.patience.failures_max:
            raise ActorsKeepFailingError(f"{self._in_a_row} actors in a row failed; the last one: ", reason)


def _key(actor: Actor) -> str:
    return actor.episode_id or f"slot {actor.work.slot}"


def _is_its_own(outcome: Outcome) -> bool:
    """Whether the rollout raised: not the process, and not the cache, whose troubles pass."""
    return outcome.status == "error" and not outcome.error.startswith(_CACHE_ERRORS)
