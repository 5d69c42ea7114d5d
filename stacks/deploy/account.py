"""Checks of the account before anything is made there, which the guard cannot make, or not as early."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from runtime.aws.asking import AccountError, ask, ask_if_there, pages_of
from runtime.aws.clients import QUICK, Client, Session, clients
from runtime.aws.guard.check import VERSION, replacement_refusal
from runtime.aws.guard.needs import unreserved_concurrency
from runtime.aws.stacks import WITHOUT_RESOURCES, find_stack, outputs_of, stack_names
from runtime.names import (
    GUARD_STACK,
    MAIL_STACK,
    RESERVED_OUTPUT,
    STACK_PREFIX,
    VERSION_OUTPUT,
)
from stacks.deploy.cdk import context_value
from stacks.plan import Plan

_NOT_DEPLOYED = (*WITHOUT_RESOURCES, "ROLLBACK_COMPLETE")
"""Statuses of a stack that a deployment creates again."""
_BOOTSTRAP_VERSION = 6
"""The lowest that the templates accept: aws-cdk-lib, ``BOOTSTRAP_MIN_VERSION``."""
_FREE_TIER_REGION = "us-east-1"
"""The only region of the Free Tier API."""


def check_version(client: Client) -> None:
    """Checks that this checkout would not replace a newer guard, or an older one that still has deployments to end.

    Raises:
        AccountError: It would.
    """
    deployed = int(_guard(client).get(VERSION_OUTPUT, VERSION))
    if deployed > VERSION:
        raise AccountError(f"{replacement_refusal(VERSION, deployed)}. Nothing was deployed")
    if deployed < VERSION:
        # It may know parts that a newer one would leave.
        names = ask(lambda: stack_names(client("cloudformation"), STACK_PREFIX))
        if names:
            raise AccountError(
                f"{', '.join(names)}: may have parts that this checkout's guard does not know. {GUARD_STACK} has "
                f"version {deployed}, and this checkout has {VERSION}. Nothing was deployed; allowed: after they have "
                "ended, as with python -m runtime stop"
            )


def has_mail(client: Client) -> bool:
    """Returns whether somebody gets the guard's reports and alarms, as far as `--mail` was used."""
    return ask(lambda: find_stack(client("cloudformation"), MAIL_STACK)) is not None


def check_bootstrap(client: Client) -> None:
    """Checks that the account and region have the CDK's bootstrap.

    Raises:
        AccountError: There is none, or it is too old.
    """
    qualifier = context_value([], "@aws-cdk/core:bootstrapQualifier") or "hnb659fds"
    name = f"/cdk-bootstrap/{qualifier}/version"
    found = ask_if_there(lambda: client("ssm").get_parameter(Name=name))
    number = int(found["Parameter"]["Value"]) if found else 0
    if number < _BOOTSTRAP_VERSION:
        raise AccountError(
            f"{name} is {number or 'not there'}; allowed: from {_BOOTSTRAP_VERSION}. "
            "Nothing was deployed; `make bootstrap` once per account and region"
        )


def free_concurrency(client: Client) -> int:
    """Returns how many executions no function but the guard has reserved."""
    return unreserved_concurrency(client) + int(_guard(client).get(RESERVED_OUTPUT, 0))


def _guard(client: Client) -> dict[str, str]:
    """Returns the outputs of the guard's stack; empty if there is none."""
    stack = ask(lambda: find_stack(client("cloudformation"), GUARD_STACK))
    return outputs_of(stack) if stack else {}


def check_account(plan: Plan, session: Session, disk_key: object) -> None:
    """Checks that the stack is not there, that the account is large enough, and that AWS' Free plan allows its types.

    The guard checks the size again. But that is after the images are built.

    Raises:
        AccountError: The account cannot run the experiment.
        ExperimentError: The quota of an instance type is unknown.
    """
    client = clients(session)
    stack = ask(lambda: find_stack(client("cloudformation"), plan.stack_name))
    if stack is not None and stack["StackStatus"] not in _NOT_DEPLOYED:
        raise AccountError(
            f"{plan.stack_name} is deployed already ({stack['StackStatus']}). Nothing was deployed; `python -m runtime "
            f"stop {plan.name}` ends it and waits until it is gone: its results stay, and the run continues from them"
        )
    needs = dataclasses.replace(plan.needs, disk_key=str(disk_key or ""))
    refusal = needs.refusal(client, str(session.region_name))
    if plan.has_instance and not refusal:
        refusal = _free_plan_refusal(session, plan.experiment.learner.instance_types)
    if refusal:
        raise AccountError(f"{refusal}. Nothing was deployed")


def _free_plan_refusal(session: Session, names: Sequence[str]) -> str:
    """Returns why an account on AWS' Free plan cannot start these instance types; empty if it can.

    Raises:
        AccountError: EC2 does not answer.
    """
    client = session.client("freetier", region_name=_FREE_TIER_REGION, config=QUICK)
    try:
        found = ask_if_there(client.get_account_plan_state)
    except AccountError:
        # A deployer may lack this right. Then EC2 decides.
        return ""
    # Accounts from before July 2025 have no plan.
    if found is None or found["accountPlanType"] != "FREE":
        return ""
    filters = [{"Name": "free-tier-eligible", "Values": ["true"]}]
    pages = pages_of(
        session.client("ec2"), "describe_instance_types", "InstanceTypes", Filters=filters
    )
    eligible = sorted(one["InstanceType"] for one in pages)
    refused = [name for name in names if name not in eligible]
    if not refused:
        return ""
    return (
        f"learner.instance_types: this account's Free plan does not start {', '.join(refused)}; allowed: "
        f"{', '.join(eligible)}, or others on the Paid plan"
    )
