"""Makes a run's cache, and connects learner and actors, with or without a cache."""

from __future__ import annotations

from typing import Any

from lambda_actor.cache import TrajectoryCache, redacted
from lambda_actor.errors import ActorError
from runtime.errors import ServerError
from runtime.experiment.resolved import ResolvedExperiment
from runtime.fleet.opening import Opening

NO_CACHE = "none, messages travel with requests and responses"
"""Label of the server with ``cache.kind = none``."""
_SMALLEST_CONCURRENCIES = {"lambda": 10, "ray": 1}
"""Concurrent executions of a new AWS account, and the least that a Ray cluster holds."""


def open_cache(opening: Opening, url: str, **options: Any) -> TrajectoryCache:
    """Makes the run's cache, and checks that it answers.

    Args:
        opening: The run; its stack closes the cache.
        url: URL of the server.
        **options: Credentials for `TrajectoryCache`.

    Raises:
        ServerError: It does not answer.
    """
    try:
        cache = TrajectoryCache(url, opening.run_id, ttl_s=ttl_s(opening.experiment), **options)
        opening.stack.callback(cache.close)
        cache.ping()
    except ActorError as error:
        raise ServerError(f"cache.url = {redacted(url)}: {error}") from None
    return cache


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
    batches = experiment.scaler.batches(_SMALLEST_CONCURRENCIES.get(fleet.kind, fleet.processes))
    return 2 * (fleet.round_deadline_s * batches + experiment.learner.update_timeout_s) + 600
