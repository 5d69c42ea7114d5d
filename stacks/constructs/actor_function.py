"""The actor function: a container image, an alias that is kept warm, and rights to its cache only."""

from __future__ import annotations

import json

from aws_cdk import Duration, Fn
from aws_cdk import aws_applicationautoscaling as applicationautoscaling
from aws_cdk import aws_ecr_assets as ecr_assets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from runtime.experiment.schema import EnvironmentSection
from runtime.fleet import ACTOR_VARIABLES
from stacks.constructs.acknowledgements import acknowledge_wildcard
from stacks.constructs.arns import arn_of
from stacks.constructs.logs import log_statement, make_log_group
from stacks.constructs.staging import actor_context
from stacks.guard import ends_at
from stacks.network import ISOLATED, NetworkStack
from stacks.plan import Plan

ALIAS = "live"
EVENT_AGE_MAX_S = 60
"""Lambda gives up an invocation that it cannot start by then. The learner has replaced it."""
_NETWORK_ACTIONS = [
    f"ec2:{action}"
    for action in (
        "CreateNetworkInterface",
        "DescribeNetworkInterfaces",
        "DescribeSubnets",
        "DeleteNetworkInterface",
        "AssignPrivateIpAddresses",
        "UnassignPrivateIpAddresses",
    )
]
PLATFORMS = {"x86_64": ecr_assets.Platform.LINUX_AMD64, "arm64": ecr_assets.Platform.LINUX_ARM64}
ARCHITECTURES = {"x86_64": lambda_.Architecture.X86_64, "arm64": lambda_.Architecture.ARM_64}


