"""``python -m runtime status``: shows deployments, what may be left, ended runs and the guard, with their cost."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from runtime.aws.asking import AccountError, ask, pages_of
from runtime.aws.clients import Client
from runtime.aws.guard.parts import find_instances
from runtime.aws.guard.stacks import GuardedStack, find_deployments
from runtime.aws.ledger import TRAINING, Entry, LedgerError, find_ledger
from runtime.aws.run_files import find_runs
from runtime.aws.stacks import tags_of
from runtime.errors import OperationError
from runtime.money.prices import PRICES
from runtime.names import EXPERIMENT_TAG, GUARD_STACK, OURS, STACK_ID_TAG, stack_name
from runtime.show.terminal import duration, laid_out
from runtime.times import ALIVE_S

_BILLED = re.compile(
    r"arn:[\w-]+:(ec2:[^:]+:\d+:(instance|volume)/|elasticache:[^:]+:\d+:serverlesscache:"
    r"|autoscaling:|lambda:|states:)"
)
"""ARNs of resources that cost money for as long as they exist, or may."""
_GUARD_LATE_S = 300.0
"""The guard looks once a minute."""


def survey(
    client: Client, experiment: str | None, *, account: str, region: str, now_s: float
) -> dict[str, Any]:
    """Surveys the account: the data of `status` as one document.

    Args:
        client: Makes boto3 clients by service name.
        experiment: Only this one, with its last round; None for all.
        account: Number of the client's account.
        region: The client's.
        now_s: Seconds since 1970.

    Raises:
        OperationError: There is nothing of that experiment.
        AccountError, ResultsError: AWS cannot be reached.
    """
    guard, entries = _guard(client, now_s)
    known = {entry.stack: run for run, entry in entries.items() if entry.is_open}
    stacks, unread = find_deployments(client, known)
    if unread:
        raise AccountError(f"the AWS account cannot be asked: {'; '.join(unread.values())}")
    instances = ask(lambda: find_instances(client("ec2"), EXPERIMENT_TAG))
    names = sorted({one.experiment for one in stacks})
    left = _left(client, stacks, instances.keys())
    if experiment is not None:
        stacks = [one for one in stacks if one.experiment == experiment]
        left = [one for one in left if one["experiment"] == experiment]
        entries = {run: one for run, one in entries.items() if run.startswith(f"{experiment}/")}
        if not (stacks or left or entries):
            raise OperationError(
                f"nothing of {experiment} in account {account}, region {region}; deployed are: "
                f"{', '.join(names) or 'none'}. Results that were kept: python -m runtime results {experiment}"
            )
    deployments = [_deployment(one, entries.get(one.run), instances, now_s) for one in stacks]
    if experiment is not None:
        for one in deployments:
            one["round"] = _last_round(client, one["run"])
    runs = {one["run"] for one in deployments}
    return {
        "account": account,
        "region": region,
        "at": iso(now_s),
        "deployments": deployments,
        "left": left,
        "gone": [_figures(entry) for run, entry in entries.items() if run not in runs],
        "guard": guard,
    }


def _guard(client: Client, now_s: float) -> tuple[dict[str, Any] | None, dict[str, Entry]]:
    """Returns the guard's state, None if there is none, and the ledger's entries by run."""
    ledger = find_ledger(client)
    if ledger is None:
        return None, {}
    try:
        looked_at_s = ledger.last_tick_s()
        entries = {entry.run: entry for entry in ledger.entries()}
    except LedgerError as error:
        return {"last_tick_s": None, "problem": str(error)}, {}
    last_tick_s = None if looked_at_s is None else now_s - looked_at_s
    return {"last_tick_s": last_tick_s, "problem": ""}, entries


def _deployment(
    deployed: GuardedStack,
    entry: Entry | None,
    instances: Mapping[str, Mapping[str, Any]],
    now_s: float,
) -> dict[str, Any]:
    deployed = deployed.begun(entry, 0.0)
    known = entry if entry is not None and entry.stack == deployed.stack else Entry(deployed.run)
    heartbeat_s = now_s - known.heartbeat_at_s if known.heartbeat_at_s else None
    is_silent = known.state == TRAINING and known.order is None and (heartbeat_s or 0.0) > ALIVE_S
    return {
        **_figures(known),
        "experiment": deployed.experiment,
        "stack": deployed.name,
        "stack_status": deployed.status,
        "instances": [
            f"{name} {one['InstanceType']} {one['State']['Name']}"
            for name, one in instances.items()
            if _is_of(tags_of(one), deployed)
        ],
        "heartbeat_s": heartbeat_s,
        "is_silent": is_silent,
        "projected_usd": deployed.projected_usd(entry, now_s),
        "budget_usd": deployed.budget_usd,
        "burn_usd_per_hour": known.burn_usd_per_hour or deployed.burn_usd_per_hour,
        "age_s": now_s - deployed.created_at_s,
        "lifetime_s": deployed.lifetime_s,
        "unreadable": deployed.unreadable,
    }


def _figures(entry: Entry) -> dict[str, Any]:
    """Returns what an entry has for people."""
    names = ("run", "state", "reason", "spent_usd", "reserved_usd", "budget_usd", "order")
    figures = asdict(entry)
    return {name: figures[name] for name in names}


def _left(
    client: Client, stacks: Iterable[GuardedStack], instances: Iterable[str]
) -> list[dict[str, str]]:
    """Returns resources that are billed and belong to no stack; AWS lists their tags for hours after their deletion."""
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
        and not any(_is_of(tags, one) for one in stacks)
        and (":instance/" not in arn or arn.rpartition("/")[2] in instances)
    ]


def _is_of(tags: Mapping[str, str], deployed: GuardedStack) -> bool:
    """Returns whether a stack has the resource with these tags."""
    if STACK_ID_TAG in tags:
        return tags[STACK_ID_TAG] == deployed.stack
    return stack_name(tags[EXPERIMENT_TAG]) == deployed.name


def _last_round(client: Client, run: str) -> dict[str, Any] | None:
    try:
        files = {one.key: one for one in find_runs(client, run.partition("/")[0])}
    except OperationError:
        return None
    return next(reversed(files[run].rows()), None) if run in files else None


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
    page = f"https://{document['region']}.console.aws.amazon.com/cloudwatch/home#dashboards/dashboard/{OURS}"
    return [*lines, "", *laid_out({"burning": total, "dashboard": page})]


def _deployment_facts(one: Mapping[str, Any]) -> dict[str, str]:
    learner = [one["state"] or "none has reported", one["reason"]]
    learner += one["instances"]
    if one["heartbeat_s"] is not None:
        silent = ": SILENT" if one["is_silent"] else ""
        learner.append(f"heartbeat {duration(one['heartbeat_s'])} ago{silent}")
    left_s = one["lifetime_s"] - one["age_s"]
    lifetime = f"{duration(left_s)} left" if left_s > 0 else "its lifetime is over"
    facts = {
        "stack": f"{one['stack']}, {one['stack_status']}",
        "learner": "; ".join(text for text in learner if text),
        "dollars": f"spent ${one['spent_usd']:.4f}, reserved ${one['reserved_usd']:.4f}; "
        f"at most ${one['projected_usd']:.4f} of ${one['budget_usd']:.4f} by now; burns "
        f"${one['burn_usd_per_hour']:.4f} an hour",
        "time": f"{duration(one['age_s'])} old; {lifetime}",
        "ATTENTION": one["unreadable"],
    }
    if order := one["order"]:
        steps = ", ".join(order["steps"]) or "nothing yet"
        facts["teardown"] = f"{order['reason']}; done: {steps}; failures: {order['failures']}"
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
    if guard["problem"]:
        return [f"!!! WHAT THE LEDGER HOLDS IS NOT KNOWN: {guard['problem']}"]
    last_s = guard["last_tick_s"]
    looked = "never looked" if last_s is None else f"looked {duration(last_s)} ago"
    if last_s is None or last_s > _GUARD_LATE_S:
        return [
            f"!!! IT DOES NOT WATCH, it {looked}: nothing ends deployments by itself; `aws events enable-rule` for the "
            f"RuleName of the stack {GUARD_STACK}, or see the log of its function"
        ]
    return [looked]


def iso(at_s: float) -> str:
    """Returns a time, in seconds since 1970, in UTC as ISO 8601."""
    return datetime.datetime.fromtimestamp(at_s, datetime.UTC).isoformat(timespec="seconds")
