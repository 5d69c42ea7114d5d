"""The learner: an Auto Scaling group of one instance, which trains in a container and then ends itself."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from aws_cdk import Aws, CfnCreationPolicy, CfnResourceSignal
from aws_cdk import aws_autoscaling as autoscaling
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_ecr_assets as ecr_assets
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3_assets as assets
from constructs import Construct

from runtime.experiment.instance_types import machine_image
from runtime.money.model import VOLUME_GIB
from runtime.names import CACHE_PORT, ENVIRONMENT_PREFIX, LEARNER_SUFFIX, METRIC_NAMESPACE
from stacks.constructs.acknowledgements import acknowledge, acknowledge_wildcard
from stacks.constructs.actor_function import PLATFORMS, ActorFunction, environment_arguments
from stacks.constructs.arns import arn_of
from stacks.constructs.cache import CacheConstruct
from stacks.constructs.logs import log_statement, make_log_group
from stacks.constructs.staging import learner_context, learner_files
from stacks.guard import GuardStack, ends_at
from stacks.network import HTTPS_PORT, NetworkStack
from stacks.plan import LAUNCHES_MAX, Plan
from stacks.results import ResultsStack

BOOT_SCRIPT = Path(__file__).with_name("learner_boot.sh")
GROUP_LOGICAL_ID = "LearnerGroup"
DNS_PORT = 53
ROOT_DEVICE = "/dev/xvda"
"""Root device of Amazon Linux's images."""


