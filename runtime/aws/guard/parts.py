"""A deployment's parts that cost money. Each function checks a part, ends it, and checks again.

Each returns what it waits for, for people; empty if the part is gone. Each raises `ClientError` or `BotoCoreError` if
AWS refuses or cannot be reached.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from runtime.aws.asking import find, list_all
from runtime.aws.clients import Client
from runtime.aws.failures import ClientError, code_of, message_of
from runtime.aws.stacks import DELETED, resources_of
from runtime.names import COORDINATOR_SUFFIX, GROUP_TAG, LEARNER_SUFFIX

GROUP, ALIAS = "AWS::AutoScaling::AutoScalingGroup", "AWS::Lambda::Alias"
_MACHINE, _FUNCTION = "AWS::StepFunctions::StateMachine", "AWS::Lambda::Function"
CACHE = "AWS::ElastiCache::ServerlessCache"
_BILLED = {GROUP: "learner", _MACHINE: "learner", CACHE: "cache", ALIAS: "provisioned"}
"""Which of the ledger's `PARTS` a resource is, by its type."""
_BILLED_STATES = ["pending", "running", "stopping", "stopped"]


@dataclass(frozen=True)
class Parts:
    """Physical names of a stack's parts that cost money or can be stopped; None for a part it lacks.

    Attributes:
        group: The learner's Auto Scaling group.
        function, alias: The actors'.
        cache: The cache.
        machine: ARN of the state machine that invokes the coordinator.
        others: The coordinator's function, and the learner's.
        begun: Those of the ledger's `PARTS` that CloudFormation has begun to make.
        gone_at_s: When CloudFormation had deleted such a part, in seconds since 1970.
    """

    group: str | None = None
    function: str | None = None
    alias: str | None = None
    cache: str | None = None
    machine: str | None = None
    others: tuple[str, ...] = ()
    begun: frozenset[str] = frozenset()
    gone_at_s: Mapping[str, float] = field(default_factory=dict)

    @property
    def functions(self) -> list[str]:
        """All of the stack's functions."""
        return [*([self.function] if self.function else []), *self.others]


def end_learner(client: Client, parts: Parts) -> str:
    """Ends the learner's instance and prevents a replacement; for a coordinator, prevents another leg.

    A running leg cannot be ended. It sees the order itself, or ends at its time limit.
    """
    if parts.machine is not None:
        return _end_executions(client("stepfunctions"), parts.machine)
    if parts.group is None:
        return ""
    scaling, machines = client("autoscaling"), client("ec2")
    found = scaling.describe_auto_scaling_groups(AutoScalingGroupNames=[parts.group])
    try:
        # A group that is being deleted has a status and takes no more orders. Its minimum is 0. An update could require
        # the rights to launch instances, since the group has a launch template.
        groups = [group for group in found["AutoScalingGroups"] if not group.get("Status")]
        if any(group["DesiredCapacity"] for group in groups):
            scaling.set_desired_capacity(AutoScalingGroupName=parts.group, DesiredCapacity=0)
    finally:
        instances = find_instances(machines, GROUP_TAG, parts.group)
        if instances:
            machines.terminate_instances(InstanceIds=[*instances])
            instances = find_instances(machines, GROUP_TAG, parts.group)
    return f"{', '.join(instances)} to end" if instances else ""


def _end_executions(machines: Any, machine: str) -> str:
    def running() -> list[str]:
        executions = find_executions(machines, machine)
        return [one["executionArn"] for one in executions if one["status"] == "RUNNING"]

    for execution in running():
        machines.stop_execution(executionArn=execution)
    return f"{', '.join(left)} to end" if (left := running()) else ""


def find_executions(machines: Any, machine: str) -> list[Mapping[str, Any]]:
    """Returns a state machine's executions; none if the machine is gone.

    Args:
        machines: Step Functions client.
        machine: ARN of the state machine.
    """
    try:
        return list_all(machines, "list_executions", "executions", stateMachineArn=machine)
    except ClientError as error:
        if "DoesNotExist" in code_of(error):
            return []
        raise


def end_provisioned(client: Client, parts: Parts) -> str:
    """Ends provisioned concurrency."""
    if parts.function is None or parts.alias is None:
        return ""
    functions = client("lambda")
    which = {"FunctionName": parts.function, "Qualifier": parts.alias}
    if find(lambda: functions.get_provisioned_concurrency_config(**which)) is None:
        return ""
    functions.delete_provisioned_concurrency_config(**which)
    is_left = find(lambda: functions.get_provisioned_concurrency_config(**which)) is not None
    return "the warm actors to end" if is_left else ""


