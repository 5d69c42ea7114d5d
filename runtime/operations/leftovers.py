"""Finds billed resources that belong to no stack. Otherwise only the bill would show them."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from runtime.aws.asking import ask, ask_if_there, pages_of
from runtime.aws.clients import Client
from runtime.aws.stacks import WITHOUT_RESOURCES, tags_of
from runtime.cost.prices import CACHE_NODE_TYPE, HOURS_PER_MONTH, PRICES
from runtime.guard.parts import find_executions
from runtime.names import (
    ACTOR_SUFFIX,
    CACHE_PREFIX,
    COORDINATOR_SUFFIX,
    EXPERIMENT_TAG,
    GROUP_TAG,
    LEARNER_SUFFIX,
    STACK_ID_TAG,
    STACK_PREFIX,
    stack_name,
)
from runtime.operations.executions import RUNNING

LOGS_KEPT_S = 7 * 86_400.0
"""Retention of experiments' logs."""
_INSTANCE_STATES = ["pending", "running", "stopping", "stopped", "shutting-down"]
"""All states except terminated."""


@dataclass(frozen=True, kw_only=True)
class Leftover:
    """A resource that belongs to no stack.

    Attributes:
        kind: What it is, for people.
        name: Its id or name.
        experiment: Its experiment; empty if unknown.
        detail: Its type, size or state.
        usd_per_hour: At list price, without parts that are listed separately; None if the price is unknown.
        remove: The shell command that removes it.
    """

    kind: str
    name: str
    experiment: str
    detail: str
    usd_per_hour: float | None
    remove: str


@dataclass(frozen=True)
class Instance:
    """A learner's instance, with or without a stack.

    Attributes:
        stack: Id of the stack that it was made for; empty if its tags do not have it.
        experiment: From its tags.
        usd_per_hour: With its public address, without its disk; None if the price is unknown.
    """

    instance_id: str
    instance_type: str
    state: str
    stack: str
    experiment: str
    usd_per_hour: float | None


class Stacks:
    """Finds the stack that a resource belongs to."""

    def __init__(self, stacks: Iterable[Mapping[str, Any]]) -> None:
        """Looks up the stacks that have resources.

        Args:
            stacks: All stacks of the account and region, as ``describe_stacks`` returns them.
        """
        present = [stack for stack in stacks if stack["StackStatus"] not in WITHOUT_RESOURCES]
        self._ids = {stack["StackId"] for stack in present}
        self._names = {stack["StackName"] for stack in present}

    def have(self, tags: Mapping[str, str], experiment: str) -> bool:
        """Returns whether a stack has the resource: the stack in its tags, or else the experiment's, exists."""
        return (
            self.has_id(tags[STACK_ID_TAG])
            if STACK_ID_TAG in tags
            else self.has_name(stack_name(experiment))
        )

    def has_id(self, stack_id: str) -> bool:
        return stack_id in self._ids

    def has_name(self, name: str) -> bool:
        return name in self._names

    def has_prefix_of(self, name: str) -> bool:
        """Returns whether CloudFormation made this name from a stack's."""
        return any(name.startswith(f"{stack}-") for stack in self._names)


def find_instances(client: Client) -> list[Instance]:
    """Returns all learners' instances that are not terminated, by id.

    Raises:
        AccountError: EC2 cannot be reached.
    """
    by_tag = pages_of(
        client("ec2"),
        "describe_instances",
        "Reservations",
        Filters=[
            {"Name": "tag-key", "Values": [EXPERIMENT_TAG]},
            {"Name": "instance-state-name", "Values": _INSTANCE_STATES},
        ],
    )
    by_group = pages_of(
        client("ec2"),
        "describe_instances",
        "Reservations",
        Filters=[
            {"Name": f"tag:{GROUP_TAG}", "Values": [f"{STACK_PREFIX}*{LEARNER_SUFFIX}"]},
            {"Name": "instance-state-name", "Values": _INSTANCE_STATES},
        ],
    )
    found = {
        instance["InstanceId"]: _instance(instance)
        for reservation in [*by_tag, *by_group]
        for instance in reservation["Instances"]
    }
    return [found[instance_id] for instance_id in sorted(found)]


def find_leftovers(client: Client, stacks: Stacks, instances: Iterable[Instance]) -> list[Leftover]:
    """Returns billed resources that belong to no stack.

    Args:
        client: Makes boto3 clients by service name.
        stacks: All existing stacks.
        instances: The result of `find_instances`.

    Raises:
        AccountError: A service cannot be reached.
    """
    orphans = [
        one
        for one in instances
        if one.state != "shutting-down"
        and not stacks.have({STACK_ID_TAG: one.stack} if one.stack else {}, one.experiment)
    ]
    # Groups first: they would replace an instance that is ended.
    return [
        *_groups(client("autoscaling"), stacks),
        *map(_left_instance, orphans),
        *_volumes(client("ec2"), {one.instance_id for one in orphans}),
        *_warm_functions(client("lambda"), stacks),
        *_caches(client("elasticache"), stacks),
        *_executions(client, stacks),
    ]


