"""The guard of all experiments, separate from what it guards: a ledger, a function that runs every minute, and reports.

It is deployed before the first experiment and remains; idle, it costs about 60 cents a month. An experiment's stack
imports its ledger, so CloudFormation refuses to delete the guard while an experiment exists.
"""

from __future__ import annotations

from aws_cdk import (
    Aws,
    CfnCondition,
    CfnOutput,
    CfnParameter,
    CustomResource,
    Duration,
    Fn,
    RemovalPolicy,
    Stack,
    Token,
)
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as cloudwatch_actions
from aws_cdk import aws_dynamodb as dynamodb
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sns as sns
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from runtime.aws.guard.check import (
    ANSWER_S,
    CHECK_TYPE,
    ENDS_AT,
    LIFETIME_PROPERTY,
    START_TYPE,
    VERSION,
    VERSION_TYPE,
)
from runtime.aws.guard.needs import VCPU_QUOTAS, Needs
from runtime.aws.guard.watch import LOOKED_AT_ALL
from runtime.aws.ledger import GUARD_KEY, LEARNER_ATTRIBUTES
from runtime.names import (
    ACTOR_SUFFIX,
    CACHE_PREFIX,
    COORDINATOR_SUFFIX,
    EXECUTIONS_PARAMETER,
    EXPERIMENT_TAG,
    LEARNER_SUFFIX,
    LEDGER_OUTPUT,
    LEDGER_TABLE_VARIABLE,
    REPORTS_TOPIC_VARIABLE,
    RESERVED_OUTPUT,
    STACK_PREFIX,
    VERSION_OUTPUT,
)
from runtime.times import INTERVAL_S
from stacks.constructs.dashboard import Dashboard
from stacks.constructs.roles import (
    allow,
    arn_of,
    log_statement,
    make_log_group,
    make_role,
    service,
)
from stacks.constructs.staging import GUARD_MODULE, guard_files

MEMORY_MIB = 256
TIMEOUT_S = 240
"""A tick ends much sooner. A check waits for a new guard's first tick."""
SILENT_PERIODS = 5
GUARD_NAMESPACE = "NitroGuard"
"""Namespace of its metric. No role of an experiment may write it."""
_CHECK = "GuardCheck"
_MINUTE = Duration.minutes(1)
_STACKS = arn_of("cloudformation", f"stack/{STACK_PREFIX}*/*")
_GROUPS = arn_of(
    "autoscaling", f"autoScalingGroup:*:autoScalingGroupName/{STACK_PREFIX}*{LEARNER_SUFFIX}"
)
_INSTANCES = arn_of("ec2", "instance/*")
_MACHINES = arn_of("states", f"stateMachine:{STACK_PREFIX}*{COORDINATOR_SUFFIX}")
_EXECUTIONS = arn_of("states", f"execution:{STACK_PREFIX}*{COORDINATOR_SUFFIX}:*")
_FUNCTIONS = arn_of("lambda", f"function:{STACK_PREFIX}*{ACTOR_SUFFIX}")
_VERSIONS = f"{_FUNCTIONS}:*"
_OTHER_FUNCTIONS = [
    arn_of("lambda", f"function:{STACK_PREFIX}*{suffix}")
    for suffix in (COORDINATOR_SUFFIX, LEARNER_SUFFIX)
]
_CACHES = arn_of("elasticache", f"serverlesscache:{CACHE_PREFIX}*")


