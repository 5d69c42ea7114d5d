"""``python -m runtime status``: shows deployments, what may be left, ended runs and the guard, with their cost."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from runtime.aws.asking import ask, pages_of
from runtime.aws.clients import Client
from runtime.aws.guard.parts import find_executions
from runtime.aws.guard.stacks import GuardedStack, read_deployment
from runtime.aws.ledger import TRAINING, Entry, Ledger, LedgerError
from runtime.aws.operations.kept_runs import KeptError, KeptRun, find_bucket
from runtime.aws.stacks import WITHOUT_RESOURCES, outputs_of, tags_of
from runtime.errors import OperationError
from runtime.money.prices import PRICES
from runtime.names import (
    EXPERIMENT_TAG,
    GUARD_STACK,
    MACHINE_OUTPUT,
    STACK_ID_TAG,
    stack_name,
)
from runtime.records import layout
from runtime.show.terminal import duration, laid_out
from runtime.times import ALIVE_S

_BILLED = re.compile(
    r"arn:[\w-]+:(ec2:[^:]+:\d+:(instance|volume)/|elasticache:[^:]+:\d+:(serverlesscache|replicationgroup):"
    r"|autoscaling:|lambda:|states:)"
)
"""ARNs of resources that cost money for as long as they exist, or may."""
_INSTANCE_STATES = ["pending", "running", "stopping", "stopped", "shutting-down"]
"""All states except terminated."""
_GUARD_LATE_S = 300.0
"""The guard looks once a minute."""


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
    """
    found = pages_of(client("cloudformation"), "describe_stacks", "Stacks")
    guard_stack = next((stack for stack in found if stack["StackName"] == GUARD_STACK), None)
    guard, entries = _guard(client, guard_stack, now_s)
    instances = _find_instances(client)
    deployments = [
        _deployment(client, stack, deployed, entries.get(deployed.run), instances, now_s)
        for stack in found
        if (deployed := _read(stack)) is not None
    ]
    runs = {one["run"] for one in deployments}
    document: dict[str, Any] = {
        "account": account,
        "region": region,
        "at": iso(now_s),
        "deployments": sorted(deployments, key=lambda one: str(one["stack"])),
        "left": _left(client, found, instances),
        "gone": [asdict(entry) for run, entry in entries.items() if run not in runs],
        "guard": guard,
    }
    return document if experiment is None else _of_one(client, document, experiment)


def _read(stack: Mapping[str, Any]) -> GuardedStack | None:
    """Reads a deployment, also one with a deployment's name but no tags, which the guard does not see."""
    tags = [*stack.get("Tags", []), {"Key": EXPERIMENT_TAG, "Value": ""}]
    return read_deployment({**stack, "Tags": tags})


def _deployment(
    client: Client,
    stack: Mapping[str, Any],
    deployed: GuardedStack,
    entry: Entry | None,
    instances: Iterable[Mapping[str, Any]],
    now_s: float,
) -> dict[str, Any]:
    deployed = deployed.begun(entry, 0.0)
    known = entry if entry is not None and entry.stack == deployed.stack else None
    order = entry.order_for(deployed.stack) if entry else None
    heartbeat_s = now_s - known.heartbeat_at_s if known and known.heartbeat_at_s else None
    outputs = outputs_of(stack)
    machine = outputs.get(MACHINE_OUTPUT)
    legs = ask(lambda: find_executions(client("stepfunctions"), machine)) if machine else []
    return {
        "experiment": deployed.experiment,
        "run": deployed.run,
        "stack": deployed.name,
        "stack_status": deployed.status,
        "state": known.state if known else "",
        "reason": known.reason if known else "",
        "teardown": asdict(order) if order else None,
        "instances": [
            {
                "instance_id": one["InstanceId"],
                "instance_type": one["InstanceType"],
                "state": one["State"]["Name"],
            }
            for one in instances
            if _has(tags_of(one), {deployed.stack: deployed.name})
        ],
        "executions": [one["status"] for one in legs],
        "heartbeat_s": heartbeat_s,
        "is_silent": bool(known and known.state == TRAINING and not order)
        and (heartbeat_s or 0.0) > ALIVE_S,
        "spent_usd": entry.spent_usd if entry else None,
        "reserved_usd": entry.reserved_usd if entry else None,
        "projected_usd": deployed.projected_usd(entry, now_s),
        "budget_usd": deployed.budget_usd,
        "burn_usd_per_hour": (known.burn_usd_per_hour if known else 0.0)
        or deployed.burn_usd_per_hour,
        "age_s": now_s - deployed.created_at_s,
        "lifetime_s": deployed.lifetime_s,
        "unreadable": deployed.unreadable,
        "dashboard_url": outputs.get("DashboardUrl", ""),
    }


