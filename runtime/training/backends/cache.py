"""Makes a run's cache and fleet, and connects learner and actors, with or without a cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lambda_actor.cache import TrajectoryCache, redacted
from lambda_actor.errors import ActorError
from runtime.errors import ServerError
from runtime.experiment.resolved import ResolvedExperiment
from runtime.fleet import FleetSetup
from runtime.fleet.interfaces import Fleet
from runtime.records.layout import ACTORS_LOG
from runtime.training.opening import Run

NO_CACHE = "none: messages travel with requests and responses"
"""Label of the server with ``cache.kind = none``."""
_SMALLEST_CONCURRENCIES = {"lambda": 10, "ray": 1}
"""Concurrent executions of a new AWS account, and the least that a Ray cluster holds."""


def open_cache(run: Run, url: str, **options: Any) -> TrajectoryCache:
    """Makes the run's cache, and checks that it answers.

    Args:
        run: The run; its stack closes the cache.
        url: URL of the server.
        **options: Credentials for `TrajectoryCache`.

    Raises:
        ServerError: It does not answer.
    """
    try:
        cache = TrajectoryCache(url, run.run_id, ttl_s=ttl_s(run.experiment), **options)
        run.stack.callback(cache.close)
        cache.ping()
    except ActorError as error:
        raise ServerError(f"cache.url = {redacted(url)}: {error}") from None
    return cache


def open_fleet(run: Run, make: Callable[[FleetSetup], Fleet], **setup: Any) -> Fleet:
    """Makes a fleet for a run.

    Args:
        run: The run; its stack closes the fleet.
        make: Makes the fleet, as its settings do.
        **setup: Other fields of `FleetSetup`.

    Raises:
        FleetError: It cannot be started.
    """
    found = FleetSetup(log_path=run.directory.path / ACTORS_LOG, **setup)
    fleet: Fleet = run.stack.opened(lambda: make(found))
    return fleet


def actor_event(
    experiment: ResolvedExperiment, url: str, credential: str = "", digest: str = ""
) -> dict[str, Any]:
    """Returns the fields of an actor's event that lead it to the cache.

    Args:
        experiment: Resolved.
        url: Without credentials.
        credential: Where the actor finds them, see `lambda_actor.credentials`; empty if its process has them.
        digest: Digest of the word that stops the run's actors; empty if there is none.
    """
    return {
        "cache_url": url,
        "cache_credential": credential,
        "cache_ttl_s": ttl_s(experiment),
        "stop_digest": digest,
    }


def ttl_s(experiment: ResolvedExperiment) -> int:
    """Returns the seconds after which leftover keys expire.

    This is longer than two rounds, so nothing expires while an actor works across rounds.
    """
    fleet = experiment.fleet
    waves = experiment.scaler.waves(_SMALLEST_CONCURRENCIES.get(fleet.kind, fleet.processes))
    return 2 * (fleet.round_deadline_s * waves + experiment.learner.update_timeout_s) + 600
