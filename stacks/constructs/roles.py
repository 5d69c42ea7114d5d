"""IAM roles whose rights are a part of them, and log groups with an end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aws_cdk import Acknowledgment, Aws, RemovalPolicy, Validations
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from constructs import Construct, IConstruct

_WILDCARDS = (
    "AWS knows no narrower resource of these actions, or draws its name later, or it is one run's prefix. Tests "
    "compare each right with the requests that need it: docs/design/permissions.md"
)


def arn_of(service: str, resource: str) -> str:
    """Returns the ARN of a resource in the account and region that the stack is deployed to."""
    return f"arn:{Aws.PARTITION}:{service}:{Aws.REGION}:{Aws.ACCOUNT_ID}:{resource}"


def allow(
    sid: str,
    actions: Sequence[str],
    resources: Sequence[str] = ("*",),
    conditions: Mapping[str, Mapping[str, object]] | None = None,
) -> iam.PolicyStatement:
    """Returns a statement that allows actions of one service on resources.

    Args:
        sid: Its name in the policy.
        actions: ``SERVICE:ACTION`` each.
        resources: ARNs; ``*`` only for actions that know no resources.
        conditions: Values of condition keys by operator.
    """
    return iam.PolicyStatement(
        sid=sid, actions=list(actions), resources=list(resources), conditions=conditions
    )


def make_role(
    scope: Construct,
    construct_id: str,
    description: str,
    principal: iam.IPrincipal,
    statements: Iterable[iam.PolicyStatement],
) -> iam.Role:
    """Makes a role with one inline policy.

    New rights take seconds to spread, and services check some when they make a resource
    (https://github.com/aws/aws-cdk/issues/7998). So they are a part of the role, not of a policy made after it.

    Args:
        scope: Its owner.
        construct_id: Its name below the owner.
        description: What it is for.
        principal: Who may assume it.
        statements: All its rights.
    """
    rights = list(statements)
    role = iam.Role(
        scope,
        construct_id,
        description=description,
        assumed_by=principal,
        inline_policies={"Rights": iam.PolicyDocument(statements=rights)},
    )
    for resource in {one for statement in rights for one in statement.resources}:
        name = _as_nag_writes(role.stack.resolve(resource))
        if "*" in name:
            acknowledge(role, f"IAM5[Resource::{name}]", _WILDCARDS)
    return role


def _as_nag_writes(arn: Any) -> str:
    """Returns an ARN in cdk-nag's notation: references as ``<AWS::Region>``, imports as the export's name."""
    parts = [arn] if isinstance(arn, str) else arn.get("Fn::Join", ["", []])[1]
    return "".join(
        part if isinstance(part, str) else part.get("Fn::ImportValue") or f"<{part.get('Ref')}>"
        for part in parts
    )


def service(name: str) -> iam.ServicePrincipal:
    """Returns an AWS service that assumes a role, such as ``lambda``."""
    return iam.ServicePrincipal(f"{name}.amazonaws.com")


def acknowledge(construct: IConstruct, rule: str, reason: str) -> None:
    """Accepts one finding of cdk-nag's AwsSolutions rules on ``construct`` and its children.

    Args:
        construct: The subject of the finding.
        rule: Such as ``S1``.
        reason: Why the finding is acceptable, for a reviewer.
    """
    Validations.of(construct).acknowledge(
        Acknowledgment(id=f"AwsSolutions::AwsSolutions-{rule}", reason=reason)
    )


def make_log_group(scope: Construct, *, is_shared: bool = False) -> logs.LogGroup:
    """Returns a log group without a name of its own, so that the next deployment does not meet it.

    Args:
        scope: Its owner.
        is_shared: Whether a shared stack has it, and deletes it with itself. An experiment's log outlives the stack,
            which may be gone a minute after it failed. It empties itself, and costs cents until then.
    """
    days, removal = logs.RetentionDays, RemovalPolicy
    return logs.LogGroup(
        scope,
        "Logs",
        retention=days.ONE_MONTH if is_shared else days.ONE_WEEK,
        removal_policy=removal.DESTROY if is_shared else removal.RETAIN,
    )


def log_statement(group: logs.ILogGroup) -> iam.PolicyStatement:
    """Returns the right to log.

    It omits logs:CreateLogGroup: a late log line would recreate a deleted group, without an end.
    """
    return allow("Logs", ["logs:CreateLogStream", "logs:PutLogEvents"], [group.log_group_arn])
