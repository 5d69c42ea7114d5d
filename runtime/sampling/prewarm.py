"""Starts actors once before the first round: warm for it, and proof that they start at all."""

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
    """Lets actors import everything and reach the cache; waits for them.

    Args:
        actors: How many; fewer if the budget holds fewer.
        event: What each of them receives but for its id; see `lambda_actor.handler`.
        timeout_s: Longest that one may run, without its start-up.
        save_ledger: Puts the meter's state on disk; called before anything starts.
        clock: Monotonic seconds.

    Raises:
        BudgetError: The budget does not hold a single one.
        ActorsKeepFailingError: Not a single one started.
    """
    works = [Work(ACTOR, slot) for slot in range(actors)]
    works = works[: meter.reserve(works)]
    if not works:
        raise BudgetError(f"the budget does not hold even one actor: {meter.free_usd:.4f} USD of it are free, after "
                          "what the deployment has cost so far")
    spent_usd, started_s = meter.spent_usd, clock()
    save_ledger()
    spec = ActorSpec({"prewarm": True, **event}, _NO_SPACES, weights_bytes=0, timeout_s=timeout_s)
    sampler.start([Actor(f"prewarm-{work.slot}", spec, work, work.slot) for work in works])
    limit_s = timeout_s + INIT_SECONDS_MAX
    errors = []
    while sampler.in_flight and (left_s := started_s + limit_s - clock()) > 0:
        if (ended := sampler.next(left_s)) is not None and ended.outcome.status != "ok":
            errors.append(ended.outcome.error)
    errors += [f"no answer within {limit_s:.0f} s" for ended in sampler.give_up_all() if ended.outcome.status != "ok"]
    sampler.tidy()
    save_ledger()
    events.append("actors_prewarmed", actors=len(works), failed=len(errors), usd=meter.spent_usd - spent_usd,
                  seconds=clock() - started_s, error=errors[0] if errors else "")
    if len(errors) == len(works):
        raise ActorsKeepFailingError("no actor starts: ", errors[0])


_NO_SPACES = Spaces((1,), action_size=1)
"""Prewarmed actors bring no trajectory that could fit any."""
