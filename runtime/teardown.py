"""How a stack is ended: one way for everybody, and gone only when CloudFormation says so."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import boto3
import botocore.exceptions
from botocore.config import Config

from runtime.errors import RunError

POLL_S = 5.0
_POLLS_UNTIL_BEGUN = 12
"""CloudFormation may show a stack as it was for a moment after it was told to delete it."""


class TeardownError(RunError):
    """A stack could not be deleted, or not all of it; the text says what is left and why."""


def cloudformation(session: boto3.Session) -> Any:
    """A client that outlasts hiccups of the network: a deletion may be watched for an hour."""
    patient = Config(retries={"mode": "standard", "total_max_attempts": 10})
    return session.client("cloudformation", config=patient)


def find_stack(client: Any, name: str) -> dict[str, Any] | None:
    """The stack of that name or id as CloudFormation describes it; null where there is none.

    Raises:
        ClientError: CloudFormation cannot be asked.
    """
    try:
        return client.describe_stacks(StackName=name)["Stacks"][0]
    except botocore.exceptions.ClientError as error:
        if "does not exist" in error.response["Error"]["Message"]:
            return None
        raise


def stack_names(client: Any, prefix: str) -> list[str]:
    """Names of the stacks that there are and that begin with ``prefix``, sorted."""
    pages = client.get_paginator("describe_stacks").paginate()
    return sorted(stack["StackName"] for page in pages for stack in page["Stacks"]
                  if stack["StackName"].startswith(prefix))


def delete_stack(
    client: Any, name: str, report: Callable[[str], None], *, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Deletes a stack and returns when it is gone; a stack that is not there is.

    Args:
        client: Of CloudFormation.
        name: Name or id of the stack.
        report: Is told of each resource whose deletion has begun or ended.

    Raises:
        TeardownError: CloudFormation refused, or could not delete all of it.
        ClientError: CloudFormation cannot be asked; what has begun goes on without us.
    """
    stack = find_stack(client, name)
    if stack is None:
        return
    try:
        client.delete_stack(StackName=stack["StackId"])
    except client.exceptions.ClientError as error:
        said = error.response["Error"]
        if said["Code"] == "ValidationError":
            raise TeardownError(f"{stack['StackName']} was not deleted: {said['Message']}") from error
        raise
    _await_end(client, stack["StackId"], report, sleep)


def _await_end(client: Any, stack_id: str, report: Callable[[str], None], sleep: Callable[[float], None]) -> None:
    """By id: only under that can CloudFormation tell that a stack was deleted."""
    told: dict[str, str] = {}
    polls_before = 0
    while (stack := find_stack(client, stack_id)) is not None:
        status = stack["StackStatus"]
        _report_changes(client, stack_id, told, report)
        if status == "DELETE_COMPLETE":
            return
        if status == "DELETE_FAILED":
            raise TeardownError(_what_is_left(client, stack))
        polls_before += status != "DELETE_IN_PROGRESS"
        if polls_before > _POLLS_UNTIL_BEGUN:
            raise TeardownError(f"{stack['StackName']} is not being deleted, it is {status}: "
                                f"{_last_reason(client, stack_id)}")
        sleep(POLL_S)


def _report_changes(client: Any, stack_id: str, told: dict[str, str], report: Callable[[str], None]) -> None:
    for one in _resources(client, stack_id):
        name, status = one["LogicalResourceId"], one["ResourceStatus"]
        if status.startswith("DELETE_") and told.get(name) != status:
            report(f"{status} {name} ({one['ResourceType']})")
            told[name] = status


def _what_is_left(client: Any, stack: dict[str, Any]) -> str:
    failed = [f"  {one['LogicalResourceId']} ({one['ResourceType']}): {one.get('ResourceStatusReason', 'no reason')}"
              for one in _resources(client, stack["StackId"]) if one["ResourceStatus"] == "DELETE_FAILED"]
    reason = stack.get("StackStatusReason", "these resources are left")
    return "\n".join([f"{stack['StackName']} is DELETE_FAILED: {reason}", *failed])


def _resources(client: Any, stack_id: str) -> list[dict[str, Any]]:
    pages = client.get_paginator("list_stack_resources").paginate(StackName=stack_id)
    return [one for page in pages for one in page["StackResourceSummaries"]]


def _last_reason(client: Any, stack_id: str) -> str:
    events = client.describe_stack_events(StackName=stack_id)["StackEvents"]
    return next((event["ResourceStatusReason"] for event in events if event.get("ResourceStatusReason")),
                "CloudFormation gives no reason")
