"""Starts actors once before the first round, to warm them up and to check that they start."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lambda_actor.spaces import Spaces
from runtime.errors import ActorsKeepFailingError, BudgetError
from runtime.fleet.actors import ActorSpec
from runtime.fleet.flight import Flight, Group
from runtime.money.meter import Meter
from runtime.money.model import INIT_SECONDS_MAX
from runtime.money.work import ACTOR, Work
from runtime.records.observers import EventSink


def prewarm(
    flight: Flight,
    meter: Meter,
    events: EventSink,
    *,
    actors: int,
    event: Mapping[str, Any],
    timeout_s: float,
    save_ledger: Callable[[], None],
) -> None:
    """Makes actors import everything and reach the cache, and waits for them.

    Args:
        actors: Number of actors; fewer if the budget requires it.
        event: Event for each of them, without the id; see `lambda_actor.handler`.
        timeout_s: Time limit for each, without its startup.
        save_ledger: Writes the meter's state to disk; called before anything starts.

    Raises:
        BudgetError: The budget has no room for a single actor.
        ActorsKeepFailingError: No actor started.
    """
    works = [Work(ACTOR, slot) for slot in range(actors)]
    works = works[: meter.reserve(works)]
    if not works:
        raise BudgetError(
            f"the budget does not hold even one actor: {meter.free_usd:.4f} USD of it are free, after "
            "what the deployment has cost so far"
        )
    spent_usd, started_s = meter.spent_usd, flight.clock()
    save_ledger()
    spec = ActorSpec({"prewarm": True, **event}, _NO_SPACES, weights_bytes=0, timeout_s=timeout_s)
    group = Group("prewarm")
    flight.start(group, spec, works, range(len(works)))
    limit_s = timeout_s + INIT_SECONDS_MAX
    flight.finish(started_s + limit_s, f"no answer within {limit_s:.0f} s")
    save_ledger()
    events.append(
        "actors_prewarmed",
        actors=len(works),
        failed=group.tally.failed,
        usd=meter.spent_usd - spent_usd,
        seconds=flight.clock() - started_s,
        error=group.tally.last_error,
    )
    if group.tally.failed == len(works):
        raise ActorsKeepFailingError("no actor starts: ", group.tally.last_error)


_NO_SPACES = Spaces((1,), action_size=1)
"""Rejects any trajectory: prewarmed actors have none."""