def find_left_logs(client: Client, stacks: Stacks, now_s: float) -> list[dict[str, Any]]:
    """Returns the log groups of deleted stacks that may hold something, newest first.

    Args:
        client: Makes boto3 clients by service name.
        stacks: All existing stacks.
        now_s: Seconds since 1970.

    Returns:
        ``name``, ``created_at_s``, ``stored_bytes`` and ``remove`` of each.

    Raises:
        AccountError: CloudWatch Logs cannot be reached.
    """
    groups = [
        group
        for prefix in (STACK_PREFIX, f"/aws/lambda/{STACK_PREFIX}")
        for group in pages_of(
            client("logs"), "describe_log_groups", "logGroups", logGroupNamePrefix=prefix
        )
    ]
    found = [
        {
            "name": group["logGroupName"],
            "created_at_s": group["creationTime"] / 1000,
            "stored_bytes": group.get("storedBytes", 0),
            "remove": f"aws logs delete-log-group --log-group-name {group['logGroupName']}",
        }
        for group in groups
        if not stacks.has_prefix_of(group["logGroupName"].removeprefix("/aws/lambda/"))
    ]
    # AWS counts the bytes a day late.
    return sorted(
        (one for one in found if one["stored_bytes"] or now_s - one["created_at_s"] < LOGS_KEPT_S),
        key=lambda one: one["created_at_s"],
        reverse=True,
    )


def _instance(described: Mapping[str, Any]) -> Instance:
    tags = tags_of(described)
    state, instance_type = described["State"]["Name"], described["InstanceType"]
    usd_per_hour = PRICES.instance_hour_usd.get(instance_type)
    if usd_per_hour is not None and described.get("PublicIpAddress"):
        usd_per_hour += PRICES.public_ipv4_hour_usd
    group = tags.get(GROUP_TAG, "")
    experiment = tags.get(
        EXPERIMENT_TAG, group.removeprefix(STACK_PREFIX).removesuffix(LEARNER_SUFFIX)
    )
    return Instance(
        described["InstanceId"],
        instance_type,
        state,
        tags.get(STACK_ID_TAG, ""),
        experiment,
        usd_per_hour if state in ("pending", "running") else 0.0,
    )


def _left_instance(one: Instance) -> Leftover:
    return Leftover(
        kind="instance",
        name=one.instance_id,
        experiment=one.experiment,
        detail=f"{one.instance_type}, {one.state}",
        usd_per_hour=one.usd_per_hour,
        remove=f"aws ec2 terminate-instances --instance-ids {one.instance_id}",
    )


def _volumes(client: Any, orphans: set[str]) -> Iterator[Leftover]:
    """Yields volumes without an instance, or attached to an orphan."""
    found = pages_of(
        client,
        "describe_volumes",
        "Volumes",
        Filters=[{"Name": "tag-key", "Values": [EXPERIMENT_TAG]}],
    )
    for volume in found:
        tags = tags_of(volume)
        holders = [one["InstanceId"] for one in volume.get("Attachments", [])]
        is_left = set(holders) <= orphans if holders else volume["State"] == "available"
        if is_left:
            yield Leftover(
                kind="volume",
                name=volume["VolumeId"],
                experiment=tags[EXPERIMENT_TAG],
                detail=f"{volume['Size']} GiB, "
                + (f"of {', '.join(holders)}" if holders else volume["State"]),
                usd_per_hour=volume["Size"] * PRICES.volume_gib_month_usd / HOURS_PER_MONTH,
                remove=f"aws ec2 delete-volume --volume-id {volume['VolumeId']}",
            )


def _groups(client: Any, stacks: Stacks) -> Iterator[Leftover]:
    """Yields groups that launch instances, or may."""
    for group in pages_of(client, "describe_auto_scaling_groups", "AutoScalingGroups"):
        name, tags = group["AutoScalingGroupName"], tags_of(group)
        if not (
            EXPERIMENT_TAG in tags or fnmatch.fnmatchcase(name, f"{STACK_PREFIX}*{LEARNER_SUFFIX}")
        ):
            continue
        experiment = tags.get(
            EXPERIMENT_TAG, name.removeprefix(STACK_PREFIX).removesuffix(LEARNER_SUFFIX)
        )
        if group["DesiredCapacity"] > 0 and not stacks.have(tags, experiment):
            yield Leftover(
                kind="Auto Scaling group",
                name=name,
                experiment=experiment,
                detail=f"wants {group['DesiredCapacity']} of its instances",
                usd_per_hour=0.0,
                remove=f"aws autoscaling delete-auto-scaling-group --force-delete --auto-scaling-group-name {name}",
            )


def _warm_functions(client: Any, stacks: Stacks) -> Iterator[Leftover]:
    for function in pages_of(client, "list_functions", "Functions"):
        name = function["FunctionName"]
        if not fnmatch.fnmatchcase(name, f"{STACK_PREFIX}*{ACTOR_SUFFIX}"):
            continue
        tags = ask_if_there(partial(_tags_of_function, client, function))
        if tags is None:
            continue
        experiment = tags.get(
            EXPERIMENT_TAG, name.removeprefix(STACK_PREFIX).removesuffix(ACTOR_SUFFIX)
        )
        if stacks.have(tags, experiment):
            continue
        for warm in pages_of(
            client,
            "list_provisioned_concurrency_configs",
            "ProvisionedConcurrencyConfigs",
            FunctionName=name,
        ):
            yield _warm(function, experiment, warm)


