"""Log groups with an end: of experiments for a week, also if their stack is gone; of shared stacks for a month."""

from __future__ import annotations

from aws_cdk import RemovalPolicy
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from constructs import Construct

from stacks.constructs.roles import allow


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
