"""Deletes stacks, waits until they are gone, and reports leftovers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from runtime.aws.failures import ClientError, code_of, message_of
from runtime.aws.stacks import find_stack, resources_of
from runtime.errors import RunError

POLL_S = 5.0
_POLLS_UNTIL_BEGUN = 12
"""CloudFormation may show a stack's old status for a moment after a deletion is requested."""


class TeardownError(RunError):
    """A stack could not be deleted completely; the text says what is left and why."""


def delete_stack(
    client: Any,
    name: str,
    report: Callable[[str], None],
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Deletes a stack and returns when it is gone. A missing stack counts as gone.

    Args:
        client: CloudFormation client.
        name: Name or id of the stack.
        report: Receives a line for each resource whose deletion begins or ends.
        sleep: Waits for a number of seconds.

    Raises:
        TeardownError: CloudFormation refused, or could not delete all of it.
        ClientError: CloudFormation cannot be reached; a deletion that has begun continues.
    """
    stack = find_stack(client, name)
    if stack is None:
        return
    try:
        client.delete_stack(StackName=stack["StackId"])
    except ClientError as error:
        if code_of(error) == "ValidationError":
            raise TeardownError(
                f"{stack['StackName']} was not deleted: {message_of(error)}"
            ) from error
        raise
    _await_end(client, stack["StackId"], report, sleep)


def _await_end(
    client: Any, stack_id: str, report: Callable[[str], None], sleep: Callable[[float], None]
) -> None:
    """Waits by id: CloudFormation finds a deleted stack only by its id."""
    told: dict[str, str] = {}
    polls_before = 0
    while (stack := find_stack(client, stack_id)) is not None:
        status = stack["StackStatus"]
        _report_changes(client, stack_id, told, report)
        if status == "DELETE_COMPLETE":
            return
        if status == "DELETE_FAILED":
            raise TeardownError(what_is_left(client, stack))
        polls_before += status != "DELETE_IN_PROGRESS"
        if polls_before > _POLLS_UNTIL_BEGUN:
            raise TeardownError(
                f"{stack['StackName']} is not being deleted, it is {status}: "
                f"{_last_reason(client, stack_id)}"
            )
        sleep(POLL_S)


def _report_changes(
    client: Any, stack_id: str, told: dict[str, str], report: Callable[[str], None]
) -> None:
    for one in resources_of(client, stack_id):
        name, status = one["LogicalResourceId"], one["ResourceStatus"]
        if status.startswith("DELETE_") and told.get(name) != status:
            report(f"{status} {name} ({one['ResourceType']})")
            told[name] = status


def what_is_left(client: Any, stack: Mapping[str, Any]) -> str:
    """Returns why a stack could not be deleted, by resource, for people."""
    failed = [
        f"  {one['LogicalResourceId']} ({one['ResourceType']}): {one.get('ResourceStatusReason', 'no reason')}"
        for one in resources_of(client, stack["StackId"])
        if one["ResourceStatus"] == "DELETE_FAILED"
    ]
    reason = stack.get("StackStatusReason", "these resources are left")
    return "\n".join([f"{stack['StackName']} is DELETE_FAILED: {reason}", *failed])


def _last_reason(client: Any, stack_id: str) -> str:
    events = client.describe_stack_events(StackName=stack_id)["StackEvents"]
    return next(
        (event["ResourceStatusReason"] for event in events if event.get("ResourceStatusReason")),
        "CloudFormation gives no reason",
    )
