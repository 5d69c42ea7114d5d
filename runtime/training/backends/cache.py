"""Makes a run's cache, and connects learner and actors, with or without a cache."""

from __future__ import annotations

from typing import Any

from lambda_actor.cache import TrajectoryCache, redacted
from lambda_actor.errors import ActorError
from runtime.errors import ServerError
from runtime.fleet.opening import Opening

NO_CACHE = "none, messages travel with requests and responses"
"""Label of the server with ``cache.kind = none``."""
TTL_S = 86_400
"""Seconds after which keys that nothing touches expire: a day, far longer than an actor works."""


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
        cache = TrajectoryCache(url, opening.run_id, ttl_s=TTL_S, **options)
        opening.stack.callback(cache.close)
        cache.ping()
    except ActorError as error:
        raise ServerError(f"cache.url = {redacted(url)}: {error}") from None
    return cache


def actor_event(url: str, credential: str = "") -> dict[str, Any]:
    """Returns the fields of an actor's event that lead it to the cache.

    Args:
        url: Without credentials.
        credential: Where the actor finds them, see `lambda_actor.cache`; empty if its process has them.
    """
    return {
        "cache_url": url,
        "cache_credential": credential,
        "cache_ttl_s": TTL_S,
    }
