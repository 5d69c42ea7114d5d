"""Log groups with an end: of experiments for a week, also if their stack is gone; of shared stacks for a month."""

from __future__ import annotations

from aws_cdk import RemovalPolicy
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from constructs import Construct


def make_log_group(
    scope: Construct, construct_id: str, *, is_shared: bool = False
) -> logs.LogGroup:
    """Returns a log group without a name of its own, so that the next deployment does not meet it.

    Args:
        scope: Its owner.
        construct_id: Its name below the owner.
        is_shared: Whether a shared stack has it, and deletes it with itself. An experiment's log outlives the stack,
            which may be gone a minute after it failed. It empties itself, and costs cents until then.
    """
    if is_shared:
        return logs.LogGroup(
            scope,
            construct_id,
            retention=logs.RetentionDays.ONE_MONTH,
            removal_policy=RemovalPolicy.DESTROY,
        )
    return logs.LogGroup(
        scope,
        construct_id,
        retention=logs.RetentionDays.ONE_WEEK,
        removal_policy=RemovalPolicy.RETAIN,
    )


def log_statement(group: logs.ILogGroup) -> iam.PolicyStatement:
    """Returns the right to log.

    It omits logs:CreateLogGroup: a late log line would recreate a deleted group, without an end.
    """
    return iam.PolicyStatement(
        sid="Logs",
        actions=["logs:CreateLogStream", "logs:PutLogEvents"],
        resources=[group.log_group_arn],
    )
