"""A learner that ends removes resources that cost money and are useless without it."""

from __future__ import annotations

from collections.abc import Iterator

import boto3
import pytest
from moto import mock_aws

import tests.simulators.aws.moto_types  # noqa: F401
from runtime.aws.learner.deployment import Deployment
from runtime.aws.learner.stack import release
from tests.aws.learner.test_deployment import VALUES

GROUP = "Nitro-small-learner"


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Creates an account with a prewarmed actor function and a group of one learner; returns the alias' ARN."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with mock_aws():
        monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
        role = boto3.client("iam").create_role(RoleName="actor", AssumeRolePolicyDocument="{}")[
            "Role"
        ]["Arn"]
        functions = boto3.client("lambda")
        functions.create_function(
            FunctionName="actor",
            Role=role,
            PackageType="Image",
            Code={"ImageUri": "123456789012.dkr.ecr.us-east-1.amazonaws.com/actor:1"},
        )
        version = functions.publish_version(FunctionName="actor")["Version"]
        alias = functions.create_alias(FunctionName="actor", Name="live", FunctionVersion=version)[
            "AliasArn"
        ]
        functions.put_provisioned_concurrency_config(
            FunctionName="actor", Qualifier="live", ProvisionedConcurrentExecutions=2
        )
        groups = boto3.client("autoscaling")
        groups.create_launch_configuration(
            LaunchConfigurationName="learner", ImageId="ami-12c6146b", InstanceType="g4dn.xlarge"
        )
        groups.create_auto_scaling_group(
            AutoScalingGroupName=GROUP,
            LaunchConfigurationName="learner",
            MinSize=0,
            MaxSize=1,
            DesiredCapacity=1,
            AvailabilityZones=["us-east-1a"],
        )
        yield alias


def warm() -> list[dict]:
    return boto3.client("lambda").list_provisioned_concurrency_configs(FunctionName="actor")[
        "ProvisionedConcurrencyConfigs"
    ]


def desired() -> int:
    (group,) = boto3.client("autoscaling").describe_auto_scaling_groups(
        AutoScalingGroupNames=[GROUP]
    )["AutoScalingGroups"]
    return group["DesiredCapacity"]


def deployment(alias: str, provisioned: str) -> Deployment:
    return Deployment(
        **VALUES | {"actor_function": alias, "learner_group": GROUP, "provisioned": provisioned}
    )


def test_neither_warm_actors_nor_the_instance_stay(aws: str):
    assert (len(warm()), desired()) == (1, 1)
    release(deployment(aws, "2"))
    assert (warm(), desired()) == ([], 0)


def test_where_nothing_is_kept_warm_nothing_is_taken_away(aws: str):
    release(deployment(aws, "0"))
    assert (len(warm()), desired()) == (1, 0)


def test_the_instance_ends_even_where_the_warm_actors_cannot_go(
    aws: str, caplog: pytest.LogCaptureFixture
):
    boto3.client("lambda").delete_function(FunctionName="actor")
    release(deployment(aws, "2"))
    assert "the warm actors stay, and cost money" in caplog.text
    assert desired() == 0
