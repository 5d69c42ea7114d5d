"""Answers CloudFormation before it makes a stack's resources, and before it replaces the guard.

Both questions are custom resources, since a bare `cdk deploy` does not test the guard as `make deploy` does.
CloudFormation invokes the guard's function with a request and waits for the answer at an address in the request. An
experiment's other resources all depend on its question. Both are retained on deletion, so a broken guard cannot block a
deletion.
"""

from __future__ import annotations

import datetime
import json
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.request import Request, urlopen

from runtime.aws.clients import Client
from runtime.aws.failures import AWS_ERRORS
from runtime.aws.guard.needs import Needs
from runtime.aws.stacks import find_stack
from runtime.errors import RunError
from runtime.names import STACK_PREFIX, run_key
from runtime.times import HEARTBEAT_S, INTERVAL_S, STOP_GRACE_S

VERSION = 3
"""Version of the ledger, tags, names and parts that a guard understands. Raise it if an older guard would misread a
change, or a newer one not end a part: `make deploy` replaces an older guard only when it has nothing to end."""
CHECK_TYPE, VERSION_TYPE = "Custom::NitroGuardCheck", "Custom::NitroGuardVersion"
"""Resource types: an experiment's stack asks whether it is guarded; the guard's stack asks before its version changes.
"""
START_TYPE = "Custom::NitroStart"
"""Resource type: an experiment's stack without an instance asks to start its rounds, when all else is made."""
FRESH_S = 2.5 * INTERVAL_S
"""The guard is armed if its last tick is at most this old."""
ANSWER_S = 250
"""CloudFormation waits this long for the answer. A guard that does not answer does not guard."""
REPLACEMENT_S = STOP_GRACE_S + HEARTBEAT_S
"""A replaced run's learner hears of it with its next heartbeat, and then has its grace to keep results."""
LIFETIME_PROPERTY, ENDS_AT = "LifetimeS", "EndsAt"
"""A stack tells how many seconds it may live. The answer's attribute is when they are over: UTC, ISO 8601."""
SEEN_S = 30.0
"""CloudFormation may say some seconds after a creation began that the stack is only being reviewed."""
_REASON_CHARACTERS, _SEND_S = 1000, 20.0


class UnguardedError(Exception):
    """The stack must not be made; the text says why and what to do."""


def is_request(event: Mapping[str, Any]) -> bool:
    """Returns whether the event is a request from CloudFormation."""
    return "ResponseURL" in event