class LearnerInstance(Construct):
    """One instance at a time, of the first available type, in any zone that has it.

    Attributes:
        group: The Auto Scaling group, which replaces an instance that dies or is interrupted.
        group_name: Its physical name, so that the instance's role can name the group without waiting for it.
        role: The instance's rights.
        security_group: Allows nothing in.
        image_id: The machine image that the SSM parameter named at deployment.
        log_group: Its log.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        plan: Plan,
        network: NetworkStack,
        results: ResultsStack,
        guard: GuardStack,
        actor: ActorFunction | None,
        cache: CacheConstruct | None,
        disk_key: str | None,
    ) -> None:
        """Composes the learner.

        Args:
            actor: The actor function; None if actors are processes of the learner.
            cache: The cache; None if there is none in AWS.
            disk_key: KMS key of its disk; None is the account's default.
        """
        super().__init__(scope, construct_id)
        self.group_name = plan.stack_name + LEARNER_SUFFIX
        self._group_resource = f"autoScalingGroup:*:autoScalingGroupName/{self.group_name}"
        self._files = upload_files(self, plan)
        self._image = build_image(self, plan)
        self.log_group = make_log_group(self, "Logs")
        self.security_group = _make_security_group(self, network, cache)
        self.role = self._make_role(plan, results)
        if actor is not None:
            actor.grant_operate(self.role)
        guard.grant_write(self.role, plan.key)
        if cache is not None:
            cache.grant_learner(self.role)
        image = ec2.MachineImage.from_ssm_parameter(
            machine_image(plan.experiment.learner.instance_types)
        )
        self.image_id = image.get_image(self).image_id
        self._variables = self._make_variables(plan, results, guard, actor, cache)
        template = self._make_launch_template(plan, network, image)
        if disk_key is not None:
            made = template.node.default_child
            assert isinstance(made, ec2.CfnLaunchTemplate)
            made.add_property_override(
                "LaunchTemplateData.BlockDeviceMappings.0.Ebs.KmsKeyId", disk_key
            )
        self.group = self._make_group(plan, network, template)
        # The instance costs the most, so it comes last, after everything that it needs, including its rights.
        self.group.node.add_dependency(
            self.role, self.security_group, *([actor.alias] if actor else [])
        )
        if cache is not None:
            self.group.node.add_dependency(cache.resource, cache.group)

    def _make_role(self, plan: Plan, results: ResultsStack) -> iam.Role:
        role = iam.Role(
            self,
            "Role",
            assumed_by=iam.ServicePrincipal("ec2.amazonaws.com"),
            description="What the learner may do",
        )
        grant_run(role, plan, results, self._files)
        for statement in (
            *_image_statements(self._image),
            log_statement(self.log_group),
            *self._life_statements(),
            *_session_statements(),
        ):
            role.add_to_policy(statement)
        acknowledge_wildcard(
            role,
            "*",
            "GetAccountSettings, GetAuthorizationToken, PutMetricData (bound to one "
            "namespace) and Session Manager's messages know no resources",
        )
        acknowledge_wildcard(
            role,
            "arn:<AWS::Partition>:ec2:<AWS::Region>:<AWS::AccountId>:instance/*",
            "Session Manager's agent reports its instance, whose name is drawn when it starts",
        )
        acknowledge_wildcard(
            role,
            f"arn:<AWS::Partition>:autoscaling:<AWS::Region>:<AWS::AccountId>:{self._group_resource}",
            "Its own group: the identifier before the name is drawn by AWS when the group is made",
        )
        return role

    def _life_statements(self) -> list[iam.PolicyStatement]:
        """Returns the rights to signal that it is up, read its own stack, and end its group."""
        group = arn_of("autoscaling", self._group_resource)
        return [
            iam.PolicyStatement(
                sid="OwnStack",
                resources=[Aws.STACK_ID],
                actions=["cloudformation:SignalResource", "cloudformation:DescribeStacks"],
            ),
            iam.PolicyStatement(
                sid="OwnGroup", actions=["autoscaling:SetDesiredCapacity"], resources=[group]
            ),
        ]

    def _make_variables(
        self,
        plan: Plan,
        results: ResultsStack,
        guard: GuardStack,
        actor: ActorFunction | None,
        cache: CacheConstruct | None,
    ) -> dict[str, str]:
        return {
            **deployment_variables(
                plan,
                results,
                guard,
                actor,
                cache_url=cache.url if cache else "",
                cache_credential=cache.credential if cache else "",
                actor_credential=cache.actor_credential if cache else "",
                learner_group=self.group_name,
                learner_resource=GROUP_LOGICAL_ID,
                files=self._files.s3_object_url,
            ),
            "AWS_DEFAULT_REGION": Aws.REGION,
            "BOOT_IMAGE": self._image.image_uri,
            "BOOT_GPUS": "all" if plan.has_gpu else "",
            "BOOT_ENDS_AT": ends_at(),
            "BOOT_LAUNCHES_MAX": str(LAUNCHES_MAX),
            # The guard limits the phases before. The first actors have what is left of CloudFormation's timeout.
            "BOOT_LIMIT_S": f"{plan.start.limit_s('image'):.0f}",
            "BOOT_LOG_GROUP": self.log_group.log_group_name,
        }

    def _make_launch_template(
        self, plan: Plan, network: NetworkStack, image: ec2.IMachineImage
    ) -> ec2.LaunchTemplate:
        return ec2.LaunchTemplate(
            self,
            "Template",
            machine_image=image,
            role=self.role,
            security_group=self.security_group,
            associate_public_ip_address=not network.is_own,
            user_data=ec2.UserData.custom(user_data(self._variables)),
            require_imdsv2=True,
            http_endpoint=True,
            http_put_response_hop_limit=1,
            # T3 and T4g would otherwise buy CPU credits, at up to ten times the price of the instance.
            cpu_credits=ec2.CpuCredits.STANDARD if plan.is_burstable else None,
            # An instance that ends itself would otherwise only stop, and its volume cost money until the group noticed.
            instance_initiated_shutdown_behavior=ec2.InstanceInitiatedShutdownBehavior.TERMINATE,
            block_devices=[
                ec2.BlockDevice(
                    device_name=ROOT_DEVICE,
                    volume=ec2.BlockDeviceVolume.ebs(
                        VOLUME_GIB,
                        volume_type=ec2.EbsDeviceVolumeType.GP3,
                        encrypted=True,
                        delete_on_termination=True,
                    ),
                )
            ],
        )

    def _make_group(
        self, plan: Plan, network: NetworkStack, template: ec2.LaunchTemplate
    ) -> autoscaling.CfnAutoScalingGroup:
        group = autoscaling.CfnAutoScalingGroup(
            self,
            "Group",
            auto_scaling_group_name=self.group_name,
            min_size="0",
            max_size="1",
            desired_capacity="1",
            vpc_zone_identifier=network.learner_subnets,
            mixed_instances_policy=_instances_policy(plan, template),
        )
        group.override_logical_id(GROUP_LOGICAL_ID)
        # A learner that has not reported by then fails the deployment, and CloudFormation rolls it back.
        group.cfn_options.creation_policy = CfnCreationPolicy(
            resource_signal=CfnResourceSignal(
                count=1, timeout=f"PT{plan.start.instance_limit_s:.0f}S"
            )
        )
        # A backstop that needs neither the guard nor the instance: nothing runs, or is launched, after that.
        autoscaling.CfnScheduledAction(
            self,
            "End",
            auto_scaling_group_name=group.ref,
            start_time=ends_at(),
            min_size=0,
            max_size=0,
            desired_capacity=0,
        )
        acknowledge(
            group,
            "AS3",
            "Messages are not needed: CloudFormation waits for the first launch, an alarm "
            "watches for launches that fail, the guard for silence, and AWS keeps the group's activities",
        )
        acknowledge(
            group, "EC26", "The rule cannot read a launch template; its one volume is encrypted"
        )
        return group


def deployment_variables(
    plan: Plan, results: ResultsStack, guard: GuardStack, actor: ActorFunction | None, **more: str
) -> dict[str, str]:
    """Returns the variables of `runtime.aws.learner.deployment.Deployment` that a stack knows. Absent ones are empty.

    Args:
        more: Other attributes of `Deployment`.
    """
    told = {
        "experiment": plan.name,
        "run": plan.run,
        "stack": Aws.STACK_ID,
        "actor_function": actor.alias.function_arn if actor else "",
        "learner_function": "",
        "provisioned": str(plan.provisioned_actors),
        "cache_url": "",
        "cache_credential": "",
        "actor_credential": "",
        "results_bucket": results.bucket.bucket_name,
        "results_prefix": plan.prefix,
        "ledger_table": guard.ledger.table_name,
        "tail_usd": f"{plan.estimate.tail_usd:.6f}",
        "learner_group": "",
        "learner_resource": "",
        **more,
    }
    return {ENVIRONMENT_PREFIX + name.upper(): value for name, value in told.items()}


def user_data(variables: Mapping[str, str], script: Path = BOOT_SCRIPT) -> str:
    """Returns the script for cloud-init: ``variables``, quoted for the shell, then ``script``. EC2 accepts 16 KiB."""
    exports = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    return "\n".join(["#!/bin/bash", *exports, script.read_text(encoding="utf-8")])


def upload_files(scope: Construct, plan: Plan) -> assets.Asset:
    """Uploads the run's own files, which are not in the image."""
    with learner_files(plan.file, plan.prices) as folder:
        return assets.Asset(scope, "Files", path=str(folder))


