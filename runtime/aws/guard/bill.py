"""Computes what a deployment cost in the end: each part for the time it existed, and nothing for a part never made.

If AWS does not say when a part existed, it counts from the last time the guard saw that it did not exist, or else from
the beginning, until the teardown saw that it was gone.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Mapping
from typing import Any

from runtime.aws.asking import list_all
from runtime.aws.clients import Client
from runtime.aws.failures import AWS_ERRORS
from runtime.aws.guard.ledger import FINISHED, Entry
from runtime.aws.guard.parts import (
    ALIAS,
    CACHE,
    GROUP,
    MACHINE,
    find_executions,
    made_of,
)
from runtime.aws.guard.stacks import NEVER, GuardedStack, Stood
from runtime.times import LEG_S

BLOCK_S = 300
"""Provisioned concurrency is billed in blocks of this length."""
_HOUR_S = 3600
_LEG_ENDED = ("SUCCEEDED", "FAILED")
"""Statuses of an execution whose last leg had ended."""
_NOT_LAUNCHED = ("Failed", "Cancelled")
"""Statuses of Auto Scaling activities whose launch attempt failed."""


def final_usd(
    client: Client,
    deployed: GuardedStack,
    entry: Entry,
    *,
    learner_gone_s: float,
    cache_gone_s: float,
) -> float:
    """Returns the run's cost, earlier deployments included, once nothing of this deployment is billed any more.

    Args:
        client: Makes boto3 clients by service name.
        deployed: The deployment.
        entry: The run's ledger entry.
        learner_gone_s: When the learner and the warm actors were gone, in seconds since 1970.
        cache_gone_s: When the cache was gone.
    """
    try:
        made = made_of(client("cloudformation"), deployed.stack)
    except AWS_ERRORS:
        made = dict.fromkeys((GROUP, ALIAS, CACHE), {})
    longest = deployed.stood(learner_gone_s, cache_gone_s, learner_gone_s)
    cache = _span(longest.cache, made.get(CACHE))
    provisioned = _span(longest.provisioned, made.get(ALIAS))
    learner = _span(longest.learner, made.get(GROUP))
    if MACHINE in made:
        learner = _legs(
            client,
            made[MACHINE]["PhysicalResourceId"],
            longest.learner,
            is_over=entry.state == FINISHED,
        )
    elif learner != NEVER:
        launched_s = _launched_at_s(
            client, made[GROUP].get("PhysicalResourceId"), deployed.created_at_s, learner
        )
        learner = (launched_s, learner[1])
    usd = deployed.cost_usd(entry, Stood(learner=learner, cache=cache, provisioned=provisioned))
    # Provisioned concurrency is billed to the end of its current block.
    if provisioned != NEVER:
        usd += deployed.provisioned_usd_per_hour * BLOCK_S / _HOUR_S
    return usd


def _span(longest: tuple[float, float], part: Mapping[str, Any] | None) -> tuple[float, float]:
    """Returns when a part began and ended to exist; CloudFormation tells when it has deleted one."""
    if part is None:
        return NEVER
    began_s, gone_s = longest
    if part.get("ResourceStatus") == "DELETE_COMPLETE":
        gone_s = min(gone_s, part["LastUpdatedTimestamp"].timestamp())
    return began_s, max(began_s, gone_s)


def _legs(
    client: Client, machine: str, longest: tuple[float, float], *, is_over: bool
) -> tuple[float, float]:
    """Returns when a coordinator's legs can have run: while its state machine existed, and one leg longer.

    Args:
        machine: ARN of the state machine.
        is_over: Whether the last leg said that nothing is left to do.
    """
    began_s, gone_s = longest
    late_s = 0.0 if is_over else LEG_S
    try:
        executions = find_executions(client("stepfunctions"), machine)
    except AWS_ERRORS:
        executions = None
    if executions is None:
        return began_s, gone_s + late_s
    if not executions:
        return NEVER
    ends_s = [
        gone_s if "stopDate" not in one else one["stopDate"].timestamp() for one in executions
    ]
    return (
        max(began_s, min(one["startDate"].timestamp() for one in executions)),
        max(
            end_s + (0.0 if one["status"] in _LEG_ENDED else late_s)
            for one, end_s in zip(executions, ends_s, strict=True)
        ),
    )


def _launched_at_s(
    client: Client, group: str | None, created_at_s: float, stood: tuple[float, float]
) -> float:
    """Returns when the group first launched an instance while it existed, or the end of that time if it never did."""
    began_s, gone_s = stood
    if group is None:
        return began_s
    since = datetime.datetime.fromtimestamp(math.floor(created_at_s), datetime.UTC).isoformat()
    try:
        # The group may be gone by now. The time filter excludes an earlier deployment's group of the same name.
        activities: Iterable[Mapping[str, Any]] = list_all(
            client("autoscaling"),
            "describe_scaling_activities",
            "Activities",
            AutoScalingGroupName=group,
            IncludeDeletedGroups=True,
            Filters=[{"Name": "StartTimeLowerBound", "Values": [since]}],
        )
    except AWS_ERRORS:
        return began_s
    return min(
        (
            max(began_s, one["StartTime"].timestamp())
            for one in activities
            if one["StatusCode"] not in _NOT_LAUNCHED
        ),
        default=gone_s,
    )
