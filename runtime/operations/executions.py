"""The coordinator of a deployment without an instance, as Step Functions tells of it."""

from __future__ import annotations

from typing import Any

from runtime.aws.asking import ask, pages_of
from runtime.aws.clients import Client
from runtime.errors import one_line
from runtime.guard.parts import find_executions
from runtime.names import execution_name
from runtime.operations.texts import ago_text

RUNNING = "RUNNING"
_CAUSE_CHARACTERS = 200


def find_coordinator(client: Client, machine: str, now_s: float) -> dict[str, Any]:
    """What the newest execution of a state machine does, and how many others run beside it.

    Args:
        client: Of any service.
        machine: ARN of the state machine.
        now_s: Seconds since 1970.

    Returns:
        ``machine``; ``execution``, its ARN, None if there is none; then also ``status``, ``began_s`` and ``ended_s``
        (how long ago, in seconds; None if it runs), ``leg`` (attempts at legs), ``leg_began_s``, ``failures``,
        ``failure`` (the last one) and ``others_running``.

    Raises:
        AccountError: Step Functions cannot be asked.
    """
    machines = client("stepfunctions")
    found = ask(lambda: find_executions(machines, machine))
    executions = sorted(found or [], key=lambda one: one["startDate"])
    if not executions:
        return {"machine": machine, "execution": None}
    newest, ended_at = executions[-1], executions[-1].get("stopDate")
    events = pages_of(machines, "get_execution_history", "events", executionArn=newest["executionArn"],
                      maxResults=1000, includeExecutionData=False)
    # The invocations of legs: what tells the guard is a task, too.
    legs = [one for one in events if one["type"] == "TaskScheduled"
            and one["taskScheduledEventDetails"]["resourceType"] == "lambda"]
    failed = [one for one in events if one["type"] in ("TaskFailed", "TaskTimedOut")]
    return {
        "machine": machine, "execution": newest["executionArn"], "status": newest["status"],
        "began_s": now_s - newest["startDate"].timestamp(),
        "ended_s": None if ended_at is None else now_s - ended_at.timestamp(),
        "leg": len(legs), "leg_began_s": now_s - legs[-1]["timestamp"].timestamp() if legs else None,
        "failures": len(failed), "failure": _failure_text(failed[-1]) if failed else "",
        "others_running": sum(one["status"] == RUNNING for one in executions[:-1])}


def _failure_text(event: dict[str, Any]) -> str:
    details = event.get("taskFailedEventDetails") or event.get("taskTimedOutEventDetails") or {}
    return ": ".join(one_line(details[key])[:_CAUSE_CHARACTERS] for key in ("error", "cause") if details.get(key))


def coordinator_text(one: dict[str, Any], stack_id: str) -> str:
    """What `find_coordinator` found, for people.

    Args:
        one: That.
        stack_id: Of the deployment.
    """
    if one["execution"] is None:
        return ("nobody has begun it; to begin it: aws stepfunctions start-execution --state-machine-arn "
                f"{one['machine']} --name {execution_name(stack_id)}")
    parts = [f"execution {one['execution'].rpartition(':')[2]} {one['status']}, begun {ago_text(one['began_s'])}"
             + ("" if one["ended_s"] is None else f", ended {ago_text(one['ended_s'])}")]
    if one["leg"]:
        parts.append(f"leg {one['leg']}, begun {ago_text(one['leg_began_s'])}")
    if one["failures"]:
        parts.append(f"{one['failures']} failed, the last one with {one['failure']}")
    if one["others_running"]:
        parts.append(f"{one['others_running']} MORE RUN BESIDE IT: the newest leg goes on, the others give way")
    return "; ".join(parts)
