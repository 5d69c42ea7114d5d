"""The actor function: a container image, warm actors if the experiment pays for them, and rights to its cache only."""

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
from stacks.constructs.cache import CacheConstruct
from stacks.constructs.roles import allow, arn_of, log_statement, make_log_group, make_role, service
from stacks.constructs.staging import actor_context
from stacks.guard import ends_at
from stacks.network import NetworkStack
from stacks.plan import Plan

ALIAS = "live"
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
        arn: What the learner invokes: the function, or an alias of one fixed version that is kept warm.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        plan: Plan,
        network: NetworkStack,
        cache: CacheConstruct | None,
    ) -> None:
        """Composes the function.

        Args:
            cache: The cache that actors reach; without one, they need nothing in the network.
        """
        super().__init__(scope, construct_id)
        self._log_group = make_log_group(self)
        rights = [log_statement(self._log_group)]
        if cache is not None:
            # A physical name, so that the role can name the function without waiting for it.
            rights += [*_network_statements(plan.function_name), cache.actor_statement]
        role = make_role(
            self,
            "Role",
            "What an actor may do",
            service("lambda"),
            rights,
        )
        self._function = self._make_function(plan, role, network if cache is not None else None)
        self.arn = self._function.function_arn
        self._is_warm = plan.provisioned_actors > 0
        if self._is_warm:
            self.arn = self._keep_warm(plan.provisioned_actors)

    def _make_function(
        self, plan: Plan, role: iam.Role, network: NetworkStack | None
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
                function_name=plan.function_name,
                description=f"Actors of experiment {plan.name}, run {plan.run}",
                code=code,
                architecture=ARCHITECTURES[processor],
                memory_size=experiment.actor.memory_mib,
                timeout=Duration.seconds(experiment.actor.timeout_s),
                reserved_concurrent_executions=plan.reserved_actors,
                environment=ACTOR_VARIABLES,
                role=role,
                log_group=self._log_group,
                vpc=network.vpc if network else None,
                security_groups=[network.actors] if network else None,
                # A function never has a public address, so it reaches nothing outside from there either.
                allow_public_subnet=True if network else None,
            )

    def _keep_warm(self, count: int) -> str:
        """Keeps actors warm, and lets Application Auto Scaling end them with the lifetime, if nobody else has.

        Without a scaling policy it changes nothing before. Its minimum of 0 brings back none that were ended.
        """
        alias = lambda_.Alias(
            self,
            "Alias",
            alias_name=ALIAS,
            version=self._function.current_version,
            provisioned_concurrent_executions=count,
        )
        # A schedule is in UTC and has no Z.
        at = Fn.select(0, Fn.split("Z", ends_at()))
        alias.add_auto_scaling(min_capacity=0, max_capacity=count).scale_on_schedule(
            "End",
            schedule=applicationautoscaling.Schedule.expression(f"at({at})"),
            min_capacity=0,
            max_capacity=0,
        )
        return alias.function_arn

    @property
    def statements(self) -> list[iam.PolicyStatement]:
        """The rights to invoke actors, and to read how many may run at once."""
        return [
            allow("ActorInvoke", ["lambda:InvokeFunction"], [self.arn]),
            allow(
                "ActorConcurrency", ["lambda:GetFunctionConcurrency"], [self._function.function_arn]
            ),
            allow("AccountConcurrency", ["lambda:GetAccountSettings"]),
        ]


def _network_statements(function_name: str) -> list[iam.PolicyStatement]:
    """Lets Lambda itself make and delete the function's network interfaces, but not the code that runs in it."""
    return [
        allow("Network", _NETWORK_ACTIONS),
        iam.PolicyStatement(
            sid="NetworkForLambdaOnly",
            effect=iam.Effect.DENY,
            actions=_NETWORK_ACTIONS,
            resources=["*"],
            conditions={
                "ArnEquals": {
                    "lambda:SourceFunctionArn": arn_of("lambda", f"function:{function_name}")
                }
            },
        ),
    ]


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
