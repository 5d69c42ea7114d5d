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
from runtime.names import STACK_PREFIX
from runtime.times import INTERVAL_S

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
LIFETIME_PROPERTY, ENDS_AT = "LifetimeS", "EndsAt"
"""A stack tells how many seconds it may live. The answer's attribute is when they are over: UTC, ISO 8601."""
_REASON_CHARACTERS, _SEND_S = 1000, 20.0
_NOT_ARMED = (
    "the guard is not armed: it has not looked for minutes, and its rule lets it look each minute. Nothing was made; "
    "`aws events enable-rule` for the RuleName of the stack NitroGuard, or see its log"
)
_NOT_SEEN = (
    "the guard does not see {}, so nothing would end it, and nothing was made: the stack lacks the tags by which it "
    "finds a deployment. `cdk deploy --tags`, or tags in cdk.json beside its context, replace them; use the context "
    "key tags instead"
)


class UnguardedError(Exception):
    """The stack must not be made; the text says why and what to do."""


def is_request(event: Mapping[str, Any]) -> bool:
    """Returns whether the event is a request from CloudFormation."""
    return "ResponseURL" in event


class Check:
    """The guard's answers to CloudFormation."""

    def __init__(
        self,
        client: Client,
        look: Callable[[str], Mapping[str, Mapping[str, Any]]],
        last_tick_s: Callable[[], float | None],
        *,
        now: Callable[[], float],
        wait_s: float,
        pause_s: float,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Prepares the answers.

        Args:
            client: Makes boto3 clients by service name.
            look: Looks at all deployments and changes nothing but a note of the stack with this id. Returns
                `Guard.tick`'s reports by stack.
            last_tick_s: Returns when EventBridge last made the guard look, in seconds since 1970; None if never.
            now: Returns seconds since 1970.
            wait_s: Seconds to wait in all, mainly for the first tick of a new guard.
            pause_s: Seconds between two checks.
            sleep: Waits for a number of seconds.
        """
        self._client = client
        self._look = look
        self._last_tick_s = last_tick_s
        self._now = now
        self._wait_s = wait_s
        self._pause_s = pause_s
        self._sleep = sleep

    def answer(self, event: Mapping[str, Any]) -> None:
        """Answers a request from CloudFormation."""
        reason, attributes = "", {}
        try:
            attributes = self._attributes(event)
        except (UnguardedError, RunError, *AWS_ERRORS) as error:
            reason = str(error)[:_REASON_CHARACTERS]
        body = {
            "Status": "FAILED" if reason else "SUCCESS",
            "Reason": reason or "the guard looks",
            "Data": attributes,
            "PhysicalResourceId": event.get("PhysicalResourceId", "guard"),
            **{name: event[name] for name in ("StackId", "RequestId", "LogicalResourceId")},
        }
        # The address is signed for a request without a content type.
        request = Request(
            event["ResponseURL"], json.dumps(body).encode(), {"Content-Type": ""}, method="PUT"
        )
        with urlopen(request, timeout=_SEND_S):
            pass

    def _attributes(self, event: Mapping[str, Any]) -> dict[str, str]:
        """Does what is asked; returns the custom resource's attributes.

        Raises:
            UnguardedError: The stack must not be made or changed.
            RunError, ClientError or BotoCoreError: AWS does not answer.
        """
        kind, request = event["ResourceType"], event["RequestType"]
        if request == "Delete":
            return {}
        if kind == VERSION_TYPE:
            wanted = int(event["ResourceProperties"]["Version"])
            deployed = int(event.get("OldResourceProperties", {}).get("Version", 0))
            if wanted < deployed:
                raise UnguardedError(replacement_refusal(wanted, deployed))
            return {}
        if request == "Update":
            return self._refuse_unless_taken_back(event)
        if kind == START_TYPE:
            # The name makes a repeated request start nothing.
            self._client("stepfunctions").start_execution(
                stateMachineArn=event["ResourceProperties"]["Machine"], name=event["RequestId"]
            )
            return {}
        return self._arm(event)

    def _refuse_unless_taken_back(self, event: Mapping[str, Any]) -> dict[str, str]:
        """Lets an update be rolled back, which nothing may hold up.

        Raises:
            UnguardedError: It is an update.
        """
        stack = find_stack(self._client("cloudformation"), event["StackId"])
        if stack is not None and "ROLLBACK" in stack["StackStatus"]:
            return _ends_at(event["ResourceProperties"], stack["CreationTime"].timestamp())
        experiment = event["StackId"].split("/")[1].removeprefix(STACK_PREFIX)
        raise UnguardedError(
            f"{experiment} is deployed, and an update would not reach its run. End it first: "
            f"python -m runtime stop {experiment}; then deploy again, which continues the run"
        )

    def _arm(self, event: Mapping[str, Any]) -> dict[str, str]:
        """Checks version and account, and waits until the guard sees the stack and has looked recently."""
        properties, name = event["ResourceProperties"], event["StackId"].split("/")[1]
        wanted, until_s = int(properties["Version"]), self._now() + self._wait_s
        if wanted > VERSION:
            raise UnguardedError(
                f"the guard is too old: it has version {VERSION}, and this experiment needs {wanted}. "
                "Nothing was made; deploy NitroGuard from this checkout first"
            )
        region = event["StackId"].split(":")[3]
        if refusal := Needs.read(properties).refusal(self._client, region):
            raise UnguardedError(f"{refusal}. Nothing was made")
        while True:
            # CloudFormation may say some seconds after a creation began that the stack is only being reviewed.
            seen, at_s = self._look(event["StackId"]).get(name), self._last_tick_s()
            # Trouble with other stacks does not matter.
            if seen is not None and "error" in seen:
                raise UnguardedError(f"{name}: {seen['error']}")
            is_armed = at_s is not None and self._now() - at_s <= FRESH_S
            if seen is not None and is_armed:
                return _ends_at(properties, float(seen["created_at_s"]))
            if self._now() >= until_s:
                raise UnguardedError(_NOT_SEEN.format(name) if seen is None else _NOT_ARMED)
            self._sleep(self._pause_s)


def _ends_at(properties: Mapping[str, Any], began_s: float) -> dict[str, str]:
    """Returns when the lifetime is over of a stack that began to cost money at ``began_s``."""
    if LIFETIME_PROPERTY not in properties:
        return {}
    ends_s = began_s + float(properties[LIFETIME_PROPERTY])
    ends = datetime.datetime.fromtimestamp(ends_s, datetime.UTC)
    return {ENDS_AT: ends.strftime("%Y-%m-%dT%H:%M:%SZ")}


def replacement_refusal(wanted: int, deployed: int) -> str:
    """Returns the message that refuses to replace the guard with an older one."""
    return (
        f"the stack NitroGuard has version {deployed}, and this checkout has version {wanted}: an older checkout "
        "does not replace the guard that newer experiments rely on. Use a newer checkout"
    )