def end_concurrency(client: Client, parts: Parts) -> str:
    """Prevents new starts of actors, of the coordinator, and of a learner function."""
    functions = client("lambda")
    waits_for = [name for name in parts.functions if not _is_barred(functions, name)]
    return f"{', '.join(waits_for)} to be barred" if waits_for else ""


def _is_barred(functions: Any, name: str) -> bool:
    """Bars a function from starting unless it is barred or gone; returns whether that is done."""

    def reserved() -> int | None:
        found = find(lambda: functions.get_function_concurrency(FunctionName=name))
        return 0 if found is None else found.get("ReservedConcurrentExecutions")

    if reserved() != 0:
        try:
            functions.put_function_concurrency(FunctionName=name, ReservedConcurrentExecutions=0)
        except ClientError as error:
            # The account may not reserve anything. Whatever starts functions has ended, and they go with the stack.
            if "UnreservedConcurrentExecution" in message_of(error):
                return True
            raise
    return reserved() == 0


def is_there(functions: Any, name: str) -> bool:
    """Returns whether a function exists.

    Args:
        functions: Lambda client.
        name: The function's name.
    """
    return find(lambda: functions.get_function_concurrency(FunctionName=name)) is not None


def end_cache(client: Client, parts: Parts) -> str:
    """Deletes the cache."""
    if parts.cache is None:
        return ""
    caches, which = client("elasticache"), {"ServerlessCacheName": parts.cache}
    found = find(lambda: caches.describe_serverless_caches(**which)["ServerlessCaches"])
    if not found:
        return ""
    if found[0]["Status"] != "deleting":
        try:
            caches.delete_serverless_cache(**which)
        except ClientError as error:
            code = code_of(error)
            if "Invalid" not in code or "State" not in code:
                raise
            return f"it is {found[0]['Status']}"
    is_left = find(lambda: caches.describe_serverless_caches(**which)["ServerlessCaches"])
    return "it is being deleted" if is_left else ""


def read_parts(client: Any, stack_id: str) -> Parts:
    """Returns a stack's parts, even if it is gone: CloudFormation remembers them for 90 days.

    Args:
        client: CloudFormation client.
        stack_id: Id of the stack, which also finds a deleted one.
    """
    try:
        listed = resources_of(client, stack_id)
    except ClientError as error:
        if "does not exist" not in message_of(error):
            raise
        return Parts()
    made = [one for one in listed if one.get("PhysicalResourceId")]
    found = {one["ResourceType"]: str(one["PhysicalResourceId"]) for one in made}
    functions = [str(one["PhysicalResourceId"]) for one in made if one["ResourceType"] == _FUNCTION]
    suffixes = (COORDINATOR_SUFFIX, LEARNER_SUFFIX)
    return Parts(
        group=found.get(GROUP),
        function=next((name for name in functions if not name.endswith(suffixes)), None),
        alias=found[ALIAS].rpartition(":")[2] if ALIAS in found else None,
        cache=found.get(CACHE),
        machine=found.get(_MACHINE),
        others=tuple(name for name in functions if name.endswith(suffixes)),
        begun=frozenset(
            _BILLED[one["ResourceType"]] for one in listed if one["ResourceType"] in _BILLED
        ),
        gone_at_s={
            _BILLED[one["ResourceType"]]: one["LastUpdatedTimestamp"].timestamp()
            for one in listed
            if one["ResourceType"] in _BILLED and one["ResourceStatus"] == DELETED
        },
    )


def find_instances(client: Any, tag: str, value: str = "*") -> dict[str, dict[str, Any]]:
    """Returns billed instances with that tag by their ids, as EC2 describes them.

    Args:
        client: EC2 client.
        tag: The tag's key.
        value: The tag's value; any by default.
    """
    found = list_all(
        client,
        "describe_instances",
        "Reservations",
        Filters=[
            {"Name": f"tag:{tag}", "Values": [value]},
            {"Name": "instance-state-name", "Values": _BILLED_STATES},
        ],
    )
    return {one["InstanceId"]: one for reservation in found for one in reservation["Instances"]}
