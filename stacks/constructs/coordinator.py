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

from collections.abc import Mapping

from aws_cdk import Aws, Duration, Size
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_stepfunctions as sfn
from aws_cdk import aws_stepfunctions_tasks as tasks
from constructs import Construct

from runtime.aws.ledger import FINISHED
from runtime.experiment.learner import (
    COORDINATOR_MEMORY_MIB,
    as_learner_functions,
)
from runtime.names import COORDINATOR_SUFFIX, LEARNER_SUFFIX
from runtime.records.layout import KEPT_UPDATES
from runtime.times import LEG_S
from stacks.constructs.actor_function import ARCHITECTURES, ActorFunction
from stacks.constructs.learner import (
    build_image,
    deployment_variables,
    run_statements,
    upload_files,
)
from stacks.constructs.roles import (
    acknowledge,
    allow,
    log_statement,
    make_log_group,
    make_role,
    service,
)
from stacks.guard import GuardStack
from stacks.plan import LAUNCHES_MAX, Plan
from stacks.results import ResultsStack

ENTRYPOINT = ["python", "-m", "awslambdaric"]
HANDLER = "runtime.aws.learner.coordinator.handler"
UPDATE_HANDLER = "runtime.learner.functions.handler.handler"
ANSWER_S = 30
"""Seconds beyond the function's time limit in which Lambda's answer may arrive."""
SCRATCH_MIB = 2048
"""Size of /tmp, which holds the run's directory with its checkpoints."""
_TRANSIENT = [
    f"Lambda.{name}"
    for name in (
        "TooManyRequestsException",
        "ClientExecutionTimeoutException",
        "ServiceException",
        "AWSLambdaException",
        "SdkClientException",
    )
]
"""Errors of Lambda, not of a leg: Step Functions Developer Guide, "Handle Lambda service exceptions"."""
_TRANSIENT_TRIES = 12
"""About nine minutes with the pauses below, while the guard bears ten minutes without a heartbeat."""
_PAUSES = dict(interval=Duration.seconds(5), backoff_rate=2, max_delay=Duration.seconds(60))
_WRITTEN = ("run", "stack", "state", "reason")
"""The attributes of the run's ledger entry that the state machine may write."""