def _tags_of_function(client: Any, function: Mapping[str, Any]) -> dict[str, str]:
    tags: dict[str, str] = client.list_tags(Resource=function["FunctionArn"])["Tags"]
    return tags


def _warm(function: Mapping[str, Any], experiment: str, warm: Mapping[str, Any]) -> Leftover:
    count, memory_mib = warm["RequestedProvisionedConcurrentExecutions"], function["MemorySize"]
    prices = PRICES.functions.get(function.get("Architectures", ["x86_64"])[0])
    name, qualifier = function["FunctionName"], warm["FunctionArn"].rpartition(":")[2]
    return Leftover(
        kind="warm actors",
        name=f"{name}:{qualifier}",
        experiment=experiment,
        detail=f"{count} of {memory_mib} MiB",
        usd_per_hour=3600 * count * memory_mib / 1024 * prices.provisioned_capacity_usd
        if prices
        else None,
        remove=f"aws lambda delete-provisioned-concurrency-config --function-name {name} --qualifier {qualifier}",
    )


def _executions(client: Client, stacks: Stacks) -> Iterator[Leftover]:
    """Yields executions that invoke a coordinator's legs."""
    machines = client("stepfunctions")
    for machine in pages_of(machines, "list_state_machines", "stateMachines"):
        name, arn = machine["name"], machine["stateMachineArn"]
        if not fnmatch.fnmatchcase(name, f"{STACK_PREFIX}*{COORDINATOR_SUFFIX}"):
            continue
        running = [
            one
            for one in ask(partial(find_executions, machines, arn)) or []
            if one["status"] == RUNNING
        ]
        told = (
            ask_if_there(partial(machines.list_tags_for_resource, resourceArn=arn))
            if running
            else None
        )
        if told is None:
            continue
        tags = {tag["key"]: tag["value"] for tag in told["tags"]}
        experiment = tags.get(
            EXPERIMENT_TAG, name.removeprefix(STACK_PREFIX).removesuffix(COORDINATOR_SUFFIX)
        )
        if stacks.have(tags, experiment):
            continue
        # The function has the same name. If it is gone, the execution only repeats failures.
        function = ask_if_there(
            partial(client("lambda").get_function_configuration, FunctionName=name)
        )
        prices = PRICES.functions.get((function or {}).get("Architectures", ["x86_64"])[0])
        for one in running:
            yield Leftover(
                kind="execution",
                name=one["executionArn"].rpartition(":")[2],
                experiment=experiment,
                detail=f"of {name}, invokes legs",
                usd_per_hour=0.0
                if function is None
                else None
                if prices is None
                else 3600 * function["MemorySize"] / 1024 * prices.on_demand_usd,
                remove=f"aws stepfunctions stop-execution --execution-arn {one['executionArn']}",
            )


def _caches(client: Any, stacks: Stacks) -> Iterator[Leftover]:
    for cache in pages_of(client, "describe_serverless_caches", "ServerlessCaches"):
        name = cache["ServerlessCacheName"]
        experiment = _experiment_of_cache(client, name, cache["ARN"], stacks)
        if experiment is not None and cache["Status"] != "deleting":
            yield Leftover(
                kind="serverless cache",
                name=name,
                experiment=experiment,
                detail=cache["Status"],
                usd_per_hour=PRICES.serverless_cache_gib_min * PRICES.serverless_cache_gib_hour_usd,
                remove=f"aws elasticache delete-serverless-cache --serverless-cache-name {name}",
            )
    for group in pages_of(client, "describe_replication_groups", "ReplicationGroups"):
        name, node_type = group["ReplicationGroupId"], group.get("CacheNodeType", "unknown type")
        experiment = _experiment_of_cache(client, name, group["ARN"], stacks)
        if experiment is not None and group["Status"] != "deleting":
            nodes = len(group.get("MemberClusters", [])) or 1
            yield Leftover(
                kind="cache node",
                name=name,
                experiment=experiment,
                detail=f"{nodes} x {node_type}, {group['Status']}",
                usd_per_hour=nodes * PRICES.cache_node_hour_usd
                if node_type == CACHE_NODE_TYPE
                else None,
                remove=f"aws elasticache delete-replication-group --replication-group-id {name}",
            )


def _experiment_of_cache(client: Any, name: str, arn: str, stacks: Stacks) -> str | None:
    """Returns the experiment; None if the cache is not ours, or a stack has it."""
    if not fnmatch.fnmatchcase(name, f"{CACHE_PREFIX}*"):
        return None
    tags = ask_if_there(
        lambda: tags_of({"Tags": client.list_tags_for_resource(ResourceName=arn)["TagList"]})
    )
    if tags is None:
        return None
    experiment = tags.get(EXPERIMENT_TAG, name.removeprefix(CACHE_PREFIX))
    return None if stacks.have(tags, experiment) else experiment
