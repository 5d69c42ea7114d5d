"""Finds, reads and lists CloudFormation stacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runtime.aws.asking import list_all
from runtime.aws.failures import ClientError, message_of

DELETED = "DELETE_COMPLETE"
WITHOUT_RESOURCES = (DELETED, "REVIEW_IN_PROGRESS")
"""Statuses of a stack without resources."""


def find_stack(client: Any, name: str) -> dict[str, Any] | None:
    """Returns the stack of that name or id as CloudFormation describes it; None if there is none.

    Args:
        client: CloudFormation client.

    Raises:
        ClientError: CloudFormation does not answer.
    """
    try:
        found: dict[str, Any] = client.describe_stacks(StackName=name)["Stacks"][0]
    except ClientError as error:
        if "does not exist" in message_of(error):
            return None
        raise
    return found


def all_stacks(client: Any) -> list[dict[str, Any]]:
    """Returns the stacks of the account and region, as CloudFormation describes them.

    Args:
        client: CloudFormation client.

    Raises:
        ClientError or BotoCoreError: CloudFormation does not answer.
    """
    return list_all(client, "describe_stacks", "Stacks")


def stack_names(client: Any, prefix: str) -> list[str]:
    """Returns the sorted names of existing stacks that begin with ``prefix``.

    Args:
        client: CloudFormation client.

    Raises:
        ClientError or BotoCoreError: CloudFormation does not answer.
    """
    return sorted(
        stack["StackName"] for stack in all_stacks(client) if stack["StackName"].startswith(prefix)
    )


def resources_of(client: Any, stack: str) -> list[dict[str, Any]]:
    """Returns a stack's resources. Deleted stacks work by id: CloudFormation remembers them for 90 days.

    Args:
        client: CloudFormation client.
        stack: Its name or id.

    Raises:
        ClientError or BotoCoreError: CloudFormation does not answer, or knows no such stack.
    """
    return list_all(client, "list_stack_resources", "StackResourceSummaries", StackName=stack)


def outputs_of(stack: Mapping[str, Any]) -> dict[str, str]:
    """Returns a stack's outputs; empty until it is complete.

    Args:
        stack: As CloudFormation describes it.
    """
    return {one["OutputKey"]: one["OutputValue"] for one in stack.get("Outputs", [])}


def tags_of(described: Mapping[str, Any]) -> dict[str, str]:
    """Returns the tags of a stack or anything else that AWS describes."""
    return {tag["Key"]: tag["Value"] for tag in described.get("Tags", [])}
