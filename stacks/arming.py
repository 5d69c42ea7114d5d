"""Whether the guard works, asked after it was deployed and before what it is to guard."""

from __future__ import annotations

import json
from typing import Any

from runtime.aws.asking import AccountError, ask
from runtime.aws.clients import Client
from runtime.aws.failures import ClientError, code_of
from runtime.aws.stacks import find_stack, outputs_of
from runtime.guard.check import VERSION, replacement_refusal
from runtime.guard.times import INTERVAL_S
from runtime.names import GUARD_STACK, VERSION_OUTPUT


def check_version(client: Client) -> None:
    """Checks that this checkout would not replace the guard by an older one.

    Raises:
        AccountError: It would.
    """
    stack = ask(lambda: find_stack(client("cloudformation"), GUARD_STACK))
    deployed = int(outputs_of(stack).get(VERSION_OUTPUT, 0)) if stack else 0
    if deployed > VERSION:
        raise AccountError(f"{replacement_refusal(VERSION, deployed)}. Nothing was deployed")


def check_guard(client: Client) -> dict[str, str]:
    """Lets the guard look once without doing anything.

    Returns:
        What people should know of it, labelled.

    Raises:
        AccountError: It would not guard.
    """
    stack = ask(lambda: find_stack(client("cloudformation"), GUARD_STACK))
    if stack is None:
        raise AccountError(f"the stack {GUARD_STACK} is not there: nothing would end a deployment")
    outputs = outputs_of(stack)
    if not {"RuleName", "GuardFunction", "ReportsTopic"} <= outputs.keys():
        raise AccountError(f"the stack {GUARD_STACK} is {stack['StackStatus']}, and tells nothing of its rule: nothing "
                           "would end a deployment")
    _check_rule(client, outputs)
    seen = _look(client, outputs["GuardFunction"])
    others = f"{len(seen)} other deployment{'s' * (len(seen) != 1)}" if seen else "no other deployment"
    return {"guard": f"armed: {outputs['GuardFunction']} looks every {INTERVAL_S:.0f} s; it sees {others}",
            "reports": _reports(client, outputs["ReportsTopic"])}


def _check_rule(client: Client, outputs: dict[str, str]) -> None:
    name = outputs["RuleName"]
    rule = ask(lambda: client("events").describe_rule(Name=name))
    found = ask(lambda: client("events").list_targets_by_rule(Rule=name))["Targets"]
    if rule["State"] != "ENABLED" or not any(
            target["Arn"].endswith(f":{outputs['GuardFunction']}") for target in found):
        raise AccountError(f"the guard is not armed: its rule {name} is {rule['State']} and starts "
                           f"{', '.join(target['Arn'] for target in found) or 'nothing'}; nothing was deployed. "
                           f"`aws events enable-rule --name {name}`, or delete and deploy {GUARD_STACK}")


def _look(client: Client, function: str) -> list[dict[str, Any]]:
    """What the guard sees."""
    answer = ask(lambda: client("lambda").invoke(FunctionName=function, Payload=b'{"rehearse": true}'))
    text = answer["Payload"].read().decode(errors="replace")
    try:
        if "FunctionError" in answer:
            raise ValueError(answer["FunctionError"])
        seen: list[dict[str, Any]] = json.loads(text)["experiments"]
        return seen
    except (ValueError, KeyError, TypeError):
        raise AccountError(f"the guard does not work, so nothing was deployed: {text[:500]}") from None


def _reports(client: Client, topic: str) -> str:
    try:
        subscribed = client("sns").list_subscriptions_by_topic(TopicArn=topic)["Subscriptions"]
    except ClientError as error:
        return f"go to {topic}; who reads them cannot be told: {code_of(error)}"
    if subscribed:
        return f"go to {', '.join(one['Endpoint'] for one in subscribed)}"
    return "go to nobody yet: --mail YOU@EXAMPLE.ORG lets you hear of them"
