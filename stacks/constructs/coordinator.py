"""A learner without an instance: a function for updates, the coordinator that runs rounds in legs, and a state machine.

Nothing costs money between two legs, and nothing runs when the run has ended.

- **Retries**: a failed leg is tried `LAUNCHES_MAX` times in all. A leg that succeeds resets the count. Then
  the state machine writes into the ledger that the run has finished, and why, and the guard takes everything down. An
  aborted execution writes nothing, so the guard ends that deployment for its silence.
- **No function that invokes itself**: Lambda stops such chains after about 16 invocations, and the guard would have
  nothing to stop. It stops the execution instead, whose ``TimeoutSeconds`` is the lifetime.
- **A standard workflow**, because an express one ends after five minutes.
- **The coordinator waits for actors itself.** Starting them from Step Functions would cost $0.000025 per transition,
  several times the price of a round.
- **If two executions run**, the newer leg takes the run over in the ledger. The older one can reserve nothing and ends.
"""

from __future__ import annotations

from typing import Any

from aws_cdk import Aws, Duration, Size, Stack
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_stepfunctions as sfn
from constructs import Construct

from runtime.aws.guard.ledger import FINISHED
from runtime.experiment.learner import (
    COORDINATOR_MEMORY_MIB,
    as_learner_functions,
)
from runtime.names import COORDINATOR_SUFFIX, LEARNER_SUFFIX
from runtime.records.layout import KEPT_UPDATES
from runtime.times import LEG_S
from stacks.constructs.acknowledgements import acknowledge, acknowledge_wildcard
from stacks.constructs.actor_function import ARCHITECTURES, ActorFunction
from stacks.constructs.learner import build_image, deployment_variables, grant_run, upload_files
from stacks.constructs.logs import log_statement, make_log_group
from stacks.guard import GuardStack
from stacks.plan import LAUNCHES_MAX, Plan
from stacks.results import ResultsStack

ENTRYPOINT = ["python", "-m", "awslambdaric"]
HANDLER, LEARNER_HANDLER = (
    "runtime.aws.learner.coordinator.handler",
    "runtime.learner.functions.handler.handler",
)
ANSWER_S = 30
"""Seconds beyond the function's time limit in which Lambda's answer may arrive."""
SCRATCH_MIB = 2048
"""Size of /tmp, which holds the run's directory with its checkpoints."""
_TRANSIENT = [
    "Lambda.TooManyRequestsException",
    *(
        f"Lambda.{name}"
        for name in (
            "ClientExecutionTimeoutException",
            "ServiceException",
            "AWSLambdaException",
            "SdkClientException",
        )
    ),
]
"""Errors of Lambda, not of a leg: Step Functions Developer Guide, "Handle Lambda service exceptions"."""
_TRANSIENT_TRIES = 12
"""About nine minutes with the pauses below, while the guard bears ten minutes without a heartbeat."""
_WRITTEN = ("run", "stack", "state", "reason")
"""The attributes of the run's ledger entry that the state machine may write."""


