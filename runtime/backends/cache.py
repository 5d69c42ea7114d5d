"""The learner's connection to the trajectory cache, and what actors are told of it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from lambda_actor.cache import TrajectoryCache, redacted
from lambda_actor.errors import ActorError
from runtime.config.resolved import ResolvedExperiment
from runtime.errors import ServerError

_SMALLEST_CONCURRENCY = 10
"""What a new AWS account may have of concurrent executions."""


def connect(experiment: ResolvedExperiment, url: str, run_id: str, **options: Any) -> TrajectoryCache:
    """Makes the run's cache, which connects when it is first used.

    Args:
        experiment: Resolved.
        url: Of the server.
        run_id: What the run's keys begin with.
        **options: Credentials and attempts, as `TrajectoryCache` takes them.
    """
    return TrajectoryCache(url, run_id, ttl_s=ttl_s(experiment), bytes_max=_bytes_max(experiment), **options)


def open_cache(
    experiment: ResolvedExperiment, url: str, run_id: str, stack: ExitStack, **options: Any
) -> TrajectoryCache:
    """Makes the run's cache, and proves that it answers.

    Args:
        experiment: Resolved.
        url: Of the server.
        run_id: What the run's keys begin with.
        stack: Closes it.
        **options: As of `connect`.

    Raises:
        ServerError: It does not answer.
    """
    try:
        cache = connect(experiment, url, run_id, **options)
        stack.callback(cache.close)
        cache.ping()
    except ActorError as error:
        raise ServerError(f"cache.url = {redacted(url)}: {error}") from None
    return cache


def actor_event(experiment: ResolvedExperiment, url: str, credential: str) -> dict[str, Any]:
    """Returns the fields of an actor's event that lead it to the cache.

    Args:
        experiment: Resolved.
        url: Without credentials.
        credential: Where the actor finds them, as `lambda_actor.credentials` explains; empty if its process has them.
    """
    return {"cache_url": url, "cache_credential": credential, "cache_ttl_s": ttl_s(experiment),
            "cache_bytes_max": _bytes_max(experiment)}


def ttl_s(experiment: ResolvedExperiment) -> int:
    """Seconds after which keys expire that nobody removed.

    That is longer than two rounds can last: nothing expires under an actor that goes on from one round to the next.
    """
    fleet = experiment.fleet
    waves = experiment.scaler.waves(_SMALLEST_CONCURRENCY if fleet.kind == "lambda" else fleet.processes)
    return 2 * (fleet.round_deadline_s * waves + experiment.learner.update_timeout_s) + 600


def _bytes_max(experiment: ResolvedExperiment) -> int:
    return experiment.cache.memory_mib * 2**20