class Coordinator(Construct):
    """The two functions, and the state machine that runs the rounds, leg by leg.

    Attributes:
        machine: The state machine. The guard starts it when the stack has everything else.
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
        self._plan = plan
        self._results = results
        self._guard = guard
        files = upload_files(self, plan)
        self._image = build_image(self, plan)
        self._log_group = make_log_group(self)
        settings = as_learner_functions(plan.experiment.learner)
        learner = self._make_function(
            "Learner",
            "Updates",
            LEARNER_SUFFIX,
            handler=UPDATE_HANDLER,
            role=self._make_learner_role(),
            memory_mib=settings.function_memory_mib,
            timeout_s=settings.function_timeout_s,
            at_once=plan.reserved_learners,
        )
        variables = deployment_variables(
            plan,
            results,
            guard,
            actor,
            # The handler adds the variables that are known only when a leg runs.
            learner_function=learner.function_arn,
            instance_type=f"{COORDINATOR_MEMORY_MIB} MiB",
            container_image=self._image.image_uri,
            image_id="",
            files=files.s3_object_url,
        )
        function = self._make_function(
            "Function",
            "Rounds",
            COORDINATOR_SUFFIX,
            handler=HANDLER,
            role=make_role(
                self,
                "Role",
                "What the coordinator may do",
                service("lambda"),
                [
                    log_statement(self._log_group),
                    *run_statements(plan, results, files),
                    allow("OldUpdates", ["s3:DeleteObject"], [self._updates]),
                    allow("Update", ["lambda:InvokeFunction"], [learner.function_arn]),
                    *actor.statements,
                    *guard.ledger_statements(plan.key),
                ],
            ),
            memory_mib=COORDINATOR_MEMORY_MIB,
            timeout_s=LEG_S,
            variables=variables,
        )
        self.machine = self._make_machine(function)

    @property
    def _updates(self) -> str:
        """The objects that updates exchange."""
        return f"{self._results.arn}/{self._plan.prefix}{KEPT_UPDATES}*"

    def _make_function(
        self,
        construct_id: str,
        what: str,
        suffix: str,
        *,
        handler: str,
        role: iam.Role,
        memory_mib: int,
        timeout_s: float,
        variables: Mapping[str, str] | None = None,
        at_once: int | None = None,
    ) -> lambda_.DockerImageFunction:
        plan = self._plan
        return lambda_.DockerImageFunction(
            self,
            construct_id,
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
            log_group=self._log_group,
        )

    def _make_learner_role(self) -> iam.Role:
        folder = f"{self._plan.prefix}{KEPT_UPDATES}*"
        return make_role(
            self,
            "LearnerRole",
            "What an update may do",
            service("lambda"),
            [
                log_statement(self._log_group),
                allow("Updates", ["s3:GetObject", "s3:PutObject"], [self._updates]),
                allow(
                    "ListUpdates",
                    ["s3:ListBucket"],
                    [self._results.arn],
                    {"StringLike": {"s3:prefix": folder}},
                ),
            ],
        )

    def _make_machine(self, function: lambda_.IFunction) -> sfn.StateMachine:
        plan, ledger = self._plan, self._guard.ledger
        written = {"dynamodb:LeadingKeys": [plan.key], "dynamodb:Attributes": list(_WRITTEN)}
        role = make_role(
            self,
            "MachineRole",
            "What the state machine may do",
            iam.ServicePrincipal(
                "states.amazonaws.com",
                conditions={"StringEquals": {"aws:SourceAccount": Aws.ACCOUNT_ID}},
            ),
            [
                allow("Leg", ["lambda:InvokeFunction"], [function.function_arn]),
                allow(
                    "Ledger",
                    ["dynamodb:UpdateItem"],
                    [ledger.table_arn],
                    {"ForAllValues:StringEquals": written},
                ),
            ],
        )
        machine = sfn.StateMachine(
            self,
            "Machine",
            state_machine_name=plan.stack_name + COORDINATOR_SUFFIX,
            state_machine_type=sfn.StateMachineType.STANDARD,
            comment=f"The rounds of experiment {plan.name}, run {plan.run}",
            definition_body=sfn.DefinitionBody.from_chainable(self._make_legs(function)),
            timeout=Duration.seconds(max(1, round(plan.lifetime_hours * 3600))),
            # Tasks would add rights on every version of the function, and on the whole ledger.
            role=role.without_policy_updates(),
        )
        acknowledge(
            machine,
            "SF1",
            "Each leg logs what it does, and AWS keeps the executions' histories for 90 days",
        )
        acknowledge(machine, "SF2", "One task in a loop: there is nothing that a trace would tell")
        return machine

    def _make_legs(self, function: lambda_.IFunction) -> sfn.IChainable:
        """Returns legs until one reports that the run has ended. The ledger gets the reason of one that fails."""
        text, path = tasks.DynamoAttributeValue.from_string, sfn.JsonPath
        leg = tasks.LambdaInvoke(
            self,
            "Leg",
            lambda_function=function,
            payload=sfn.TaskInput.from_object(
                {"started_at": path.string_at("$$.Execution.StartTime")}
            ),
            result_selector={"done": path.object_at("$.Payload.done")},
            task_timeout=sfn.Timeout.duration(Duration.seconds(LEG_S + ANSWER_S)),
            retry_on_service_exceptions=False,
        )
        leg.add_retry(errors=_TRANSIENT, max_attempts=_TRANSIENT_TRIES, **_PAUSES)
        leg.add_retry(max_attempts=LAUNCHES_MAX - 1, **_PAUSES)
        report = tasks.DynamoUpdateItem(
            self,
            "Tell the guard",
            table=self._guard.ledger,
            key={"run": text(self._plan.key)},
            update_expression="SET #state = :state, #reason = :reason",
            # Does not touch the entry of a later deployment.
            condition_expression="#stack = :stack",
            expression_attribute_names={"#state": "state", "#reason": "reason", "#stack": "stack"},
            expression_attribute_values={
                ":state": text(FINISHED),
                ":stack": text(Aws.STACK_ID),
                ":reason": text(
                    path.format(
                        f"a leg failed {LAUNCHES_MAX} times, the last time with {{}}: see the log of the "
                        "coordinator",
                        path.string_at("$.failure.Error"),
                    )
                ),
            },
        )
        report.add_retry(max_attempts=5, **_PAUSES)
        leg.add_catch(report, result_path="$.failure")
        report.next(sfn.Fail(self, "Failed", error="CoordinatorFailed"))
        is_done = sfn.Condition.boolean_equals("$.done", True)
        done = sfn.Succeed(self, "Done")
        chain: sfn.IChainable = leg.next(
            sfn.Choice(self, "Done?").when(is_done, done).otherwise(leg)
        )
        return chain