class GuardStack(Stack):
    """The guard.

    Attributes:
        ledger: The table; its key is the run.
        reports: The topic of its reports and alarms.
    """

    def __init__(self, scope: Construct, construct_id: str) -> None:
        """Composes the guard.

        Args:
            scope: The app.
            construct_id: The stack's name.
        """
        super().__init__(
            scope, construct_id, description="Nitro: ends experiments whose money or time is up"
        )
        self.ledger = dynamodb.Table(
            self,
            "Ledger",
            partition_key=dynamodb.Attribute(name="run", type=dynamodb.AttributeType.STRING),
            billing_mode=dynamodb.BillingMode.PAY_PER_REQUEST,
            point_in_time_recovery_specification=dynamodb.PointInTimeRecoverySpecification(
                point_in_time_recovery_enabled=True
            ),
            removal_policy=RemovalPolicy.DESTROY,
        )
        self.reports = self._make_topic()
        Dashboard(self, "Dashboard")
        self._log_group = make_log_group(self, is_shared=True)
        # A parameter, because CloudFormation keeps its value where a later deployment does not know the account.
        reserved = CfnParameter(
            self,
            EXECUTIONS_PARAMETER,
            type="Number",
            default="0",
            description="Concurrent executions reserved for the guard; 0 reserves none, as in a new account",
        )
        self._function = self._make_function(reserved)
        rule = events.Rule(
            self,
            "EveryMinute",
            description="Lets the guard look at all experiments",
            schedule=events.Schedule.rate(Duration.seconds(INTERVAL_S)),
            targets=[
                targets.LambdaFunction(self._function, retry_attempts=0, max_event_age=_MINUTE)
            ],
        )
        self._add_alarms()
        # Exported even if this experiment needs none: deploying one must not remove exports that another uses.
        self.export_value(self.ledger.table_name)
        self.export_value(self.ledger.table_arn)
        self.export_value(self._function.function_arn)
        self.export_value(self.reports.topic_arn)
        # The updated function answers: an older version refuses, and CloudFormation rolls the update back.
        _ask(self, "Replacement", VERSION_TYPE, self._function)
        for name, value in {
            VERSION_OUTPUT: str(VERSION),
            LEDGER_OUTPUT: self.ledger.table_name,
            "GuardFunction": self._function.function_name,
            "ReportsTopic": self.reports.topic_arn,
            "RuleName": rule.rule_name,
            RESERVED_OUTPUT: Fn.ref(reserved.logical_id),
        }.items():
            CfnOutput(self, name, value=value)

    def add_check(self, stack: Stack, needs: Needs, *, lifetime_s: float) -> None:
        """Makes ``stack`` check that the guard works, and that the account is large enough, before anything else.

        Args:
            stack: An experiment's.
            needs: What it needs of the account.
            lifetime_s: Seconds after its creation until AWS' own services end it; see `ends_at`.
        """
        check = _ask(
            stack,
            _CHECK,
            CHECK_TYPE,
            self._function,
            **needs.properties(),
            **{LIFETIME_PROPERTY: f"{lifetime_s:.0f}"},
        )
        for child in stack.node.children:
            if child is not check:
                child.node.add_dependency(check)

    def add_start(self, stack: Stack, machine: sfn.IStateMachine, run: str) -> None:
        """Makes ``stack`` start the rounds of ``run`` when all else that it has is made."""
        start = _ask(
            stack, "Start", START_TYPE, self._function, Machine=machine.state_machine_arn, Run=run
        )
        start.node.add_dependency(*(child for child in stack.node.children if child is not start))

    def ledger_statements(self, run: str) -> list[iam.PolicyStatement]:
        """Returns the rights to write a run's own attributes of its entry, and to read them and the guard's last look.

        ``dynamodb:Attributes`` lists the names in a request, including its conditions. Attributes that are only
        returned (ALL_NEW) are not in it, so the role can read them anyway.

        Args:
            run: ``EXPERIMENT/RUN``.
        """
        written = {
            "dynamodb:LeadingKeys": [run],
            "dynamodb:Attributes": list(LEARNER_ATTRIBUTES),
        }
        read = {"dynamodb:LeadingKeys": [run, GUARD_KEY]}
        table = [self.ledger.table_arn]
        return [
            allow(
                "LedgerWrite",
                ["dynamodb:UpdateItem"],
                table,
                {"ForAllValues:StringEquals": written},
            ),
            allow("LedgerRead", ["dynamodb:GetItem"], table, {"ForAllValues:StringEquals": read}),
        ]

    def _make_topic(self) -> sns.Topic:
        topic = sns.Topic(self, "Reports", display_name="Nitro", enforce_ssl=True)
        # A topic with its own policy must grant alarms the right to publish.
        topic.add_to_resource_policy(
            iam.PolicyStatement(
                sid="Alarms",
                actions=["sns:Publish"],
                resources=[topic.topic_arn],
                principals=[iam.ServicePrincipal("cloudwatch.amazonaws.com")],
                conditions={"StringEquals": {"aws:SourceAccount": self.account}},
            )
        )
        return topic

    def _statements(self) -> list[iam.PolicyStatement]:
        """Returns what the guard may do: look, and end what is an experiment's."""
        return [
            allow(
                "Ledger",
                ["dynamodb:GetItem", "dynamodb:Scan", "dynamodb:UpdateItem"],
                [self.ledger.table_arn],
            ),
            allow("Report", ["sns:Publish"], [self.reports.topic_arn]),
            log_statement(self._log_group),
            # CloudFormation deletes a stack with the role that created it, which it remembers.
            allow("FindStacks", ["tag:GetResources"]),
            allow("ReadStacks", ["cloudformation:DescribeStacks"], [_STACKS]),
            allow(
                "DeleteStacks",
                ["cloudformation:DeleteStack", "cloudformation:ListStackResources"],
                [_STACKS],
            ),
            # The check reads the account's limits.
            allow(
                "ReadLimits",
                [
                    "ec2:DescribeInstanceTypes",
                    "ec2:GetEbsDefaultKmsKeyId",
                    "lambda:GetAccountSettings",
                ],
            ),
            allow(
                "ReadQuotas",
                ["servicequotas:GetServiceQuota"],
                [arn_of("servicequotas", f"ec2/{code}") for code in VCPU_QUOTAS.values()],
            ),
            # Learners: instances, or executions of a state machine.
            allow(
                "FindLearners",
                [
                    "autoscaling:DescribeAutoScalingGroups",
                    "ec2:DescribeInstances",
                ],
            ),
            allow("EndGroups", ["autoscaling:SetDesiredCapacity"], [_GROUPS]),
            allow(
                "EndLearners",
                ["ec2:TerminateInstances"],
                [_INSTANCES],
                {"Null": {f"aws:ResourceTag/{EXPERIMENT_TAG}": "false"}},
            ),
            allow(
                "FindAndStartLegs", ["states:ListExecutions", "states:StartExecution"], [_MACHINES]
            ),
            allow("EndLegs", ["states:StopExecution"], [_EXECUTIONS]),
            # Actors.
            allow(
                "BarFunctions",
                ["lambda:GetFunctionConcurrency", "lambda:PutFunctionConcurrency"],
                [_FUNCTIONS, *_OTHER_FUNCTIONS],
            ),
            allow(
                "EndWarmActors",
                [
                    "lambda:GetProvisionedConcurrencyConfig",
                    "lambda:DeleteProvisionedConcurrencyConfig",
                ],
                [_VERSIONS],
            ),
            allow(
                "DeleteServerlessCaches",
                ["elasticache:DescribeServerlessCaches", "elasticache:DeleteServerlessCache"],
                [_CACHES],
            ),
            # ElastiCache requires of its caller the right to read tags.
            allow("CacheTags", ["ec2:DescribeTags"]),
        ]

    def _make_function(self, reserved: CfnParameter) -> lambda_.Function:
        value = Fn.ref(reserved.logical_id)
        is_none = CfnCondition(self, "NoneReserved", expression=Fn.condition_equals(value, "0"))
        executions = Fn.condition_if(is_none.logical_id, Aws.NO_VALUE, value)
        with guard_files() as folder:
            function = lambda_.Function(
                self,
                "Guard",
                description="Ends experiments whose money or time is up",
                runtime=lambda_.Runtime.PYTHON_3_14,
                # Every region has it; Arm is not everywhere.
                architecture=lambda_.Architecture.X86_64,
                handler=f"{GUARD_MODULE}.handler",
                code=lambda_.Code.from_asset(str(folder)),
                memory_size=MEMORY_MIB,
                timeout=Duration.seconds(TIMEOUT_S),
                reserved_concurrent_executions=Token.as_number(executions),
                environment={
                    LEDGER_TABLE_VARIABLE: self.ledger.table_name,
                    REPORTS_TOPIC_VARIABLE: self.reports.topic_arn,
                },
                role=make_role(
                    self,
                    "Role",
                    "What the guard may do: look, and end what is an experiment's",
                    service("lambda"),
                    self._statements(),
                ),
                log_group=self._log_group,
            )
        # If Lambda cannot start a tick by then, the next one takes over.
        function.configure_async_invoke(retry_attempts=0, max_event_age=_MINUTE)
        return function

    def _add_alarms(self) -> None:
        """Adds alarms for what the guard cannot report itself: that it fails, or does not run."""
        comparison = cloudwatch.ComparisonOperator
        failing = self._function.metric_errors(period=_MINUTE).create_alarm(
            self,
            "Failing",
            threshold=1,
            evaluation_periods=1,
            comparison_operator=comparison.GREATER_THAN_OR_EQUAL_TO_THRESHOLD,
            treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING,
            alarm_description="The guard could not see to an experiment: look into its log",
        )
        looks = logs.MetricFilter(
            self,
            "Looks",
            log_group=self._log_group,
            filter_pattern=logs.FilterPattern.literal(f'"{LOOKED_AT_ALL}"'),
            metric_namespace=GUARD_NAMESPACE,
            metric_name="GuardLooks",
        )
        silent = looks.metric(period=_MINUTE, statistic="Sum").create_alarm(
            self,
            "Silent",
            threshold=1,
            evaluation_periods=SILENT_PERIODS,
            comparison_operator=comparison.LESS_THAN_THRESHOLD,
            treat_missing_data=cloudwatch.TreatMissingData.BREACHING,
            alarm_description="The guard has not looked at every experiment for minutes: see its log",
        )
        for alarm in (failing, silent):
            alarm.add_alarm_action(cloudwatch_actions.SnsAction(self.reports))


def _ask(
    stack: Stack, construct_id: str, kind: str, function: lambda_.IFunction, **more: str
) -> CustomResource:
    """Adds a check that CloudFormation makes; see `runtime.aws.guard.check`."""
    asked = CustomResource(
        stack,
        construct_id,
        resource_type=kind,
        service_token=function.function_arn,
        properties={"Version": VERSION, **more},
        service_timeout=Duration.seconds(ANSWER_S),
    )
    # There is nothing to delete, and no function to answer once the guard is gone.
    asked.apply_removal_policy(RemovalPolicy.RETAIN)
    return asked


def ends_at() -> str:
    """Returns when an experiment's lifetime is over, as ``2026-11-27T10:30:00Z``, for resources of its stack.

    AWS' own services then end what costs money, even if the guard and the instance do nothing.
    """
    return Fn.get_att(_CHECK, ENDS_AT).to_string()
