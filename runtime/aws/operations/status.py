"""``python -m runtime status``: shows deployments, what may be left, ended runs and the guard, with their cost."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from runtime.aws.asking import pages_of
from runtime.aws.clients import Client
from runtime.aws.guard.stacks import GuardedStack, read_deployment
from runtime.aws.ledger import TRAINING, Entry, Ledger, LedgerError
from runtime.aws.operations.executions import find_coordinator
from runtime.aws.operations.kept_runs import KeptError, KeptRun, find_bucket
from runtime.aws.operations.texts import iso
from runtime.aws.stacks import WITHOUT_RESOURCES, outputs_of, tags_of
from runtime.errors import OperationError
from runtime.names import (
    EXPERIMENT_TAG,
    GUARD_STACK,
    MACHINE_OUTPUT,
    STACK_ID_TAG,
    STACK_PREFIX,
    stack_name,
)
from runtime.records import layout
from runtime.times import ALIVE_S

_BILLED = re.compile(
    r"arn:[\w-]+:(ec2:[^:]+:\d+:(instance|volume)/|elasticache:[^:]+:\d+:(serverlesscache|replicationgroup):"
    r"|autoscaling:|lambda:|states:)"
)
"""ARNs of resources that cost money for as long as they exist, or may."""
_INSTANCE_STATES = ["pending", "running", "stopping", "stopped", "shutting-down"]
"""All states except terminated."""


def survey(
    client: Client, experiment: str | None, *, account: str, region: str, now_s: float
) -> dict[str, Any]:
    """Surveys the account: the data of `status` as one document.

    Args:
        client: Makes boto3 clients by service name.
        experiment: Only this one, in more detail; None for all.
        account: Number of the client's account.
        region: The client's.
        now_s: Seconds since 1970.

    Raises:
        OperationError: There is nothing of that experiment.
        AccountError: AWS cannot be reached.
        LedgerError: The ledger cannot be read.
    """
    found = pages_of(client("cloudformation"), "describe_stacks", "Stacks")
    guard_stack = next((stack for stack in found if stack["StackName"] == GUARD_STACK), None)
    guard = _guard(client, guard_stack, now_s)
    entries = {entry.run: entry for entry in _entries(client, guard)}
    instances = _find_instances(client)
    deployments = [
        _deployment(
            stack,
            deployed.begun(entries.get(deployed.run), 0.0),
            entries.get(deployed.run),
            instances,
            now_s,
        )
        | _coordinator(client, stack, now_s)
        for stack in found
        if (deployed := _read(stack)) is not None
    ]
    document = {
        "account": account,
        "region": region,
        "at": iso(now_s),
        "deployments": sorted(deployments, key=lambda one: one["stack"]),
        "left": _left(client, found, instances),
        "gone": [
            _gone(entry)
            for run, entry in entries.items()
            if run not in {one["run"] for one in deployments}
        ],
        "guard": guard,
    }
    document["totals"] = _totals(document, entries.values())
    return document if experiment is None else _of_one(client, document, experiment)


def _read(stack: Mapping[str, Any]) -> GuardedStack | None:
    """Reads a deployment, also one with a deployment's name but no tags, which the guard does not see."""
    deployed = read_deployment(stack)
    if deployed is not None or not stack["StackName"].startswith(STACK_PREFIX):
        return deployed
    experiment = stack["StackName"].removeprefix(STACK_PREFIX)
    tags = [*stack.get("Tags", []), {"Key": EXPERIMENT_TAG, "Value": experiment}]
    return read_deployment({**stack, "Tags": tags})


