"""Reads the coordinator's state of a deployment without an instance from Step Functions."""

from __future__ import annotations

from typing import Any

from runtime.aws.asking import ask, pages_of
from runtime.aws.clients import Client
from runtime.aws.guard.parts import find_executions
from runtime.aws.operations.texts import ago_text
from runtime.errors import one_line

RUNNING = "RUNNING"
_CAUSE_CHARACTERS = 200


def find_coordinator(client: Client, machine: str, now_s: float) -> dict[str, Any]:
    """Returns the state of a state machine's newest execution, and the number of others running.

    Args:
        client: Makes boto3 clients by service name.
        machine: ARN of the state machine.
        now_s: Seconds since 1970.

    Returns:
        ``machine``; ``execution``, its ARN, None if there is none; then also ``status``, ``began_s`` and ``ended_s``
        (how long ago, in seconds; None if it runs), ``leg`` (attempts at legs), ``leg_began_s``, ``failures``,
        ``failure`` (the last one) and ``others_running``.

    Raises:
        AccountError: Step Functions cannot be reached.
    """
    machines = client("stepfunctions")
    found = ask(lambda: find_executions(machines, machine))
    executions = sorted(found or [], key=lambda one: one["startDate"])
    if not executions:
        return {"machine": machine, "execution": None}
    newest, ended_at = executions[-1], executions[-1].get("stopDate")
    events = pages_of(
        machines,
        "get_execution_history",
        "events",
        executionArn=newest["executionArn"],
        maxResults=1000,
        includeExecutionData=False,
    )
    # Only legs are Lambda invocations; the task that informs the guard is not.
    legs = [
        one
        for one in events
        if one["type"] == "TaskScheduled"
        and one["taskScheduledEventDetails"]["resourceType"] == "lambda"
    ]
    failed = [one for one in events if one["type"] in ("TaskFailed", "TaskTimedOut")]
    return {
        "machine": machine,
        "execution": newest["executionArn"],
        "status": newest["status"],
        "began_s": now_s - newest["startDate"].timestamp(),
        "ended_s": None if ended_at is None else now_s - ended_at.timestamp(),
        "leg": len(legs),
        "leg_began_s": now_s - legs[-1]["timestamp"].timestamp() if legs else None,
        "failures": len(failed),
        "failure": _failure_text(failed[-1]) if failed else "",
        "others_running": sum(one["status"] == RUNNING for one in executions[:-1]),
    }


def _failure_text(event: dict[str, Any]) -> str:
    details = event.get("taskFailedEventDetails") or event.get("taskTimedOutEventDetails") or {}
    return ": ".join(
        one_line(details[key])[:_CAUSE_CHARACTERS] for key in ("error", "cause") if details.get(key)
    )


def coordinator_text(one: dict[str, Any]) -> str:
    """Returns the result of `find_coordinator` as text for people."""
    if one["execution"] is None:
        return "its rounds were not started: its stack's events tell why"
    parts = [
        f"execution {one['execution'].rpartition(':')[2]} {one['status']}, begun {ago_text(one['began_s'])}"
        + ("" if one["ended_s"] is None else f", ended {ago_text(one['ended_s'])}")
    ]
    if one["leg"]:
        parts.append(f"leg {one['leg']}, begun {ago_text(one['leg_began_s'])}")
    if one["failures"]:
        parts.append(f"{one['failures']} failed, the last one with {one['failure']}")
    if one["others_running"]:
        parts.append(
            f"{one['others_running']} MORE RUN BESIDE IT: the newest leg continues, the others give way"
        )
    return "; ".join(parts)
