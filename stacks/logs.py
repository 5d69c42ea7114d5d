"""Log groups that are deleted with their stack."""

from __future__ import annotations

from aws_cdk import RemovalPolicy
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from constructs import Construct


def make_log_group(
    scope: Construct, construct_id: str, *, retention: logs.RetentionDays = logs.RetentionDays.ONE_WEEK
) -> logs.LogGroup:
    """Returns a log group that is deleted with its stack."""
    return logs.LogGroup(scope, construct_id, retention=retention, removal_policy=RemovalPolicy.DESTROY)


def log_statement(group: logs.ILogGroup) -> iam.PolicyStatement:
    """Returns the right to log.

    It omits logs:CreateLogGroup: a late log line would recreate the group after the stack is gone, and it would remain.
    """
    return iam.PolicyStatement(sid="Logs", actions=["logs:CreateLogStream", "logs:PutLogEvents"],
                               resources=[group.log_group_arn])
