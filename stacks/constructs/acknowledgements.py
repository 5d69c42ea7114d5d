"""Accepts findings of the security rules that run in every synthesis, each with a reason."""

from __future__ import annotations

from aws_cdk import Acknowledgment, Validations
from constructs import IConstruct


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


def acknowledge_wildcard(construct: IConstruct, resource: str, reason: str) -> None:
    """Accepts IAM policy statements below ``construct`` on ``resource``, which has a wildcard.

    Args:
        construct: The owner of the policies.
        resource: In cdk-nag's notation: references as ``<AWS::Region>``, imports as the export's name.
        reason: Why no narrower resource can be named.
    """
    acknowledge(construct, f"IAM5[Resource::{resource}]", reason)
