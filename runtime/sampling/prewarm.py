"""Actors started once before the first round: warm for it, and proof that they start at all."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from runtime.cost.model import INIT_SECONDS_MAX
from runtime.errors import ActorsKeepFailingError, BudgetError
from runtime.interfaces import ACTOR, CostMeter, Fleet, Invocation, Outcome, Usage, Work
from runtime.records.events import EventLog

_GRACE_S = 30.0


def prewarm(
    fleet: Fleet,
    meter: CostMeter,
    events: EventLog,
    *,
    actors: int,
    event: Mapping[str, Any],
    timeout_s: float,
    save_ledger: Callable[[], None],
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Lets ``actors`` actors, or as many as the budget holds, import everything and reach the cache; waits for them.

    Args:
        event: What each of them receives but for its id; see `lambda_actor.handler`.
        timeout_s: Longest that one may run, without its start-up.
        save_ledger: Puts the meter's state on disk; called before anything starts.
        clock: Monotonic seconds.

    Raises:
        BudgetError: It holds none.
        ActorsKeepFailingError: Not one of them could.
    """
    slots = range(meter.reserve([Work(ACTOR, slot) for slot in range(actors)]))
    works = {f"prewarm-{slot}": Work(ACTOR, slot) for slot in slots}
    if not slots:
        raise BudgetError(f"the budget does not hold even one actor: {meter.free_usd:.4f} USD of it are free, after "
                          "what the deployment has cost so far")
    spent_usd, started_s = meter.spent_usd, clock()
    save_ledger()
    fleet.start([Invocation(one, {"prewarm": True, **event, "invocation_id": one}) for one in works])
    outcomes = _wait(fleet, set(works), timeout_s + INIT_SECONDS_MAX, clock)
    for invocation_id, work in works.items():
        outcome = outcomes.get(invocation_id) or Outcome(
            invocation_id, "abandoned", billed_s=timeout_s, init_s=INIT_SECONDS_MAX)
        meter.settle(work, Usage(outcome.billed_s, outcome.init_s, outcome.is_metered) if outcome.was_started else None)
    save_ledger()
    failed = [outcome.error for outcome in outcomes.values() if outcome.status != "ok"]
    events.append("actors_prewarmed", actors=len(slots), failed=len(slots) - len(outcomes) + len(failed),
                  usd=meter.spent_usd - spent_usd, seconds=clock() - started_s,
                  error=failed[0] if failed else "")
    if len(failed) + len(slots) - len(outcomes) == len(slots):
        silence = f"none answered within {timeout_s + INIT_SECONDS_MAX:.0f} s"
        raise ActorsKeepFailingError(f"no actor starts: {failed[0] if failed else silence}")


def _wait(fleet: Fleet, waiting: set[str], timeout_s: float, clock: Callable[[], float]) -> dict[str, Outcome]:
    outcomes: dict[str, Outcome] = {}
    deadline_s = clock() + timeout_s
    for limit_s in (deadline_s, deadline_s + _GRACE_S):
        while waiting - outcomes.keys() and (remaining_s := limit_s - clock()) > 0:
            outcomes |= {outcome.invocation_id: outcome for outcome in fleet.wait(remaining_s)}
        fleet.abandon(sorted(waiting - outcomes.keys()))
    return outcomes