def build_image(scope: Construct, plan: Plan) -> ecr_assets.DockerImageAsset:
    """The learner image."""
    with learner_context(plan.package) as folder:
        return ecr_assets.DockerImageAsset(
            scope,
            "Image",
            directory=str(folder),
            platform=PLATFORMS[plan.processor],
            build_args={
                "TORCH": "cuda" if plan.has_gpu else "cpu",
                **environment_arguments(plan.experiment.environment),
            },
        )


def _make_security_group(
    scope: Construct, network: NetworkStack, cache: CacheConstruct | None
) -> ec2.SecurityGroup:
    group = ec2.SecurityGroup(
        scope,
        "SecurityGroup",
        vpc=network.vpc,
        allow_all_outbound=False,
        description="Nitro learner: out to the cache and AWS",
    )
    group.add_egress_rule(ec2.Peer.any_ipv4(), ec2.Port.tcp(HTTPS_PORT), "AWS")
    if network.is_own:
        # Security groups let Amazon's name servers through, but not those of an organisation.
        for port in (ec2.Port.udp(DNS_PORT), ec2.Port.tcp(DNS_PORT)):
            group.add_egress_rule(ec2.Peer.any_ipv4(), port, "name servers")
    if cache is not None:
        port = ec2.Port.tcp(CACHE_PORT)
        group.add_egress_rule(cache.group, port, "the trajectory cache")
        cache.group.add_ingress_rule(group, port, "learner")
    return group


