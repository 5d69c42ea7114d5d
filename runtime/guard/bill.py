"""What a deployment has cost in the end: what stood counts for as long as it stood, and what never existed not at all.

Whatever AWS does not tell counts as if it had stood from the last time on at which the guard saw that it was not there,
or else from the beginning, until the teardown saw that it was gone.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterable, Mapping
from typing import Any

from runtime.aws.asking import list_all
from runtime.aws.clients import Client
from runtime.aws.failures import AWS_ERRORS
from runtime.guard.ledger import FINISHED, Entry
from runtime.guard.parts import (
    ALIAS,
    GROUP,
    MACHINE,
    REPLICATION_GROUP,
    SERVERLESS_CACHE,
    find_executions,
    made_of,
)
from runtime.guard.stacks import NEVER, GuardedStack, Stood
from runtime.guard.times import LEG_S

BLOCK_S = 300
"""Provisioned concurrency is billed by these."""
_HOUR_S = 3600
_LEG_ENDED = ("SUCCEEDED", "FAILED")
"""Statuses of an execution whose last leg had ended."""
_NOT_LAUNCHED = ("Failed", "Cancelled")
"""Statuses of an activity of Auto Scaling whose attempt to launch an instance failed."""


def final_usd(client: Client, deployed: GuardedStack, entry: Entry, *, learner_gone_s: float, cache_gone_s: float
              ) -> float:
    """What the run has cost, with all deployments before this one, when nothing of this one is billed any more.

    Args:
        client: Of any service.
        deployed: The deployment.
        entry: The ledger's.
        learner_gone_s: When neither the learner nor warm actors were there any more, seconds since 1970.
        cache_gone_s: When the cache was not.
    """
    try:
        made = made_of(client("cloudformation"), deployed.stack)
    except AWS_ERRORS:
        made = dict.fromkeys((GROUP, ALIAS, SERVERLESS_CACHE, REPLICATION_GROUP), {})
    longest = deployed.stood(learner_gone_s, cache_gone_s, learner_gone_s)
    cache = _span(longest.cache, made.get(SERVERLESS_CACHE) or made.get(REPLICATION_GROUP))
    provisioned = _span(longest.provisioned, made.get(ALIAS))
    learner = _span(longest.learner, made.get(GROUP))
    if MACHINE in made:
        learner = _legs(client, made[MACHINE]["PhysicalResourceId"], longest.learner, is_over=entry.state == FINISHED)
    elif learner != NEVER:
        launched_s = _launched_at_s(client, made[GROUP].get("PhysicalResourceId"), deployed.created_at_s, learner)
        learner = (launched_s, learner[1])
    usd = deployed.cost_usd(entry, Stood(learner=learner, cache=cache, provisioned=provisioned))
    # Of warm actors the block that has begun is billed whole, and of a cache node the hour.
    if provisioned != NEVER:
        usd += deployed.provisioned_usd_per_hour * BLOCK_S / _HOUR_S
    if REPLICATION_GROUP in made:
        usd += deployed.cache_usd_per_hour * (-(cache[1] - cache[0]) % _HOUR_S) / _HOUR_S
    return usd


def _span(longest: tuple[float, float], part: Mapping[str, Any] | None) -> tuple[float, float]:
    """From when to when a part stood; CloudFormation tells when it has deleted one."""
    if part is None:
        return NEVER
    began_s, gone_s = longest
    if part.get("ResourceStatus") == "DELETE_COMPLETE":
        gone_s = min(gone_s, part["LastUpdatedTimestamp"].timestamp())
    return began_s, max(began_s, gone_s)


def _legs(client: Client, machine: str, longest: tuple[float, float], *, is_over: bool) -> tuple[float, float]:
    """From when to when legs of a coordinator can have run, within the time that its state machine stood, and after it.

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
    ends_s = [gone_s if "stopDate" not in one else one["stopDate"].timestamp() for one in executions]
    return (max(began_s, min(one["startDate"].timestamp() for one in executions)),
            max(end_s + (0.0 if one["status"] in _LEG_ENDED else late_s)
                for one, end_s in zip(executions, ends_s, strict=True)))


def _launched_at_s(client: Client, group: str | None, created_at_s: float, stood: tuple[float, float]) -> float:
    """When the group launched an instance first, within the time that it stood; the end of that if it never did."""
    began_s, gone_s = stood
    if group is None:
        return began_s
    since = datetime.datetime.fromtimestamp(math.floor(created_at_s), datetime.UTC).isoformat()
    try:
        # The group may be gone by now; another deployment's had the same name.
        activities: Iterable[Mapping[str, Any]] = list_all(
            client("autoscaling"), "describe_scaling_activities", "Activities", AutoScalingGroupName=group,
            IncludeDeletedGroups=True, Filters=[{"Name": "StartTimeLowerBound", "Values": [since]}])
    except AWS_ERRORS:
        return began_s
    return min((max(began_s, one["StartTime"].timestamp()) for one in activities
                if one["StatusCode"] not in _NOT_LAUNCHED), default=gone_s)