class Coordinator(Construct):
    """The two functions, and the state machine that runs the rounds, leg by leg.

    Attributes:
        machine: The state machine. The guard starts it when the stack has everything else.
        function: The coordinator, which the state machine invokes.
        log_group: The log of both functions.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        plan: Plan,
        results: ResultsStack,
        guard: GuardStack,
        actor: ActorFunction,
    ) -> None:
        super().__init__(scope, construct_id)
        self._plan, self._results, self._guard = plan, results, guard
        self._files = upload_files(self, plan)
        self._image = build_image(self, plan)
        self.log_group = make_log_group(self, "Logs")
        settings = as_learner_functions(plan.experiment.learner)
        learner = self._make_function(
            "Learner",
            LEARNER_SUFFIX,
            LEARNER_HANDLER,
            self._make_learner_role(),
            settings.function_memory_mib,
            settings.function_timeout_s,
            {},
            "Updates",
            at_once=plan.reserved_learners,
        )
        self.learner = learner
        role = self._make_role(actor, learner)
        self.function = self._make_function(
            "Function",
            COORDINATOR_SUFFIX,
            HANDLER,
            role,
            COORDINATOR_MEMORY_MIB,
            LEG_S,
            self._make_variables(actor, learner),
            "Rounds",
        )
        self.machine = self._make_machine()

    def _make_function(
        self,
        name: str,
        suffix: str,
        handler: str,
        role: iam.Role,
        memory_mib: int,
        timeout_s: float,
        variables: dict[str, str],
        what: str,
        *,
        at_once: int | None = None,
    ) -> lambda_.DockerImageFunction:
        plan = self._plan
        function = lambda_.DockerImageFunction(
            self,
            name,
            # A physical name, by which the guard can stop it.
            function_name=plan.stack_name + suffix,
            description=f"{what} of experiment {plan.name}, run {plan.run}",
            code=lambda_.DockerImageCode.from_ecr(
                self._image.repository,
                tag_or_digest=self._image.image_tag,
                entrypoint=ENTRYPOINT,
                cmd=[handler],
            ),
            architecture=ARCHITECTURES[plan.processor],
            memory_size=memory_mib,
            timeout=Duration.seconds(timeout_s),
            reserved_concurrent_executions=at_once,
            ephemeral_storage_size=Size.mebibytes(SCRATCH_MIB),
            environment=variables,
            role=role,
            log_group=self.log_group,
        )
        # This project makes no asynchronous invocations. One made by hand should not be retried and billed three times.
        function.configure_async_invoke(retry_attempts=0, max_event_age=Duration.minutes(1))
        return function

    def _make_learner_role(self) -> iam.Role:
        role, bucket = (
            self._function_role("LearnerRole", "What an update may do"),
            self._results.bucket,
        )
        folder = f"{self._plan.prefix}{KEPT_UPDATES}*"
        role.add_to_policy(
            iam.PolicyStatement(
                sid="Updates",
                actions=["s3:GetObject", "s3:PutObject"],
                resources=[bucket.arn_for_objects(folder)],
            )
        )
        role.add_to_policy(
            iam.PolicyStatement(
                sid="ListUpdates",
                actions=["s3:ListBucket"],
                resources=[bucket.bucket_arn],
                conditions={"StringLike": {"s3:prefix": folder}},
            )
        )
        acknowledge_wildcard(
            role,
            f"{self._results.arn_export}/{folder}",
            "What the updates of this one run exchange",
        )
        return role

    def _make_role(self, actor: ActorFunction, learner: lambda_.IFunction) -> iam.Role:
        plan, results = self._plan, self._results
        role = self._function_role("Role", "What the coordinator may do")
        grant_run(role, plan, results, self._files)
        for statement in (
            iam.PolicyStatement(
                sid="OldUpdates",
                actions=["s3:DeleteObject"],
                resources=[results.bucket.arn_for_objects(f"{plan.prefix}{KEPT_UPDATES}*")],
            ),
            iam.PolicyStatement(
                sid="Update", actions=["lambda:InvokeFunction"], resources=[learner.function_arn]
            ),
        ):
            role.add_to_policy(statement)
        actor.grant_invoke(role)
        self._guard.grant_write(role, plan.key)
        acknowledge_wildcard(
            role,
            "*",
            "GetAccountSettings and PutMetricData (bound to one namespace) know no resources",
        )
        acknowledge_wildcard(
            role,
            f"{results.arn_export}/{plan.prefix}{KEPT_UPDATES}*",
            "What the updates that are over have exchanged",
        )
        return role

    def _function_role(self, name: str, description: str) -> iam.Role:
        role = iam.Role(
            self,
            name,
            assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"),
            description=description,
        )
        role.add_to_policy(log_statement(self.log_group))
        return role

    def _make_variables(self, actor: ActorFunction, learner: lambda_.IFunction) -> dict[str, str]:
        """Returns the variables that the stack knows. The handler adds those that are known only when a leg runs."""
        return deployment_variables(
            self._plan,
            self._results,
            self._guard,
            actor,
            learner_function=learner.function_arn,
            instance_type=f"{COORDINATOR_MEMORY_MIB} MiB",
            container_image=self._image.image_uri,
            image_id="",
            files=self._files.s3_object_url,
        )

    def _make_machine(self) -> sfn.StateMachine:
        plan = self._plan
        role = iam.Role(
            self,
            "MachineRole",
            description="What the state machine may do",
            assumed_by=iam.ServicePrincipal(
                "states.amazonaws.com",
                conditions={"StringEquals": {"aws:SourceAccount": Aws.ACCOUNT_ID}},
            ),
        )
        role.add_to_policy(
            iam.PolicyStatement(
                sid="Leg", actions=["lambda:InvokeFunction"], resources=[self.function.function_arn]
            )
        )
        role.add_to_policy(
            iam.PolicyStatement(
                sid="Ledger",
                actions=["dynamodb:UpdateItem"],
                resources=[self._guard.ledger.table_arn],
                conditions={
                    "ForAllValues:StringEquals": {
                        "dynamodb:LeadingKeys": [plan.key],
                        "dynamodb:Attributes": list(_WRITTEN),
                    }
                },
            )
        )
        machine = sfn.StateMachine(
            self,
            "Machine",
            state_machine_name=plan.stack_name + COORDINATOR_SUFFIX,
            definition_body=sfn.DefinitionBody.from_string(
                Stack.of(self).to_json_string(self._definition())
            ),
            state_machine_type=sfn.StateMachineType.STANDARD,
            role=role,
        )
        # The state machine comes last, after everything that it needs, including rights.
        machine.node.add_dependency(role, self.function, self.learner)
        acknowledge(
            machine,
            "SF1",
            "Each leg logs what it does, and AWS keeps the executions' histories for 90 days",
        )
        acknowledge(machine, "SF2", "One task in a loop: there is nothing that a trace would tell")
        return machine

    def _definition(self) -> dict[str, Any]:
        """Returns the Amazon States Language definition: legs until one reports that the run has ended."""
        plan, failures = self._plan, LAUNCHES_MAX
        tell = {
            "TableName": self._guard.ledger.table_name,
            "Key": {"run": {"S": plan.key}},
            "UpdateExpression": "SET #state = :state, #reason = :reason",
            # Does not touch the entry of a later deployment.
            "ConditionExpression": "#stack = :stack",
            "ExpressionAttributeNames": {"#state": "state", "#reason": "reason", "#stack": "stack"},
            "ExpressionAttributeValues": {
                ":state": {"S": FINISHED},
                ":stack": {"S": Aws.STACK_ID},
                ":reason": {
                    "S.$": f"States.Format('a leg failed {failures} times, the last time with {{}}: see the "
                    "log of the coordinator', $.failure.Error)"
                },
            },
        }
        retry = {
            "ErrorEquals": ["States.ALL"],
            "IntervalSeconds": 5,
            "BackoffRate": 2,
            "MaxDelaySeconds": 60,
        }
        return {
            "Comment": f"The rounds of experiment {plan.name}, run {plan.run}",
            "StartAt": "Leg",
            "TimeoutSeconds": max(1, round(plan.lifetime_hours * 3600)),
            "States": {
                "Leg": {
                    "Type": "Task",
                    "Resource": f"arn:{Aws.PARTITION}:states:::lambda:invoke",
                    "Parameters": {
                        "FunctionName": self.function.function_arn,
                        "Payload": {"started_at.$": "$$.Execution.StartTime"},
                    },
                    "ResultSelector": {"done.$": "$.Payload.done"},
                    "TimeoutSeconds": round(LEG_S + ANSWER_S),
                    "Retry": [
                        {**retry, "ErrorEquals": _TRANSIENT, "MaxAttempts": _TRANSIENT_TRIES},
                        *([{**retry, "MaxAttempts": failures - 1}] if failures > 1 else []),
                    ],
                    "Catch": [
                        {
                            "ErrorEquals": ["States.ALL"],
                            "ResultPath": "$.failure",
                            "Next": "Tell the guard",
                        }
                    ],
                    "Next": "Done?",
                },
                "Done?": {
                    "Type": "Choice",
                    "Default": "Leg",
                    "Choices": [{"Variable": "$.done", "BooleanEquals": True, "Next": "Done"}],
                },
                "Done": {"Type": "Succeed"},
                "Tell the guard": {
                    "Type": "Task",
                    "Resource": f"arn:{Aws.PARTITION}:states:::dynamodb:updateItem",
                    "Parameters": tell,
                    "Retry": [{**retry, "MaxAttempts": 5}],
                    "Next": "Failed",
                },
                "Failed": {"Type": "Fail", "Error": "CoordinatorFailed"},
            },
        }
