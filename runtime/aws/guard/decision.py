"""Decides whether a deployment must be taken down now, and why."""

from __future__ import annotations

from runtime.aws.guard.ledger import FINISHED, STARTING, Entry
from runtime.aws.guard.stacks import GuardedStack
from runtime.times import LATE_S, MAKING_LIMIT_S, MISSING_S, STARTING_S

_FAILED = (
    "CREATE_FAILED",
    "DELETE_FAILED",
    "ROLLBACK_IN_PROGRESS",
    "ROLLBACK_COMPLETE",
    "ROLLBACK_FAILED",
)
"""Statuses of a failed stack. It keeps its name while it has one of them."""


def reason_to_end(deployed: GuardedStack, entry: Entry | None, now_s: float) -> str:
    """Returns why a deployment must be taken down now, for people; empty if it may continue.

    The budget counts as used up when the most that the run can have cost exceeds the budget without its tail. The tail
    pays for the teardown, so a teardown ordered within one interval still ends within the budget. A learner's own
    budget has the same limit, so one that works never reaches the guard's.

    Args:
        deployed: The deployment and its limits.
        entry: The ledger's entry; None if it has none.
        now_s: The guard's time. All times except the learner's own use the guard's clock.
    """
    is_known = entry is not None and (
        entry.stack == deployed.stack or bool(entry.damage and not entry.stack)
    )
    known = entry if is_known else None
    if deployed.unreadable:
        return f"its possible cost is unknown: {deployed.unreadable}"
    if known is not None and known.damage:
        return f"its cost is unknown: the ledger's {known.damage}"
    if known is not None and known.state == FINISHED:
        return f"it has finished: {known.reason}"
    if deployed.has_other_limits:
        # For the minutes of an update. The learner keeps to its own budget, and a silent one is ended.
        return _reason_in_silence(deployed, known, now_s)
    if now_s - deployed.created_at_s > deployed.lifetime_s:
        return f"its lifetime of {deployed.lifetime_s / 3600:g} hours is over"
    projected_usd = deployed.projected_usd(entry, now_s)
    if projected_usd > deployed.budget_usd - deployed.tail_usd:
        return (
            f"its budget is used up: it can have cost ${projected_usd:.4f}, and ${deployed.tail_usd:.4f} of "
            f"${deployed.budget_usd:.4f} are kept for taking it down"
        )
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
    """Returns how long the heartbeat has not changed, by the guard's clock; 0 if it changed since the last look."""
    return now_s - entry.seen_at_s if entry.heartbeat_at_s == entry.seen_heartbeat_s else 0.0


def reason_of_stack(deployed: GuardedStack) -> str:
    """Returns why a stack's status alone requires a teardown; empty if the status is fine."""
    if deployed.status == "DELETE_COMPLETE":
        return "its stack was deleted by someone else"
    making_s = deployed.learner_from_s - deployed.created_at_s
    if deployed.status == "CREATE_IN_PROGRESS" and making_s > MAKING_LIMIT_S:
        return (
            f"the first phase of its start, all but the learner, was not over after {making_s / 60:.0f} minutes: "
            "see its stack's events"
        )
    if deployed.status not in _FAILED:
        return ""
    why = (
        ""
        if deployed.status == "DELETE_FAILED"
        else "; its events, and boot/ in the results bucket, tell why"
    )
    return f"its stack is {deployed.status}{why}"