def _find_instances(client: Client) -> list[Mapping[str, Any]]:
    """Returns all learners' instances that are not terminated, as EC2 describes them."""
    reservations = pages_of(
        client("ec2"),
        "describe_instances",
        "Reservations",
        Filters=[
            {"Name": "tag-key", "Values": [EXPERIMENT_TAG]},
            {"Name": "instance-state-name", "Values": _INSTANCE_STATES},
        ],
    )
    return [one for reservation in reservations for one in reservation["Instances"]]


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


def _guard(
    client: Client, stack: Mapping[str, Any] | None, now_s: float
) -> tuple[dict[str, Any] | None, dict[str, Entry]]:
    """Returns the guard's state, None if there is none, and the ledger's entries by run."""
    outputs = outputs_of(stack or {})
    if stack is None or "LedgerTable" not in outputs:
        return None, {}
    ledger, entries = Ledger(client("dynamodb"), outputs["LedgerTable"]), {}
    problem, last_tick_s = "", None
    try:
        entries = {entry.run: entry for entry in ledger.entries()}
        at_s = ledger.last_tick_s()
        last_tick_s = None if at_s is None else now_s - at_s
    except LedgerError as error:
        problem = str(error)
    rule, topic = outputs["RuleName"], outputs["ReportsTopic"]
    rules = pages_of(client("events"), "list_rules", "Rules", NamePrefix=rule)
    subscribed = pages_of(
        client("sns"), "list_subscriptions_by_topic", "Subscriptions", TopicArn=topic
    )
    guard = {
        "stack_status": stack["StackStatus"],
        "problem": problem,
        "last_tick_s": last_tick_s,
        "function": outputs["GuardFunction"],
        "rule": rule,
        "rule_state": next((one["State"] for one in rules if one["Name"] == rule), "not there"),
        "topic": topic,
        "subscribers": sum(one["SubscriptionArn"].startswith("arn:") for one in subscribed),
    }
    return guard, entries


