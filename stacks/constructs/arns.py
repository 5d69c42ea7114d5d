"""ARNs of resources outside the current stack."""

from __future__ import annotations

from aws_cdk import Aws


def arn_of(service: str, resource: str) -> str:
    """Returns the ARN of a resource in the account and region that the stack is deployed to."""
    return f"arn:{Aws.PARTITION}:{service}:{Aws.REGION}:{Aws.ACCOUNT_ID}:{resource}"
