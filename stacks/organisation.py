"""What an organisation asks of every stack: its tags, a network and a key of its own. See docs/guides/deploy.md.

A permissions boundary and a bootstrap qualifier are the CDK's own context keys. The CDK silently ignores a boundary in
a form that it does not know, so it is checked here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import aws_cdk as cdk

from runtime.errors import ExperimentError
from stacks.plan import Plan

_TAG = re.compile(r"(?!aws:|nitro:)[\w.:/+@ -]{1,128}=[\w.:/+@ -]{0,256}", re.ASCII | re.IGNORECASE)
_BOUNDARY = "@aws-cdk/core:permissionsBoundary"
_DISK_KEY = re.compile(
    r"alias/[\w/-]+|[\w-]+|arn:[\w-]+:kms:[\w-]+:\d{12}:(key|alias)/[\w/-]+", re.ASCII
)
_VPC, _SUBNET = re.compile(r"vpc-[0-9a-f]{8,17}"), re.compile(r"subnet-[0-9a-f]{8,17}")


@dataclass(frozen=True)
class OwnNetwork:
    """An existing network, in which the learner has no public address.

    Attributes:
        vpc: Its id.
        subnets: Ids of subnets with a route to AWS' services.
    """

    vpc: str
    subnets: tuple[str, ...]

    @classmethod
    def from_context(cls, context: Callable[[str], Any], plan: Plan) -> OwnNetwork | None:
        """Returns the network that the context keys ``vpc`` and ``subnets`` name; None if neither is set.

        Raises:
            ExperimentError: They are invalid, or the experiment needs more from a network.
        """
        vpc, subnets = context("vpc"), context("subnets")
        if vpc is None and subnets is None:
            return None
        if not _VPC.fullmatch(str(vpc)):
            raise ExperimentError(
                f"vpc = {vpc!r} is not allowed; allowed: the id of the VPC of subnets, such as "
                "vpc-0123456789abcdef0"
            )
        names = tuple(str(subnets).split(","))
        if not all(map(_SUBNET.fullmatch, names)) or len(set(names)) < len(names):
            raise ExperimentError(
                f"subnets = {subnets!r} is not allowed; allowed: ids of subnets of {vpc}, each once, "
                "such as subnet-0123456789abcdef0,subnet-0fedcba9876543210"
            )
        if plan.has_function and plan.experiment.cache.kind != "none":
            raise ExperimentError(
                f"cache.kind = {plan.experiment.cache.kind} with vpc = {vpc}: actors that reach a "
                "cache must reach nothing else, which only the network made here ensures; allowed: none"
            )
        return cls(str(vpc), names)


def disk_key(value: object) -> str | None:
    """Returns the KMS key for the learner's disk that the context key ``ebs_key`` names; None is the account's default.

    Raises:
        ExperimentError: It does not name a key.
    """
    if value is not None and not _DISK_KEY.fullmatch(str(value)):
        raise ExperimentError(
            f"ebs_key = {value!r} is not allowed; allowed: a KMS key's id, alias or ARN, such as "
            "alias/aws/ebs"
        )
    return None if value is None else str(value)


def add_tags(app: cdk.App, value: object) -> None:
    """Adds an organization's tags to all stacks and their resources.

    Args:
        value: The value of the context key ``tags``: ``KEY=VALUE,KEY=VALUE``; None if there are none.

    Raises:
        ExperimentError: The value is invalid, or would replace the tags by which the guard finds an experiment.
    """
    words = [] if value is None else str(value).split(",")
    if wrong := [word for word in words if not _TAG.fullmatch(word)]:
        raise ExperimentError(
            f"tags = {value!r} is not allowed: {wrong[0]!r}; allowed: KEY=VALUE,KEY=VALUE, with keys "
            "that do not begin with aws: or nitro:"
        )
    for word in words:
        key, _, text = word.partition("=")
        cdk.Tags.of(app).add(key, text)


def check_boundary(context: Callable[[str], Any]) -> None:
    """Checks the permissions boundary. In any other form, the CDK silently makes all roles without it.

    Raises:
        ExperimentError: The CDK would ignore it.
    """
    value = context(_BOUNDARY)
    is_known = (
        isinstance(value, dict) and list(value) in (["name"], ["arn"]) and all(value.values())
    )
    if value is not None and not is_known:
        raise ExperimentError(
            f"{_BOUNDARY} = {value!r} is not allowed; allowed, in cdk.json and not with -c: "
            '{"name": "POLICY"} or {"arn": "arn:aws:iam::ACCOUNT:policy/POLICY"}'
        )