def _deployment(
    stack: Mapping[str, Any],
    deployed: GuardedStack,
    entry: Entry | None,
    instances: Iterable[Mapping[str, Any]],
    now_s: float,
) -> dict[str, Any]:
    known = entry if entry is not None and entry.stack == deployed.stack else None
    order = entry.order_for(deployed.stack) if entry else None
    heartbeat_at_s = known.heartbeat_at_s if known else 0.0
    silent_s = now_s - heartbeat_at_s if heartbeat_at_s else None
    state = known.state if known else ""
    return {
        "experiment": deployed.experiment,
        "run": deployed.run,
        "stack": deployed.name,
        "stack_id": deployed.stack,
        "stack_status": deployed.status,
        "state": state,
        "reason": known.reason if known else "",
        "teardown": None
        if order is None
        else {
            "reason": order.reason,
            "ordered_at": iso(order.ordered_at_s),
            "ordered_s": now_s - order.ordered_at_s,
            "steps": {
                name: iso(at_s)
                for name, at_s in sorted(order.steps.items(), key=lambda step: step[1])
            },
            "failures": order.failures,
        },
        "instances": [
            {
                "instance_id": one["InstanceId"],
                "instance_type": one["InstanceType"],
                "state": one["State"]["Name"],
            }
            for one in instances
            if _has(tags_of(one), {deployed.stack: deployed.name})
        ],
        "heartbeat_s": silent_s,
        "is_silent": silent_s is not None
        and silent_s > ALIVE_S
        and state == TRAINING
        and order is None,
        "spent_usd": entry.spent_usd if entry else None,
        "reserved_usd": entry.reserved_usd if entry else None,
        "projected_usd": deployed.projected_usd(entry, now_s),
        "budget_usd": deployed.budget_usd,
        "burn_usd_per_hour": (known.burn_usd_per_hour if known else 0.0)
        or deployed.burn_usd_per_hour,
        "age_s": now_s - deployed.created_at_s,
        "lifetime_left_s": deployed.lifetime_s - (now_s - deployed.created_at_s),
        "unreadable": deployed.unreadable,
        "dashboard_url": outputs_of(stack).get("DashboardUrl", ""),
    }


def _coordinator(client: Client, stack: Mapping[str, Any], now_s: float) -> dict[str, Any]:
    """Returns ``coordinator``: None with an instance, and before the stack is complete."""
    machine = outputs_of(stack).get(MACHINE_OUTPUT)
    return {"coordinator": find_coordinator(client, machine, now_s) if machine else None}


def _find_instances(client: Client) -> list[Mapping[str, Any]]:
    """Returns all learners' instances that are not terminated, by id, as EC2 describes them."""
    reservations = pages_of(
        client("ec2"),
        "describe_instances",
        "Reservations",
        Filters=[
            {"Name": "tag-key", "Values": [EXPERIMENT_TAG]},
            {"Name": "instance-state-name", "Values": _INSTANCE_STATES},
        ],
    )
    found = [one for reservation in reservations for one in reservation["Instances"]]
    return sorted(found, key=lambda one: str(one["InstanceId"]))


def _left(
    client: Client, stacks: Iterable[Mapping[str, Any]], instances: Sequence[Mapping[str, Any]]
) -> list[dict[str, str]]:
    """Returns resources that are billed and belong to no stack; AWS lists their tags for hours after their deletion."""
    present = {
        stack["StackId"]: stack["StackName"]
        for stack in stacks
        if stack["StackStatus"] not in WITHOUT_RESOURCES
    }
    running = {one["InstanceId"] for one in instances}
    tagged = pages_of(
        client("resourcegroupstaggingapi"),
        "get_resources",
        "ResourceTagMappingList",
        TagFilters=[{"Key": EXPERIMENT_TAG}],
    )
    return [
        {"experiment": tags[EXPERIMENT_TAG], "arn": arn}
        for arn, tags in sorted({one["ResourceARN"]: tags_of(one) for one in tagged}.items())
        if _BILLED.match(arn)
        and not _has(tags, present)
        and (":instance/" not in arn or arn.rpartition("/")[2] in running)
    ]


def _has(tags: Mapping[str, str], stacks: Mapping[str, str]) -> bool:
    """Returns whether one of these stacks, names by id, has a resource with these tags."""
    if STACK_ID_TAG in tags:
        return tags[STACK_ID_TAG] in stacks
    return stack_name(tags[EXPERIMENT_TAG]) in stacks.values()


def _gone(entry: Entry) -> dict[str, Any]:
    reason = entry.reason or (entry.order.reason if entry.order else "")
    return {
        "run": entry.run,
        "spent_usd": entry.spent_usd,
        "reserved_usd": entry.reserved_usd,
        "budget_usd": entry.budget_usd,
        "state": entry.state,
        "ended": reason,
        "heard_at": iso(entry.heartbeat_at_s) if entry.heartbeat_at_s else None,
    }


