"""Checks an AWS account's limits before anything in it costs money."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from runtime.aws.asking import AccountError, ask, ask_if_there, pages_of
from runtime.aws.clients import QUICK, Session, identify
from runtime.aws.stacks import find_stack, outputs_of
from runtime.config.instances import is_burstable, machine_image, processor
from runtime.config.resolved import ResolvedExperiment
from runtime.guard.limits import disk_key_refusal, unreserved_concurrency, vcpu_refusal, vcpus
from runtime.names import BOOTSTRAP_QUALIFIER, GUARD_STACK, RESERVED_OUTPUT

_NOT_DEPLOYED = {"ROLLBACK_COMPLETE", "REVIEW_IN_PROGRESS", "DELETE_COMPLETE"}
"""Statuses of a stack without resources, which a deployment creates again."""
_FREE_TIER_REGION = "us-east-1"
"""The only region of the Free Tier API."""


@dataclass(frozen=True)
class Account:
    """Limits of the current credentials' account in one region.

    Attributes:
        account_id: Number of the account.
        region: The region.
        actor_concurrency: Concurrent executions that no function but the guard has reserved.
        vcpus: By instance type, its own vCPUs and its family's quota; empty if the learner is not an instance.
        plan: Remark for people that the account is on AWS' Free plan, or that AWS could not be asked. Otherwise empty.
    """

    account_id: str
    region: str
    actor_concurrency: int
    vcpus: Mapping[str, tuple[int, float]]
    plan: str = ""

    @property
    def usable_types(self) -> list[str]:
        """Instance types that fit their quota."""
        return [name for name, (needed, allowed) in self.vcpus.items() if needed <= allowed]


def read_account(
    session: Session,
    experiment: ResolvedExperiment,
    *,
    stack: str,
    qualifier: str,
    has_disk_key: bool = False,
) -> Account:
    """Reads the account's limits, and checks that the experiment's image and the CDK's own resources exist.

    Args:
        session: Session of the account and region.
        experiment: Resolved.
        stack: Name of the experiment's stack, which must not exist yet.
        qualifier: Qualifier in the names of the CDK's own resources.
        has_disk_key: Whether somebody has chosen the key for the learner's disk.

    Raises:
        AccountError: There are no usable credentials, the stack exists, something is missing, the account's plan does
            not start an instance type, its key may not be used for disks, or none of the types fits its quota; the text
            says what to do.
    """
    account_id = identify(session)
    _check_not_deployed(session, stack)
    _check_parameter(
        session,
        f"/cdk-bootstrap/{qualifier}/version",
        f"the CDK is not set up in account {account_id}, "
        f"region {session.region_name}"
        + (f", with the qualifier {qualifier}" if (qualifier != BOOTSTRAP_QUALIFIER) else "")
        + "; run once: make bootstrap",
    )
    learner = experiment.learner
    is_free, plan = _free_plan(session)
    if not learner.has_instance:
        return Account(account_id, str(session.region_name), _concurrency(session), {}, plan)
    name = machine_image(learner.instance_types)
    image = _check_parameter(
        session, name, f"there is no machine image {name} in {session.region_name}"
    )
    if is_free:
        _check_free(session, learner.instance_types, image)
    if not has_disk_key and (refusal := disk_key_refusal(session.client)):
        raise AccountError(f"{refusal}. Nothing was deployed")
    account = Account(
        account_id,
        str(session.region_name),
        _concurrency(session),
        vcpus(session.client, learner.instance_types, learner.market),
        plan,
    )
    if refusal := vcpu_refusal(
        account.vcpus, learner.market, f"account {account_id}, region {session.region_name}"
    ):
        raise AccountError(refusal)
    return account


def _check_not_deployed(session: Session, stack: str) -> None:
    """Checks that there is no such stack yet.

    Raises:
        AccountError: The stack exists. An update would not replace the learner, and a failed start would not be undone.
    """
    found = ask(lambda: find_stack(session.client("cloudformation"), stack))
    if found and found["StackStatus"] == "DELETE_IN_PROGRESS":
        raise AccountError(
            f"{stack} is being deleted, which takes about ten minutes; `python -m runtime stop` watches "
            "it and says when it is gone. Nothing else has to be waited for"
        )
    if found and found["StackStatus"] not in _NOT_DEPLOYED:
        raise AccountError(
            f"{stack} is deployed already ({found['StackStatus']}); `python -m runtime stop` first: its "
            "results stay, and the run continues from them"
        )


def _free_plan(session: Session) -> tuple[bool, str]:
    """Returns whether the account is on AWS' Free plan, if known, and a remark for people, empty if not."""
    client = session.client("freetier", region_name=_FREE_TIER_REGION, config=QUICK)
    try:
        found = ask_if_there(client.get_account_plan_state)
    except AccountError as error:
        return False, (
            f"whether it is on AWS' Free plan, which starts few instance types, could not be asked: {error}"
        )
    # Accounts from before July 2025 have no plan.
    if found is None or found["accountPlanType"] != "FREE":
        return False, ""
    credits, end = found.get("accountPlanRemainingCredits"), found.get("accountPlanExpirationDate")
    return True, (
        "AWS' Free plan"
        + (f", ${credits['amount']:.2f} of credits left" if credits else "")
        + (f", until {end:%Y-%m-%d}" if end else "")
        + ". Which services it includes, AWS' API does not tell; cache.kind = none needs the fewest"
    )


def _check_free(session: Session, names: tuple[str, ...], image: str) -> None:
    """Checks that an account on the Free plan may start these types with this image.

    Raises:
        AccountError: It may not; the text names a type that it may start.
    """
    client = session.client("ec2")
    eligible = sorted(
        one["InstanceType"]
        for one in pages_of(
            client,
            "describe_instance_types",
            "InstanceTypes",
            Filters=[{"Name": "free-tier-eligible", "Values": ["true"]}],
        )
    )
    refused = [name for name in names if name not in eligible]
    fitting = [name for name in eligible if processor(name) == processor(names[0])]
    others = "or the Paid plan (Billing and Cost Management, Upgrade plan)"
    if refused:
        # Burstable types are slow once their credits are used up.
        best = min(fitting or eligible, key=is_burstable, default=None)
        raise AccountError(
            f"learner.instance_types: this account's Free plan does not start {', '.join(refused)}, but in "
            f"{session.region_name} only {', '.join(eligible) or 'no type'}. Nothing was deployed; allowed: "
            + (f"learner.instance_types: [{best}], " if best else "")
            + others
        )
    found = ask_if_there(lambda: client.describe_images(ImageIds=[image]))
    if found and any(one.get("FreeTierEligible") is False for one in found["Images"]):
        raise AccountError(
            f"the machine image is {image}, which this account's Free plan does not "
            f"start. Nothing was deployed; allowed: learner.kind: function, which has no instance, {others}"
        )


def _concurrency(session: Session) -> int:
    """Returns how many executions no function has reserved, but for the guard's."""
    guard = ask(lambda: find_stack(session.client("cloudformation"), GUARD_STACK))
    return unreserved_concurrency(session.client) + int(
        outputs_of(guard or {}).get(RESERVED_OUTPUT, 0)
    )


def _check_parameter(session: Session, name: str, problem: str) -> str:
    """Returns the value of an SSM parameter.

    Raises:
        AccountError: There is none of that name.
    """
    found = ask_if_there(lambda: session.client("ssm").get_parameter(Name=name))
    if found is None:
        raise AccountError(problem)
    return str(found["Parameter"]["Value"])
