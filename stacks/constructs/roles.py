"""IAM roles whose rights are a part of them: CloudFormation makes both at once, and deletes both last."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from aws_cdk import Acknowledgment, Aws, Validations
from aws_cdk import aws_iam as iam
from constructs import Construct, IConstruct


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
    wildcards: Mapping[str, str],
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
        wildcards: Resources with a wildcard in the statements, each with the reason why none narrower can be named. In
            cdk-nag's notation: references as ``<AWS::Region>``, imports as the export's name.
    """
    role = iam.Role(
        scope,
        construct_id,
        description=description,
        assumed_by=principal,
        inline_policies={"Rights": iam.PolicyDocument(statements=list(statements))},
    )
    for resource, reason in wildcards.items():
        acknowledge(role, f"IAM5[Resource::{resource}]", reason)
    return role


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
