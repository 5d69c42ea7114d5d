"""How a construct answers for what the security rules, which every synthesis runs, find in it."""

from __future__ import annotations

from aws_cdk import Acknowledgment, Validations
from constructs import IConstruct


def acknowledge(construct: IConstruct, rule: str, reason: str) -> None:
    """Accepts one finding of cdk-nag's AwsSolutions rules on ``construct`` and what is below it.

    Args:
        construct: What the finding is about.
        rule: Such as ``S1``.
        reason: Why it is right as it is, for a reviewer.
    """
    Validations.of(construct).acknowledge(Acknowledgment(id=f"AwsSolutions::AwsSolutions-{rule}", reason=reason))


def acknowledge_wildcard(construct: IConstruct, resource: str, reason: str) -> None:
    """Accepts statements of IAM policies below ``construct`` on ``resource``, which has a wildcard.

    Args:
        construct: What the policies belong to.
        resource: As cdk-nag writes it: references as ``<AWS::Region>``, imports as the export's name.
        reason: Why no narrower resource can be named.
    """
    acknowledge(construct, f"IAM5[Resource::{resource}]", reason)