def _of_one(client: Client, document: dict[str, Any], experiment: str) -> dict[str, Any]:
    """Returns a survey's part about one experiment, with its last round.

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
    if not any(chosen[name] for name in ("deployments", "left", "gone")):
        raise OperationError(
            f"nothing of {experiment} in account {document['account']}, region "
            f"{document['region']}; deployed are: {', '.join(others) or 'none'}. Results that were "
            f"kept: python -m runtime results {experiment}"
        )
    for one in chosen["deployments"]:
        try:
            run = one["run"].partition("/")[2]
            kept = KeptRun(client("s3"), find_bucket(client), experiment, run)
        except KeptError as error:
            one |= {"results": str(error), "round": None}
        else:
            one |= {"results": kept.url, "round": next(reversed(kept.rows(layout.ROUNDS)), None)}
    return chosen


def status_lines(document: Mapping[str, Any]) -> list[str]:
    """Returns a survey as text."""
    lines = laid_out({"account": f"{document['account']}, {document['region']}"})
    lines += ["", "DEPLOYED"]
    for one in document["deployments"]:
        lines += [one["run"], *laid_out(_deployment_facts(one), margin=2)]
    lines += [] if document["deployments"] else ["none"]
    if document["left"]:
        lines += ["", "MAY BE LEFT WITHOUT A STACK (AWS LISTS TAGS FOR HOURS AFTER A DELETION)"]
        lines += [f"{one['experiment']}: {one['arn']}" for one in document["left"]]
    if document["gone"]:
        lines += ["", "RUNS THAT ARE GONE"]
    for one in document["gone"]:
        usd = one["spent_usd"] + one["reserved_usd"]
        ended = one["reason"] or (one["order"] or {}).get("reason") or one["state"] or "unknown"
        lines += laid_out({one["run"]: f"${usd:.4f} of ${one['budget_usd']:g}: {ended}"})
    lines += ["", "GUARD", *_guard_lines(document["guard"])]
    burn_usd = sum(one["burn_usd_per_hour"] for one in document["deployments"])
    total = f"${burn_usd:.4f} an hour now, modelled from list prices of {PRICES.as_of}; AWS' bill is what counts"
    return [*lines, "", *laid_out({"burning": total})]


def _deployment_facts(one: Mapping[str, Any]) -> dict[str, str]:
    learner = [one["state"] or "none has reported", one["reason"]]
    learner += [
        f"{each['instance_type']} {each['instance_id']} {each['state']}"
        for each in one["instances"]
    ]
    if one["heartbeat_s"] is not None:
        silent = ": SILENT" if one["is_silent"] else ""
        learner.append(f"heartbeat {duration(one['heartbeat_s'])} ago{silent}")
    known = "nothing is known of it"
    if one["spent_usd"] is not None:
        known = f"spent ${one['spent_usd']:.4f}, reserved ${one['reserved_usd']:.4f}"
    left_s = one["lifetime_s"] - one["age_s"]
    facts = {
        "stack": f"{one['stack']}, {one['stack_status']}",
        "learner": "; ".join(text for text in learner if text),
        "executions": ", ".join(one["executions"]),
        "dollars": f"{known}; at most ${one['projected_usd']:.4f} of ${one['budget_usd']:.4f} by now; burns "
        f"${one['burn_usd_per_hour']:.4f} an hour",
        "time": f"{duration(one['age_s'])} old; "
        + (f"{duration(left_s)} left" if left_s > 0 else "its lifetime is over"),
        "ATTENTION": one["unreadable"],
        "dashboard": one["dashboard_url"],
        "results": one.get("results", ""),
    }
    if one["teardown"]:
        steps = ", ".join(one["teardown"]["steps"]) or "nothing yet"
        facts["teardown"] = (
            f"{one['teardown']['reason']}; done: {steps}; failures: {one['teardown']['failures']}"
        )
    if row := one.get("round"):
        facts["last round"] = (
            f"{row.get('round_index')}: return {row.get('episode_return_mean')}, evaluated "
            f"{row.get('evaluation_return_mean')}, {row.get('actors_returned')} of {row.get('actor_count')} actors"
        )
    return {label: text for label, text in facts.items() if text}


def _guard_lines(guard: Mapping[str, Any] | None) -> list[str]:
    if guard is None:
        return [
            f"!!! There is no stack {GUARD_STACK}: NOTHING ENDS DEPLOYMENTS BY ITSELF, whatever they cost.",
            "    `make deploy` makes it; end what is deployed now: python -m runtime stop EXPERIMENT",
        ]
    last_s = guard["last_tick_s"]
    looked = "never looked" if last_s is None else f"looked {duration(last_s)} ago"
    lines = [
        f"{looked}; its rule {guard['rule']} is {guard['rule_state']}; its stack is {guard['stack_status']}; "
        f"{guard['subscribers']} subscribed to its reports"
    ]
    if guard["problem"]:
        lines.append(f"!!! WHAT THE LEDGER HOLDS IS NOT KNOWN: {guard['problem']}")
    elif guard["rule_state"] != "ENABLED" or last_s is None or last_s > _GUARD_LATE_S:
        lines.append(
            "!!! IT DOES NOT WATCH: nothing ends deployments by itself; aws events enable-rule --name "
            f"{guard['rule']}, or see the log of {guard['function']}"
        )
    if not guard["subscribers"]:
        lines.append(
            f"nobody gets its reports: aws sns subscribe --topic-arn {guard['topic']} --protocol email "
            "--notification-endpoint YOU@EXAMPLE.ORG"
        )
    return lines


def iso(at_s: float) -> str:
    """Returns a time, in seconds since 1970, in UTC as ISO 8601."""
    return datetime.datetime.fromtimestamp(at_s, datetime.UTC).isoformat(timespec="seconds")