def _guard(client: Client, stack: Mapping[str, Any] | None, now_s: float) -> dict[str, Any] | None:
    """Returns the guard's state; None if there is none."""
    if stack is None:
        return None
    outputs = outputs_of(stack)
    table, rule, topic = (
        outputs.get(name, "") for name in ("LedgerTable", "RuleName", "ReportsTopic")
    )
    subscribed = (
        pages_of(client("sns"), "list_subscriptions_by_topic", "Subscriptions", TopicArn=topic)
        if topic
        else []
    )
    pending = [one for one in subscribed if one["SubscriptionArn"] == "PendingConfirmation"]
    return {
        "stack_status": stack["StackStatus"],
        "table": table,
        "function": outputs.get("GuardFunction", ""),
        "problem": "",
        "last_tick_s": _last_tick_s(client, table, now_s) if table else None,
        "rule": rule,
        "rule_state": _rule_state(client, rule) if rule else "",
        "topic": topic,
        "subscribers": sum(one["SubscriptionArn"].startswith("arn:") for one in subscribed),
        "unconfirmed": len(pending),
    }


def _last_tick_s(client: Client, table: str, now_s: float) -> float | None:
    """Returns how long ago the guard looked; None if it never did, or if that is unknown."""
    try:
        at_s = Ledger(client("dynamodb"), table).last_tick_s()
    except LedgerError:
        # `_entries` reports the reason.
        return None
    return None if at_s is None else now_s - at_s


def _rule_state(client: Client, rule: str) -> str:
    """Returns the rule's state; empty if there is no such rule."""
    events = client("events")
    rules = pages_of(events, "list_rules", "Rules", NamePrefix=rule)
    return next((one["State"] for one in rules if one["Name"] == rule), "")


def _entries(client: Client, guard: dict[str, Any] | None) -> list[Entry]:
    """Returns the ledger's entries; if it is unreadable, none, and sets the guard's ``problem``."""
    if guard is None or not guard["table"]:
        return []
    try:
        return Ledger(client("dynamodb"), guard["table"]).entries()
    except LedgerError as error:
        guard["problem"] = str(error)
        return []


def _totals(document: Mapping[str, Any], entries: Iterable[Entry]) -> dict[str, Any]:
    guard = document["guard"]
    return {
        "spent_usd": (
            sum(entry.spent_usd for entry in entries)
            + sum(one["reserved_usd"] for one in document["gone"])
        ),
        "is_ledger_there": guard is not None and bool(guard["table"]) and not guard["problem"],
        "burn_usd_per_hour": sum(one["burn_usd_per_hour"] for one in document["deployments"]),
        "is_at_least": bool(document["left"])
        or any(one["unreadable"] for one in document["deployments"]),
    }


def _of_one(client: Client, document: dict[str, Any], experiment: str) -> dict[str, Any]:
    """Returns a survey's part about one experiment.

    Raises:
        OperationError: There is nothing of it.
    """
    others = [one["experiment"] for one in document["deployments"]]
    chosen = {
        **document,
        "deployments": [one for one in document["deployments"] if one["experiment"] == experiment],
        "left": [one for one in document["left"] if one["experiment"] == experiment],
        "gone": [one for one in document["gone"] if one["run"].partition("/")[0] == experiment],
    }
    del chosen["totals"]
    for one in chosen["deployments"]:
        one |= _details(client, experiment, one["run"].partition("/")[2])
    if not any(chosen[name] for name in ("deployments", "left", "gone")):
        raise OperationError(
            f"nothing of {experiment} in account {document['account']}, region "
            f"{document['region']}; deployed are: {', '.join(others) or 'none'}. Results that were "
            f"kept: python -m runtime results {experiment}"
        )
    return chosen


def _details(client: Client, experiment: str, run: str) -> dict[str, Any]:
    try:
        kept = KeptRun(client("s3"), find_bucket(client), experiment, run)
    except KeptError as error:
        return {"results": "", "round": None, "problem": str(error)}
    rows = kept.rows(layout.ROUNDS)
    return {"results": kept.url, "round": rows[-1] if rows else None, "problem": ""}