def answer(
    event: Mapping[str, Any],
    look: Callable[[str], Mapping[str, Mapping[str, Any]]],
    last_tick_s: Callable[[], float | None],
    *,
    client: Client,
    replace_run: Callable[..., None],
    now: Callable[[], float],
    wait_s: float,
    pause_s: float,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Answers a request from CloudFormation.

    Args:
        event: The request.
        look: Looks at all deployments and changes nothing but a note of the stack with this id. Returns `Guard.tick`'s
            reports by stack.
        last_tick_s: Returns the time of the last tick by EventBridge, in seconds since 1970; None if there was none.
        client: Makes boto3 clients by service name.
        replace_run: `Guard.replace_run`.
        now: Returns seconds since 1970.
        wait_s: Seconds to wait in all, mainly for the first tick of a new guard.
        pause_s: Seconds between two checks.
        sleep: Waits for a number of seconds.
    """
    reason, told = "", {}
    try:
        until_s = now() + wait_s
        if event["RequestType"] == "Delete":
            told = _ends_at(event["ResourceProperties"], now())
        elif (began_s := _taken_back_s(event, client)) is not None:
            told = _ends_at(event["ResourceProperties"], began_s)
        elif event["ResourceType"] == START_TYPE:
            _start_rounds(event, client)
        elif _is_to_be_armed(event):
            _check_needs(event, client)
            seen = _wait_until_seen(event["StackId"], look, now, pause_s, sleep)
            _wait_until_armed(last_tick_s, now, until_s, pause_s, sleep)
            began_s = float(seen["created_at_s"])
            if event["RequestType"] == "Update":
                old, new = _runs(event)
                replace_run(event["StackId"], old, new, until_s=now() + REPLACEMENT_S)
                # The lifetime of another run begins now.
                began_s = began_s if old == new else now()
            _check_lifetime(event["ResourceProperties"], began_s, now())
            told = _ends_at(event["ResourceProperties"], began_s)
    except (UnguardedError, RunError, *AWS_ERRORS) as error:
        reason = str(error)[:_REASON_CHARACTERS]
    body = {
        "Status": "FAILED" if reason else "SUCCESS",
        "Reason": reason or "the guard looks",
        "Data": told,
        "PhysicalResourceId": event.get("PhysicalResourceId", "guard"),
        **{name: event[name] for name in ("StackId", "RequestId", "LogicalResourceId")},
    }
    # The address is signed for a request without a content type.
    request = Request(
        event["ResponseURL"], json.dumps(body).encode(), {"Content-Type": ""}, method="PUT"
    )
    with urlopen(request, timeout=_SEND_S):
        pass


def _start_rounds(event: Mapping[str, Any], client: Client) -> None:
    """Starts the state machine of the stack that asks; a repeated request or an update of the same run starts none."""
    old, new = event.get("OldResourceProperties", {}), event["ResourceProperties"]
    if (old.get("Machine"), old.get("Run")) != (new["Machine"], new["Run"]):
        client("stepfunctions").start_execution(
            stateMachineArn=new["Machine"], name=event["RequestId"]
        )


def _taken_back_s(event: Mapping[str, Any], client: Client) -> float | None:
    """Returns when the stack was created if an update is rolled back, which nothing may hold up; else None."""
    if event["RequestType"] != "Update" or event["ResourceType"] == VERSION_TYPE:
        return None
    stack = find_stack(client("cloudformation"), event["StackId"])
    is_taken_back = stack is not None and "ROLLBACK" in stack["StackStatus"]
    return float(stack["CreationTime"].timestamp()) if stack is not None and is_taken_back else None


def _runs(event: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the keys of the run before an update and after it; equal if an older checkout did not tell."""
    experiment = event["StackId"].split("/")[1].removeprefix(STACK_PREFIX)
    new = event["ResourceProperties"].get("Run", "")
    return run_key(experiment, event["OldResourceProperties"].get("Run", new)), run_key(
        experiment, new
    )


def _is_to_be_armed(event: Mapping[str, Any]) -> bool:
    """Returns True for an experiment's stack that this guard understands, False for the guard's own stack.

    Raises:
        UnguardedError: The version is wrong.
    """
    wanted = int(event["ResourceProperties"]["Version"])
    if event["ResourceType"] == CHECK_TYPE:
        if wanted > VERSION:
            raise UnguardedError(
                f"the guard is too old: it has version {VERSION}, and this experiment needs {wanted}. "
                "Nothing was made; deploy NitroGuard from this checkout first"
            )
        return True
    deployed = int(event.get("OldResourceProperties", {}).get("Version", 0))
    if wanted < deployed:
        raise UnguardedError(replacement_refusal(wanted, deployed))
    return False


def _check_needs(event: Mapping[str, Any], client: Client) -> None:
    """Checks that the account can run the experiment.

    Raises:
        UnguardedError: It cannot.
        RunError: The account does not answer.
    """
    region = event["StackId"].split(":")[3]
    held = int(event.get("OldResourceProperties", {}).get("Held") or 0)
    if refusal := Needs.read(event["ResourceProperties"]).refusal(
        client, region, held_already=held
    ):
        raise UnguardedError(f"{refusal}. Nothing was made")


def _check_lifetime(properties: Mapping[str, Any], began_s: float, now_s: float) -> None:
    """Checks that a stack's lifetime is not over: AWS would refuse its schedules.

    Raises:
        UnguardedError: It is over.
    """
    lifetime_s = float(properties.get(LIFETIME_PROPERTY, "inf"))
    if began_s + lifetime_s <= now_s:
        raise UnguardedError(
            f"its lifetime of {lifetime_s / 3600:.1f} hours is over since its creation; end it first: "
            "python -m runtime stop; then deploy again, which continues its run"
        )


def _ends_at(properties: Mapping[str, Any], began_s: float) -> dict[str, str]:
    """Returns when the lifetime is over of a stack that began to cost money at ``began_s``."""
    if LIFETIME_PROPERTY not in properties:
        return {}
    ends = datetime.datetime.fromtimestamp(
        began_s + float(properties[LIFETIME_PROPERTY]), datetime.UTC
    )
    return {ENDS_AT: ends.strftime("%Y-%m-%dT%H:%M:%SZ")}


def _wait_until_seen(
    stack: str,
    look: Callable[[str], Mapping[str, Mapping[str, Any]]],
    now: Callable[[], float],
    pause_s: float,
    sleep: Callable[[float], None],
) -> Mapping[str, Any]:
    """Waits until the guard sees the stack that asks; returns its report. Trouble with other stacks does not matter.

    Raises:
        UnguardedError: It does not see it, or there is something wrong with it.
    """
    name, until_s = stack.split("/")[1], now() + SEEN_S
    while name not in (seen := look(stack)) and now() < until_s:
        sleep(pause_s)
    if name not in seen:
        raise UnguardedError(
            f"the guard does not see {name}, so nothing would end it, and nothing was made: the stack "
            "lacks the tags by which it finds a deployment. `cdk deploy --tags`, or tags in cdk.json "
            "beside its context, replace them; use the context key tags instead"
        )
    if "error" in seen[name]:
        raise UnguardedError(f"{name}: {seen[name]['error']}")
    return seen[name]


def _wait_until_armed(
    last_tick_s: Callable[[], float | None],
    now: Callable[[], float],
    until_s: float,
    pause_s: float,
    sleep: Callable[[float], None],
) -> None:
    while (at_s := last_tick_s()) is None or now() - at_s > FRESH_S:
        if now() >= until_s:
            last = (
                "has never looked"
                if at_s is None
                else f"looked last {(now() - at_s) / 60:.0f} minutes ago"
            )
            raise UnguardedError(
                f"the guard is not armed: it {last}, and its rule lets it look each minute. Nothing "
                "was made; `aws events enable-rule` for the RuleName of the stack NitroGuard, or see "
                "its log"
            )
        sleep(pause_s)


def replacement_refusal(wanted: int, deployed: int) -> str:
    """Returns the message that refuses to replace the guard with an older one."""
    return (
        f"the stack NitroGuard has version {deployed}, and this checkout has version {wanted}: an older checkout "
        "does not replace the guard that newer experiments rely on. Use a newer checkout"
    )
