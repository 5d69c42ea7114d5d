"""The text output of ``python -m runtime status``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from runtime.aws.operations.executions import coordinator_text
from runtime.aws.operations.texts import (
    ago_text,
    duration_text,
    table,
    usd_text,
)
from runtime.money.prices import PRICES
from runtime.names import GUARD_STACK
from runtime.records.rows import return_text
from runtime.show.terminal import laid_out

GUARD_LATE_S = 300.0
"""The guard looks once a minute."""


def status_lines(document: Mapping[str, Any]) -> list[str]:
    """Returns a survey as text; up to 100 columns wide except for names and commands."""
    is_one = "totals" not in document
    lines = laid_out({"account": f"{document['account']}, {document['region']}"})
    lines += _heading(
        "deployed",
        [line for one in document["deployments"] for line in _deployment_lines(one)],
        "none",
    )
    lines += _heading(
        "may be left without a stack (AWS lists tags for hours after a deletion)",
        [f"{one['experiment']}: {one['arn']}" for one in document["left"]],
        "" if is_one else "none",
    )
    lines += _heading("runs that are gone", _gone_lines(document["gone"]), "")
    lines += _heading("guard", _guard_lines(document["guard"]), "")
    return lines if is_one else [*lines, "", *_total_lines(document["totals"])]


def _deployment_lines(one: Mapping[str, Any]) -> list[str]:
    facts = {
        "stack": f"{one['stack']}, {one['stack_status']}",
        "learner": _learner_text(one),
        "dollars": _dollars_text(one),
        "time": _time_text(one),
    }
    if one["coordinator"]:
        facts["coordinator"] = coordinator_text(one["coordinator"])
    if one["teardown"]:
        facts["teardown"] = _teardown_text(one["teardown"])
    if one["unreadable"]:
        facts["ATTENTION"] = f"its limits are unreadable: {one['unreadable']}"
    if one.get("round"):
        facts["last round"] = _round_text(one["round"])
    facts |= {
        label: one[key] for label, key in (("results", "results"), ("", "problem")) if one.get(key)
    }
    if "results" in one and one["dashboard_url"]:
        facts["dashboard"] = one["dashboard_url"]
    return [one["run"], *laid_out(facts, margin=2)]


def _learner_text(one: Mapping[str, Any]) -> str:
    state = one["state"] or "none has reported"
    if one["teardown"]:
        state += ", being torn down"
    parts = [state + (f" ({one['reason']})" if one["reason"] else "")]
    parts += [
        f"{found['instance_type']} {found['instance_id']} {found['state']}"
        for found in one["instances"]
    ]
    if not one["instances"] and not one["coordinator"]:
        parts.append("no instance")
    if one["heartbeat_s"] is not None:
        parts.append(
            f"heartbeat {ago_text(one['heartbeat_s'])}" + (": SILENT" if one["is_silent"] else "")
        )
    return "; ".join(parts)


def _dollars_text(one: Mapping[str, Any]) -> str:
    known = (
        "the ledger knows nothing of it yet"
        if one["spent_usd"] is None
        else f"spent {usd_text(one['spent_usd'])}, reserved {usd_text(one['reserved_usd'])}"
    )
    if one["unreadable"]:
        return known
    return (
        f"{known}; at most {usd_text(one['projected_usd'])} of {usd_text(one['budget_usd'])} by now; burns "
        f"{usd_text(one['burn_usd_per_hour'])} an hour"
    )


def _time_text(one: Mapping[str, Any]) -> str:
    left_s = one["lifetime_left_s"]
    age = f"{duration_text(one['age_s'])} old"
    if one["unreadable"]:
        return age
    return f"{age}, " + (
        f"{duration_text(left_s)} of its lifetime left"
        if left_s > 0
        else f"its lifetime is over since {duration_text(-left_s)}"
    )


def _teardown_text(teardown: Mapping[str, Any]) -> str:
    text = (
        f"ordered {ago_text(teardown['ordered_s'])}: {teardown['reason']}; done: "
        f"{', '.join(teardown['steps']) or 'nothing yet'}"
    )
    count = teardown["failures"]
    return text + (
        f"; its stack could not be deleted {count} time{'s' * (count > 1)}" if count else ""
    )


def _round_text(row: Mapping[str, Any]) -> str:
    evaluated = row.get("evaluation_return_mean")
    return (
        f"{row.get('round_index')}: return {return_text(row.get('episode_return_mean'))}"
        + ("" if evaluated is None else f", evaluated {return_text(evaluated)}")
        + f", {row.get('actors_returned')} of {row.get('actor_count')} actors, "
        f"{row.get('env_steps_total') or 0:,} steps in all"
        + (
            ""
            if row.get("gradients") is None
            else f", {row['gradients']} gradients, {row.get('gradients_lost')} lost"
        )
    )


def _gone_lines(gone: Iterable[Mapping[str, Any]]) -> list[str]:
    return table(
        [
            ("run", "spent", "budget", "last heartbeat", "ended"),
            *(
                (
                    one["run"],
                    usd_text(one["spent_usd"] + one["reserved_usd"]),
                    usd_text(one["budget_usd"]),
                    (one["heard_at"] or "never")[:16].replace("T", " "),
                    one["ended"]
                    or (f"unknown; it was {one['state']}" if one["state"] else "unknown"),
                )
                for one in gone
            ),
        ]
    )


def _guard_lines(guard: Mapping[str, Any] | None) -> list[str]:
    if guard is None:
        return [
            f"!!! There is no stack {GUARD_STACK}: NOTHING ENDS DEPLOYMENTS BY ITSELF, whatever they cost.",
            "    `make deploy` makes it; what is deployed now has to be ended by hand:",
            "    python -m runtime stop EXPERIMENT",
        ]
    looked = (
        "never looked"
        if guard["last_tick_s"] is None
        else f"looked {ago_text(guard['last_tick_s'])}"
    )
    lines = [f"{looked}; its rule {guard['rule']} is {guard['rule_state'] or 'not there'}"]
    if not guard["stack_status"].endswith(("CREATE_COMPLETE", "UPDATE_COMPLETE")):
        lines.append(f"its stack is {guard['stack_status']}")
    if guard["problem"]:
        lines.append(f"!!! WHAT THE LEDGER HOLDS IS NOT KNOWN: {guard['problem']}")
    if guard["rule_state"] != "ENABLED":
        lines += [
            "!!! IT DOES NOT WATCH: nothing ends deployments by itself",
            f"  aws events enable-rule --name {guard['rule']}",
        ]
    elif guard["last_tick_s"] is None or guard["last_tick_s"] > GUARD_LATE_S:
        lines.append(
            "!!! IT DOES NOT WATCH: nothing ends deployments by itself; see the log of its function "
            f"{guard['function']}"
        )
    return [*lines, *_subscriber_lines(guard)]


def _subscriber_lines(guard: Mapping[str, Any]) -> list[str]:
    if guard["subscribers"] or not guard["topic"]:
        return [f"{guard['subscribers']} subscribed to its reports"]
    waiting = (
        f"{guard['unconfirmed']} subscription has yet to be confirmed: see that mailbox"
        if guard["unconfirmed"]
        else ""
    )
    command = f"aws sns subscribe --topic-arn {guard['topic']} --protocol email --notification-endpoint YOU@EXAMPLE.ORG"
    return [
        "nobody gets its reports" + (f"; {waiting}" if waiting else ":"),
        *([] if waiting else [f"  {command}"]),
    ]


def _total_lines(totals: Mapping[str, Any]) -> list[str]:
    at_least = "at least " if totals["is_at_least"] else ""
    spent = (
        f"{usd_text(totals['spent_usd'])} spent in all"
        if totals["is_ledger_there"]
        else "what was spent is not known without the guard's ledger"
    )
    burning = f"burning {at_least}{usd_text(totals['burn_usd_per_hour'])} an hour now"
    return laid_out(
        {
            "total": f"{spent}; {burning}. Modelled, list prices of {PRICES.region}, {PRICES.as_of}; "
            "AWS' bill is what counts"
        }
    )


def _heading(title: str, lines: list[str], nothing: str) -> list[str]:
    lines = lines or ([nothing] if nothing else [])
    return ["", title.upper(), *lines] if lines else []