class ActorFunction(Construct):
    """Runs `lambda_actor.handler`, once per actor.

    Attributes:
        function: The function.
        alias: The alias that the learner invokes: one fixed version, warm if the experiment pays for it.
        role: The rights of the function's code.
        log_group: Its log.
    """

    def __init__(
        self, scope: Construct, construct_id: str, *, plan: Plan, network: NetworkStack
    ) -> None:
        super().__init__(scope, construct_id)
        # A physical name, so that the role can name the function without waiting for it.
        self._name = plan.function_name
        self.log_group = make_log_group(self, "Logs")
        is_in_network = plan.experiment.cache.kind != "none"
        self.role = self._make_role(is_in_network=is_in_network)
        self.function = self._make_function(plan, network if is_in_network else None)
        self.alias = lambda_.Alias(
            self,
            "Alias",
            alias_name=ALIAS,
            version=self.function.current_version,
            provisioned_concurrent_executions=plan.provisioned_actors or None,
        )
        if plan.provisioned_actors:
            self._end_warm_actors(plan.provisioned_actors)
        # This project makes no asynchronous invocations. One made by hand should not be retried, and billed, for hours.
        self.alias.configure_async_invoke(
            retry_attempts=0, max_event_age=Duration.seconds(EVENT_AGE_MAX_S)
        )

    def _end_warm_actors(self, count: int) -> None:
        """Lets Application Auto Scaling end the warm actors when the lifetime is over, if nobody else has.

        Without a scaling policy it changes nothing before. Its minimum of 0 brings back none that were ended.
        """
        # A schedule is in UTC and has no Z.
        at = Fn.select(0, Fn.split("Z", ends_at()))
        self.alias.add_auto_scaling(min_capacity=0, max_capacity=count).scale_on_schedule(
            "End",
            schedule=applicationautoscaling.Schedule.expression(f"at({at})"),
            min_capacity=0,
            max_capacity=0,
        )

    def grant_operate(self, role: iam.IRole) -> None:
        """Lets ``role`` invoke the alias, read the concurrency limit, and end the warm actors."""
        self.grant_invoke(role)
        role.add_to_principal_policy(
            iam.PolicyStatement(
                sid="ActorRelease",
                actions=["lambda:DeleteProvisionedConcurrencyConfig"],
                resources=[self.alias.function_arn],
            )
        )

    def grant_invoke(self, role: iam.IRole) -> None:
        """Lets ``role`` invoke the alias, and read the concurrency limit."""
        role.add_to_principal_policy(
            iam.PolicyStatement(
                sid="ActorInvoke",
                actions=["lambda:InvokeFunction"],
                resources=[self.alias.function_arn],
            )
        )
        role.add_to_principal_policy(
            iam.PolicyStatement(
                sid="ActorConcurrency",
                actions=["lambda:GetFunctionConcurrency"],
                resources=[self.function.function_arn],
            )
        )
        role.add_to_principal_policy(
            iam.PolicyStatement(
                sid="AccountConcurrency", actions=["lambda:GetAccountSettings"], resources=["*"]
            )
        )

    def _make_role(self, *, is_in_network: bool) -> iam.Role:
        role = iam.Role(
            self,
            "Role",
            assumed_by=iam.ServicePrincipal("lambda.amazonaws.com"),
            description="What an actor may do",
            inline_policies={"Network": self._network_policy()} if is_in_network else None,
        )
        if is_in_network:
            acknowledge_wildcard(
                role,
                "*",
                "Lambda asks for the actions on network interfaces on every resource, and "
                "checks that when the function is made; the code that runs in it is denied them",
            )
        role.add_to_policy(log_statement(self.log_group))
        return role

    def _network_policy(self) -> iam.PolicyDocument:
        """Returns the network rights as a part of the role, not of the policy that is created after it.

        Lambda checks these rights when it creates the function, and new rights take seconds to spread
        (https://github.com/aws/aws-cdk/issues/7998), so they must come first.
        """
        return iam.PolicyDocument(
            statements=[
                iam.PolicyStatement(sid="Network", actions=_NETWORK_ACTIONS, resources=["*"]),
                iam.PolicyStatement(
                    sid="NetworkForLambdaOnly",
                    effect=iam.Effect.DENY,
                    actions=_NETWORK_ACTIONS,
                    resources=["*"],
                    conditions={
                        "ArnEquals": {
                            "lambda:SourceFunctionArn": arn_of("lambda", f"function:{self._name}")
                        }
                    },
                ),
            ]
        )

    def _make_function(
        self, plan: Plan, network: NetworkStack | None
    ) -> lambda_.DockerImageFunction:
        experiment = plan.experiment
        processor = experiment.actor.architecture
        with actor_context(plan.package) as folder:
            arguments = environment_arguments(experiment.environment) | onnx_argument(
                experiment.learner.kind
            )
            code = lambda_.DockerImageCode.from_image_asset(
                str(folder), platform=PLATFORMS[processor], build_args=arguments
            )
            return lambda_.DockerImageFunction(
                self,
                "Function",
                function_name=self._name,
                description=f"Actors of experiment {plan.name}, run {plan.run}",
                code=code,
                architecture=ARCHITECTURES[processor],
                memory_size=experiment.actor.memory_mib,
                timeout=Duration.seconds(experiment.actor.timeout_s),
                reserved_concurrent_executions=plan.reserved_actors,
                environment=ACTOR_VARIABLES,
                role=self.role,
                log_group=self.log_group,
                # Without a cache, actors need nothing in the network.
                vpc=network.vpc if network else None,
                vpc_subnets=ISOLATED if network else None,
                security_groups=[network.actors] if network else None,
            )


def onnx_argument(learner_kind: str) -> dict[str, str]:
    """Returns the actor Dockerfile's argument for onnxruntime, set if an external trainer may send ONNX graphs."""
    return {"ONNX": "true"} if learner_kind == "external" else {}


def environment_arguments(environment: EnvironmentSection) -> dict[str, str]:
    """Returns both Dockerfiles' arguments about the environment, which their builds try.

    They do not know ``actor.fragment_steps``, so open episodes may be cut.
    """
    section = {"preprocessing": environment.preprocessing, "truncate_at_fragment": True}
    return {
        "ENVIRONMENT_ID": environment.id,
        "ENVIRONMENT": json.dumps(section | environment.options),
    }
