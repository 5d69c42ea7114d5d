"""CloudFormation's stacks: found, read, listed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from runtime.aws.asking import list_all
from runtime.aws.failures import ClientError, message_of

WITHOUT_RESOURCES = ("DELETE_COMPLETE", "REVIEW_IN_PROGRESS")
"""Statuses of a stack that has nothing."""


def find_stack(client: Any, name: str) -> dict[str, Any] | None:
    """The stack of that name or id as CloudFormation describes it; None if there is none.

    Args:
        client: Of CloudFormation.

    Raises:
        ClientError: CloudFormation cannot be asked.
    """
    try:
        found: dict[str, Any] = client.describe_stacks(StackName=name)["Stacks"][0]
    except ClientError as error:
        if "does not exist" in message_of(error):
            return None
        raise
    return found


def all_stacks(client: Any) -> list[dict[str, Any]]:
    """The stacks of the account and region, as CloudFormation describes them.

    Args:
        client: Of CloudFormation.

    Raises:
        ClientError or BotoCoreError: CloudFormation cannot be asked.
    """
    return list_all(client, "describe_stacks", "Stacks")


def stack_names(client: Any, prefix: str) -> list[str]:
    """Names of the stacks that there are and that begin with ``prefix``, sorted.

    Args:
        client: Of CloudFormation.

    Raises:
        ClientError or BotoCoreError: CloudFormation cannot be asked.
    """
    return sorted(stack["StackName"] for stack in all_stacks(client) if stack["StackName"].startswith(prefix))


def resources_of(client: Any, stack: str) -> list[dict[str, Any]]:
    """A stack's resources; also of one that is gone, by id: CloudFormation remembers them for 90 days.

    Args:
        client: Of CloudFormation.
        stack: Its name or id.

    Raises:
        ClientError or BotoCoreError: CloudFormation cannot be asked, or knows no such stack.
    """
    return list_all(client, "list_stack_resources", "StackResourceSummaries", StackName=stack)


def present(resources: Iterable[Mapping[str, Any]], kind: str, logical_id: str = "") -> list[str]:
    """Physical ids of those resources that are there.

    Args:
        resources: As `resources_of` gives them.
        kind: Such as ``AWS::Logs::LogGroup``.
        logical_id: What their names in the template begin with.
    """
    return [str(one["PhysicalResourceId"]) for one in resources
            if one["ResourceType"] == kind and one["LogicalResourceId"].startswith(logical_id)
            and one.get("PhysicalResourceId") and one["ResourceStatus"] != "DELETE_COMPLETE"]


def outputs_of(stack: Mapping[str, Any]) -> dict[str, str]:
    """A stack's outputs; none before all of it is there.

    Args:
        stack: As CloudFormation describes it.
    """
    return {one["OutputKey"]: one["OutputValue"] for one in stack.get("Outputs", [])}


def tags_of(described: Mapping[str, Any]) -> dict[str, str]:
    """The tags of a stack or any other thing that AWS describes."""
    return {tag["Key"]: tag["Value"] for tag in described.get("Tags", [])}