def grant_run(role: iam.Role, plan: Plan, results: ResultsStack, files: assets.Asset) -> None:
    """Lets ``role`` keep the run's objects, read its own files, and write metrics."""
    for statement in (
        iam.PolicyStatement(
            sid="Results",
            actions=["s3:GetObject", "s3:PutObject"],
            resources=[results.bucket.arn_for_objects(f"{plan.prefix}*")],
        ),
        iam.PolicyStatement(
            sid="OldCheckpoints",
            actions=["s3:DeleteObject"],
            resources=[results.bucket.arn_for_objects(f"{plan.prefix}checkpoints/*")],
        ),
        iam.PolicyStatement(
            sid="ListResults",
            actions=["s3:ListBucket"],
            resources=[results.bucket.bucket_arn],
            conditions={"StringLike": {"s3:prefix": f"{plan.prefix}*"}},
        ),
        iam.PolicyStatement(
            sid="OwnFiles",
            actions=["s3:GetObject"],
            resources=[files.bucket.arn_for_objects(files.s3_object_key)],
        ),
        iam.PolicyStatement(
            sid="Metrics",
            actions=["cloudwatch:PutMetricData"],
            resources=["*"],
            conditions={"StringEquals": {"cloudwatch:namespace": METRIC_NAMESPACE}},
        ),
    ):
        role.add_to_policy(statement)
    acknowledge_wildcard(
        role, f"{results.arn_export}/{plan.prefix}*", "The objects of this one run"
    )
    acknowledge_wildcard(
        role, f"{results.arn_export}/{plan.prefix}checkpoints/*", "All but its newest checkpoints"
    )


def _image_statements(image: ecr_assets.DockerImageAsset) -> list[iam.PolicyStatement]:
    return [
        iam.PolicyStatement(
            sid="RegistryToken", actions=["ecr:GetAuthorizationToken"], resources=["*"]
        ),
        iam.PolicyStatement(
            sid="OwnImage",
            resources=[image.repository.repository_arn],
            actions=["ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"],
        ),
    ]


def _session_statements() -> list[iam.PolicyStatement]:
    """Returns the rights of Session Manager's agent, which provides a shell without an open port or a key."""
    return [
        iam.PolicyStatement(
            sid="SessionAgent",
            actions=["ssm:UpdateInstanceInformation"],
            resources=[arn_of("ec2", "instance/*")],
        ),
        iam.PolicyStatement(
            sid="SessionManager",
            resources=["*"],
            actions=[
                f"ssmmessages:{action}"
                for action in (
                    "CreateControlChannel",
                    "CreateDataChannel",
                    "OpenControlChannel",
                    "OpenDataChannel",
                )
            ],
        ),
    ]


def _instances_policy(
    plan: Plan, template: ec2.LaunchTemplate
) -> autoscaling.CfnAutoScalingGroup.MixedInstancesPolicyProperty:
    group = autoscaling.CfnAutoScalingGroup
    learner = plan.experiment.learner
    is_spot = learner.market == "spot"
    distribution = group.InstancesDistributionProperty(
        on_demand_base_capacity=0,
        on_demand_percentage_above_base_capacity=0 if is_spot else 100,
        spot_allocation_strategy="price-capacity-optimized" if is_spot else None,
        on_demand_allocation_strategy=None if is_spot else "prioritized",
    )
    return group.MixedInstancesPolicyProperty(
        instances_distribution=distribution,
        launch_template=group.LaunchTemplateProperty(
            launch_template_specification=group.LaunchTemplateSpecificationProperty(
                launch_template_id=template.launch_template_id,
                version=template.latest_version_number,
            ),
            overrides=[
                group.LaunchTemplateOverridesProperty(instance_type=name)
                for name in learner.instance_types
            ],
        ),
    )
