"""Whether a deployment must be taken down now, and why."""

from __future__ import annotations

from runtime.guard.ledger import FINISHED, STARTING, Entry
from runtime.guard.stacks import GuardedStack
from runtime.guard.times import LATE_S, MAKING_LIMIT_S, MISSING_S, STARTING_S

_FAILED = ("CREATE_FAILED", "DELETE_FAILED", "ROLLBACK_IN_PROGRESS", "ROLLBACK_COMPLETE", "ROLLBACK_FAILED")
"""Statuses of a stack that never was what it should be, or never will: with them it keeps its name."""


def reason_to_end(deployed: GuardedStack, entry: Entry | None, now_s: float) -> str:
    """Why a deployment must be taken down now, for people; empty if it may go on.

    That it has spent its budget is judged by the most that it can have cost, without the tail that is kept for taking
    it down: an order that is given within an interval after that still ends within the budget.

    Args:
        deployed: The deployment and its limits.
        entry: The ledger's; None if it knows nothing.
        now_s: By the guard's clock, as all times but the learner's own.
    """
    is_known = entry is not None and (entry.stack == deployed.stack or bool(entry.damage and not entry.stack))
    known = entry if is_known else None
    if deployed.unreadable:
        return f"nobody can tell what it may cost: {deployed.unreadable}"
    if known is not None and known.damage:
        return f"nobody can tell what it has cost: the ledger's {known.damage}"
    if known is not None and known.state == FINISHED:
        return f"it has finished: {known.reason}"
    if now_s - deployed.created_at_s > deployed.lifetime_s:
        return f"its lifetime of {deployed.lifetime_s / 3600:g} hours is over"
    projected_usd = deployed.projected_usd(entry, now_s)
    if projected_usd > deployed.budget_usd - deployed.tail_usd:
        return (f"its budget is used up: it can have cost ${projected_usd:.4f}, and ${deployed.tail_usd:.4f} of "
                f"${deployed.budget_usd:.4f} are kept for taking it down")
    return _reason_in_silence(deployed, known, now_s)


def _reason_in_silence(deployed: GuardedStack, entry: Entry | None, now_s: float) -> str:
    if entry is None or not entry.heartbeat_at_s:
        if now_s - deployed.created_at_s > MISSING_S:
            return f"its learner or pool never reported, in {MISSING_S / 60:g} minutes"
        return ""
    limit_s = STARTING_S if entry.state == STARTING else LATE_S
    if silent_s(entry, now_s) > limit_s:
        return f"its learner or pool ({entry.state}) has not reported for {limit_s / 60:g} minutes"
    return ""


def silent_s(entry: Entry, now_s: float) -> float:
    """For how long the learner's heartbeat has not changed, by the guard's clock; 0 if it has since it looked."""
    return now_s - entry.seen_at_s if entry.heartbeat_at_s == entry.seen_heartbeat_s else 0.0


def reason_of_stack(deployed: GuardedStack) -> str:
    """Why a stack in such a state must be taken down, whatever its learner does; empty if its state is sound."""
    if deployed.status == "DELETE_COMPLETE":
        return "its stack was deleted by somebody else"
    making_s = deployed.learner_from_s - deployed.created_at_s
    if deployed.status == "CREATE_IN_PROGRESS" and making_s > MAKING_LIMIT_S:
        return (f"the first phase of its start, all but the learner, was not over after {making_s / 60:.0f} minutes: "
                "see its stack's events")
    if deployed.status not in _FAILED:
        return ""
    why = "" if deployed.status == "DELETE_FAILED" else "; its events, and boot/ in the results bucket, tell why"
    return f"its stack is {deployed.status}{why}"
