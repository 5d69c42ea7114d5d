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
from runtime.money.model import volume_gib
from runtime.names import CACHE_PORT, ENVIRONMENT_PREFIX, LEARNER_SUFFIX, METRIC_NAMESPACE
from stacks.constructs.actor_function import PLATFORMS, ActorFunction, environment_arguments
from stacks.constructs.cache import CacheConstruct
from stacks.constructs.roles import (
    acknowledge,
    allow,
    arn_of,
    log_statement,
    make_log_group,
    make_role,
    service,
)
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
        group_name: Physical name of the Auto Scaling group, which replaces an instance that dies or is interrupted. So
            the instance's role can name the group without waiting for it.
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
        self._log_group = make_log_group(self)
        files = upload_files(self, plan)
        container = build_image(self, plan)
        machine = ec2.MachineImage.from_ssm_parameter(
            machine_image(plan.experiment.learner.instance_types)
        )
        group_resource = f"autoScalingGroup:*:autoScalingGroupName/{self.group_name}"
        rights = [
            *run_statements(plan, results, files),
            *guard.ledger_statements(plan.key),
            log_statement(self._log_group),
            allow("RegistryToken", ["ecr:GetAuthorizationToken"]),
            allow(
                "OwnImage",
                ["ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"],
                [container.repository.repository_arn],
            ),
            # It signals that it is up, reads its own stack, and ends its group.
            allow(
                "OwnStack",
                ["cloudformation:SignalResource", "cloudformation:DescribeStacks"],
                [Aws.STACK_ID],
            ),
            allow(
                "OwnGroup",
                ["autoscaling:SetDesiredCapacity"],
                [arn_of("autoscaling", group_resource)],
            ),
            *(actor.statements if actor else []),
            *([cache.learner_statement] if cache else []),
        ]
        role = make_role(self, "Role", "What the learner may do", service("ec2"), rights)
        variables = {
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
                files=files.s3_object_url,
            ),
            "AWS_DEFAULT_REGION": Aws.REGION,
            "BOOT_IMAGE": container.image_uri,
            "BOOT_GPUS": "all" if plan.has_gpu else "",
            "BOOT_ENDS_AT": ends_at(),
            "BOOT_LAUNCHES_MAX": str(LAUNCHES_MAX),
            # The guard limits the phases before. The first actors have what is left of CloudFormation's timeout.
            "BOOT_LIMIT_S": f"{plan.start.limit_s('image'):.0f}",
            "BOOT_LOG_GROUP": self._log_group.log_group_name,
        }
        security_group = _make_security_group(self, network, cache)
        template = ec2.LaunchTemplate(
            self,
            "Template",
            machine_image=machine,
            role=role,
            security_group=security_group,
            associate_public_ip_address=not network.is_own,
            user_data=ec2.UserData.custom(user_data(variables)),
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
                        volume_gib(plan.experiment.learner.instance_types),
                        volume_type=ec2.EbsDeviceVolumeType.GP3,
                        encrypted=True,
                        delete_on_termination=True,
                    ),
                )
            ],
        )
        if disk_key is not None:
            made = template.node.default_child
            assert isinstance(made, ec2.CfnLaunchTemplate)
            made.add_property_override(
                "LaunchTemplateData.BlockDeviceMappings.0.Ebs.KmsKeyId", disk_key
            )
        group = self._make_group(plan, network, template)
        # The instance costs the most, so it comes last, after everything that it needs.
        group.node.add_dependency(
            security_group, *(one for one in (actor, cache) if one is not None)
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
            vpc_zone_identifier=network.subnets,
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
            "Messages are not needed: CloudFormation waits for the first launch, the guard watches for "
            "silence, and AWS keeps the group's activities",
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
    values = {
        "experiment": plan.name,
        "run": plan.run,
        "stack": Aws.STACK_ID,
        "actor_function": actor.arn if actor else "",
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
    return {ENVIRONMENT_PREFIX + name.upper(): value for name, value in values.items()}


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


def files_statement(files: assets.Asset) -> iam.PolicyStatement:
    """Returns the right to read the run's own files."""
    return allow("OwnFiles", ["s3:GetObject"], [files.bucket.arn_for_objects(files.s3_object_key)])


def run_statements(
    plan: Plan, results: ResultsStack, files: assets.Asset
) -> list[iam.PolicyStatement]:
    """Returns the rights to keep the run's objects, read its own files, and write metrics."""
    objects = f"{results.arn}/{plan.prefix}"
    return [
        allow("Results", ["s3:GetObject", "s3:PutObject"], [f"{objects}*"]),
        allow("OldCheckpoints", ["s3:DeleteObject"], [f"{objects}checkpoints/*"]),
        allow(
            "ListResults",
            ["s3:ListBucket"],
            [results.arn],
            {"StringLike": {"s3:prefix": f"{plan.prefix}*"}},
        ),
        files_statement(files),
        allow(
            "Metrics",
            ["cloudwatch:PutMetricData"],
            conditions={"StringEquals": {"cloudwatch:namespace": METRIC_NAMESPACE}},
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
