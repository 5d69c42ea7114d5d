"""Checks that the guard works, after its own deployment and before the experiment's."""

from __future__ import annotations

import json
from typing import Any

from runtime.aws.asking import AccountError, ask
from runtime.aws.clients import Client
from runtime.aws.failures import ClientError, code_of
from runtime.aws.guard.check import VERSION, replacement_refusal
from runtime.aws.stacks import find_stack, outputs_of
from runtime.names import GUARD_STACK, VERSION_OUTPUT
from runtime.times import INTERVAL_S

_PENDING = "PendingConfirmation"


def check_version(client: Client) -> None:
    """Checks that this checkout would not replace a newer guard, or an older one that still has deployments to end.

    Raises:
        AccountError: It would.
    """
    stack = ask(lambda: find_stack(client("cloudformation"), GUARD_STACK))
    outputs = outputs_of(stack or {})
    deployed = int(outputs.get(VERSION_OUTPUT, 0))
    if deployed > VERSION:
        raise AccountError(f"{replacement_refusal(VERSION, deployed)}. Nothing was deployed")
    if deployed < VERSION and "GuardFunction" in outputs:
        seen = sorted(str(one["stack"]) for one in _look(client, outputs["GuardFunction"]))
        if seen:
            raise AccountError(
                f"{', '.join(seen)} may have parts that this checkout's guard does not know: the stack {GUARD_STACK} "
                f"has version {deployed}, and this checkout has version {VERSION}. Nothing was deployed; allowed: "
                "after they have ended, as with python -m runtime stop"
            )


def check_guard(client: Client, own: str) -> dict[str, str]:
    """Makes the guard run one check without acting on it.

    Args:
        client: Makes the client of a service.
        own: Name of the stack that is to be deployed.

    Returns:
        Labeled facts about the guard, for display.

    Raises:
        AccountError: The guard would not work, or has trouble with that stack.
    """
    stack = ask(lambda: find_stack(client("cloudformation"), GUARD_STACK))
    if stack is None:
        raise AccountError(f"the stack {GUARD_STACK} is not there: nothing would end a deployment")
    outputs = outputs_of(stack)
    if not {"RuleName", "GuardFunction", "ReportsTopic"} <= outputs.keys():
        raise AccountError(
            f"the stack {GUARD_STACK} is {stack['StackStatus']} and does not name its rule: nothing "
            "would end a deployment"
        )
    _check_rule(client, outputs)
    seen = _look(client, outputs["GuardFunction"])
    failed = {str(one["stack"]): one["error"] for one in seen if "error" in one}
    if own in failed:
        raise AccountError(
            f"the guard has trouble with an earlier {own}, so nothing was deployed: {failed[own]}"
        )
    others = (
        f"{len(seen)} other deployment{'s' * (len(seen) != 1)}" if seen else "no other deployment"
    )
    if failed:
        others += f", and has trouble with {', '.join(sorted(failed))}"
    return {
        "guard": f"armed: {outputs['GuardFunction']} looks every {INTERVAL_S:.0f} s; it sees {others}",
        "reports": _reports(client, outputs["ReportsTopic"]),
    }


def _check_rule(client: Client, outputs: dict[str, str]) -> None:
    name = outputs["RuleName"]
    rule = ask(lambda: client("events").describe_rule(Name=name))
    found = ask(lambda: client("events").list_targets_by_rule(Rule=name))["Targets"]
    if rule["State"] != "ENABLED" or not any(
        target["Arn"].endswith(f":{outputs['GuardFunction']}") for target in found
    ):
        raise AccountError(
            f"the guard is not armed: its rule {name} is {rule['State']} and starts "
            f"{', '.join(target['Arn'] for target in found) or 'nothing'}; nothing was deployed. "
            f"`aws events enable-rule --name {name}`, or delete and deploy {GUARD_STACK}"
        )


def _look(client: Client, function: str) -> list[dict[str, Any]]:
    """Returns what the guard sees."""
    answer = ask(
        lambda: client("lambda").invoke(FunctionName=function, Payload=b'{"rehearse": true}')
    )
    text = answer["Payload"].read().decode(errors="replace")
    try:
        if "FunctionError" in answer:
            raise ValueError(answer["FunctionError"])
        seen: list[dict[str, Any]] = json.loads(text)["experiments"]
        return seen
    except (ValueError, KeyError, TypeError):
        raise AccountError(
            f"the guard does not work, so nothing was deployed: {text[:500]}"
        ) from None


def check_mail(client: Client) -> None:
    """Checks that somebody gets the guard's reports and alarms. Whoever has yet to confirm counts, too.

    Raises:
        AccountError: Nobody does.
    """
    stack = ask(lambda: find_stack(client("cloudformation"), GUARD_STACK))
    topic = outputs_of(stack).get("ReportsTopic") if stack else None
    if topic is None or not ask(lambda: _subscriptions(client, topic)):
        raise AccountError(
            "nobody gets mail from the guard, such as that it does not watch. Nothing was deployed; "
            "allowed: --mail YOU@EXAMPLE.ORG, or --no-mail if nobody should get any"
        )


def _reports(client: Client, topic: str) -> str:
    try:
        subscribed = _subscriptions(client, topic)
    except ClientError as error:
        return f"go to {topic}; its subscribers could not be listed: {code_of(error)}"
    if not subscribed:
        return "have no subscriber: --mail YOU@EXAMPLE.ORG subscribes you"
    return "go to " + ", ".join(
        one["Endpoint"]
        + (" when AWS' mail to it is confirmed" if one["SubscriptionArn"] == _PENDING else "")
        for one in subscribed
    )


def _subscriptions(client: Client, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client("sns").list_subscriptions_by_topic(TopicArn=topic)[
        "Subscriptions"
    ]
    return found
