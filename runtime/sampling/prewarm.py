"""Starts actors once before the first round, to warm them up and to check that they start."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from lambda_actor.spaces import Spaces
from runtime.cost.model import INIT_SECONDS_MAX
from runtime.errors import ActorsKeepFailingError, BudgetError
from runtime.ports.money import ACTOR, CostMeter, Work
from runtime.ports.run import EventSink
from runtime.ports.sampling import Actor, ActorSpec, Sampler


def prewarm(
    sampler: Sampler,
    meter: CostMeter,
    events: EventSink,
    *,
    actors: int,
    event: Mapping[str, Any],
    timeout_s: float,
    save_ledger: Callable[[], None],
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Makes actors import everything and reach the cache, and waits for them.

    Args:
        actors: Number of actors; fewer if the budget requires it.
        event: Event for each of them, without the id; see `lambda_actor.handler`.
        timeout_s: Time limit for each, without its startup.
        save_ledger: Writes the meter's state to disk; called before anything starts.
        clock: Monotonic seconds.

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
    spent_usd, started_s = meter.spent_usd, clock()
    save_ledger()
    spec = ActorSpec({"prewarm": True, **event}, _NO_SPACES, weights_bytes=0, timeout_s=timeout_s)
    sampler.start([Actor(f"prewarm-{work.slot}", spec, work, work.slot) for work in works])
    limit_s = timeout_s + INIT_SECONDS_MAX
    errors = []
    while sampler.in_flight and (left_s := started_s + limit_s - clock()) > 0:
        if (ended := sampler.next(left_s)) is not None and ended.outcome.status != "ok":
            errors.append(ended.outcome.error)
    errors += [
        f"no answer within {limit_s:.0f} s"
        for ended in sampler.give_up_all()
        if ended.outcome.status != "ok"
    ]
    sampler.tidy()
    save_ledger()
    events.append(
        "actors_prewarmed",
        actors=len(works),
        failed=len(errors),
        usd=meter.spent_usd - spent_usd,
        seconds=clock() - started_s,
        error=errors[0] if errors else "",
    )
    if len(errors) == len(works):
        raise ActorsKeepFailingError("no actor starts: ", errors[0])


_NO_SPACES = Spaces((1,), action_size=1)
"""Rejects any trajectory: prewarmed actors have none."""
