"""Additions of `tests.simulators.aws.moto_types` to moto: created as the template says, described by boto3, deleted."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from tests.helpers import is_alive, wait_for
from tests.simulators.aws.moto_server import REGION, ROOT, MotoServer
from tests.simulators.aws.moto_types import IMAGE_ID, IMAGE_PARAMETER_PREFIX, deploy

Client = Callable[[str], Any]

NETWORK, STACK = "TestNetwork", "TestStack"
TAGS = [{"Key": "nitro:run", "Value": "r1"}]
QUOTAS = {"MOTO_LAMBDA_CONCURRENCY_QUOTA": "321", "MOTO_EC2_GPU_VCPU_QUOTA": "8"}
STACK_TAGS = {"nitro:budget-usd": "2.5", "nitro:run": "r1"}
POLICY = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Deny", "Principal": "*", "Action": "sns:Publish"}],
}


def ref(name: str) -> dict[str, Any]:
    return {"Ref": name}


def attribute(name: str, of: str) -> dict[str, Any]:
    return {"Fn::GetAtt": [name, of]}


def resource(kind: str, **properties: Any) -> dict[str, Any]:
    return {"Type": f"AWS::{kind}", "Properties": properties}


def role(service: str) -> dict[str, Any]:
    return resource(
        "IAM::Role",
        AssumeRolePolicyDocument={
            "Version": "2012-10-17",
            "Statement": [
                {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": service}}
            ],
        },
    )


NETWORK_TEMPLATE = {
    "Resources": {
        "Vpc": resource("EC2::VPC", CidrBlock="10.0.0.0/16"),
        "Subnet": resource(
            "EC2::Subnet",
            VpcId=ref("Vpc"),
            CidrBlock="10.0.0.0/24",
            AvailabilityZone={"Fn::Select": [1, {"Fn::GetAZs": ""}]},
        ),
        "Gateway": resource("EC2::InternetGateway"),
        "Attachment": resource(
            "EC2::VPCGatewayAttachment", VpcId=ref("Vpc"), InternetGatewayId=ref("Gateway")
        ),
        "Table": resource("EC2::RouteTable", VpcId=ref("Vpc")),
        "Association": resource(
            "EC2::SubnetRouteTableAssociation", RouteTableId=ref("Table"), SubnetId=ref("Subnet")
        ),
        "Route": {
            **resource(
                "EC2::Route",
                RouteTableId=ref("Table"),
                DestinationCidrBlock="0.0.0.0/0",
                GatewayId=ref("Gateway"),
            ),
            "DependsOn": "Attachment",
        },
        "LogRole": role("vpc-flow-logs.amazonaws.com"),
        "LogGroup": resource("Logs::LogGroup", RetentionInDays=30),
        "FlowLog": resource(
            "EC2::FlowLog",
            ResourceId=ref("Vpc"),
            ResourceType="VPC",
            TrafficType="REJECT",
            LogGroupName=ref("LogGroup"),
            DeliverLogsPermissionArn=attribute("LogRole", "Arn"),
        ),
        "Actors": resource(
            "EC2::SecurityGroup",
            VpcId=ref("Vpc"),
            GroupDescription="actors",
            SecurityGroupEgress=[
                {
                    "IpProtocol": "tcp",
                    "FromPort": 443,
                    "ToPort": 443,
                    "CidrIp": "0.0.0.0/0",
                    "Description": "S3",
                }
            ],
        ),
    },
    "Outputs": {
        name: {"Value": value, "Export": {"Name": f"{NETWORK}:{name}"}}
        for name, value in {
            "Vpc": ref("Vpc"),
            "Subnet": ref("Subnet"),
            "Actors": attribute("Actors", "GroupId"),
        }.items()
    },
}
SUBNETS = [{"Fn::ImportValue": f"{NETWORK}:Subnet"}]
ACTORS = {"Fn::ImportValue": f"{NETWORK}:Actors"}

TEMPLATE = {
    "Parameters": {
        "Image": {
            "Type": "AWS::SSM::Parameter::Value<AWS::EC2::Image::Id>",
            "Default": f"{IMAGE_PARAMETER_PREFIX}some-image/latest/ami-id",
        }
    },
    "Resources": {
        "Bucket": resource(
            "S3::Bucket",
            VersioningConfiguration={"Status": "Enabled"},
            PublicAccessBlockConfiguration={
                "BlockPublicAcls": True,
                "BlockPublicPolicy": "true",
                "IgnorePublicAcls": True,
                "RestrictPublicBuckets": True,
            },
            OwnershipControls={"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]},
            LifecycleConfiguration={
                "Rules": [
                    {
                        "Status": "Enabled",
                        "ExpiredObjectDeleteMarker": True,
                        "NoncurrentVersionExpiration": {"NoncurrentDays": 30},
                    }
                ]
            },
        ),
        "BucketPolicy": resource(
            "S3::BucketPolicy",
            Bucket=ref("Bucket"),
            PolicyDocument={
                "Version": "2012-10-17",
                "Statement": [
                    {
                        "Effect": "Deny",
                        "Principal": "*",
                        "Action": "s3:*",
                        "Resource": {"Fn::Join": ["", [attribute("Bucket", "Arn"), "/*"]]},
                    }
                ],
            },
        ),
        "CacheGroup": resource(
            "EC2::SecurityGroup",
            VpcId={"Fn::ImportValue": f"{NETWORK}:Vpc"},
            GroupDescription="cache",
            Tags=TAGS,
        ),
        "FromActors": resource(
            "EC2::SecurityGroupIngress",
            GroupId=attribute("CacheGroup", "GroupId"),
            IpProtocol="tcp",
            FromPort=6380,
            ToPort=6380,
            SourceSecurityGroupId=ACTORS,
            Description="actors",
        ),
        "ToActors": resource(
            "EC2::SecurityGroupEgress",
            GroupId=attribute("CacheGroup", "GroupId"),
            IpProtocol="tcp",
            FromPort=6381,
            ToPort=6382,
            DestinationSecurityGroupId=ACTORS,
        ),
        "User": resource(
            "ElastiCache::User",
            Engine="valkey",
            UserId="test",
            UserName="test",
            AuthenticationMode={"Type": "iam"},
            AccessString="on ~* -@all +get",
        ),
        "UserGroup": resource(
            "ElastiCache::UserGroup", Engine="valkey", UserGroupId="test", UserIds=[ref("User")]
        ),
        "Serverless": resource(
            "ElastiCache::ServerlessCache",
            Engine="valkey",
            MajorEngineVersion="8",
            ServerlessCacheName="test-cache",
            SubnetIds=SUBNETS,
            SecurityGroupIds=[attribute("CacheGroup", "GroupId")],
            UserGroupId=ref("UserGroup"),
            CacheUsageLimits={"DataStorage": {"Maximum": 2, "Unit": "GB"}},
            Tags=TAGS,
        ),
        "FunctionRole": role("lambda.amazonaws.com"),
        "Function": resource(
            "Lambda::Function",
            FunctionName="test-actor",
            PackageType="Image",
            Architectures=["arm64"],
            Timeout=30,
            Code={"ImageUri": "123456789012.dkr.ecr.us-east-1.amazonaws.com/actors:1"},
            MemorySize=1024,
            Role=attribute("FunctionRole", "Arn"),
            ReservedConcurrentExecutions=32,
            Tags=TAGS,
            VpcConfig={"SubnetIds": SUBNETS, "SecurityGroupIds": [ACTORS]},
        ),
        "Version": resource("Lambda::Version", FunctionName=ref("Function")),
        "Alias": resource(
            "Lambda::Alias",
            FunctionName=ref("Function"),
            Name="live",
            FunctionVersion=attribute("Version", "Version"),
            ProvisionedConcurrencyConfig={"ProvisionedConcurrentExecutions": 5},
        ),
        "Asynchronous": resource(
            "Lambda::EventInvokeConfig",
            FunctionName=ref("Function"),
            MaximumRetryAttempts=0,
            Qualifier={"Fn::Select": [7, {"Fn::Split": [":", ref("Alias")]}]},
            MaximumEventAgeInSeconds=60,
        ),
        "LearnerRole": role("ec2.amazonaws.com"),
        "Profile": resource("IAM::InstanceProfile", Roles=[ref("LearnerRole")]),
        "Template": resource(
            "EC2::LaunchTemplate",
            LaunchTemplateData={
                "ImageId": ref("Image"),
                "IamInstanceProfile": {"Arn": attribute("Profile", "Arn")},
                "NetworkInterfaces": [
                    {"DeviceIndex": 0, "Groups": [attribute("CacheGroup", "GroupId")]}
                ],
                "BlockDeviceMappings": [
                    {
                        "DeviceName": "/dev/sda1",
                        "Ebs": {
                            "VolumeSize": 100,
                            "VolumeType": "gp3",
                            "Encrypted": True,
                            "DeleteOnTermination": True,
                        },
                    }
                ],
                "UserData": {
                    "Fn::Base64": {
                        "Fn::Join": [
                            ":",
                            [
                                attribute("Serverless", "Endpoint.Address"),
                                attribute("Serverless", "Endpoint.Port"),
                            ],
                        ]
                    }
                },
            },
        ),
        "Learner": {
            **resource(
                "AutoScaling::AutoScalingGroup",
                AutoScalingGroupName="test-learner",
                MinSize="0",
                MaxSize="1",
                DesiredCapacity="1",
                VPCZoneIdentifier=SUBNETS,
                Tags=[{**TAGS[0], "PropagateAtLaunch": True}],
                MixedInstancesPolicy={
                    "InstancesDistribution": {"OnDemandPercentageAboveBaseCapacity": 100},
                    "LaunchTemplate": {
                        "LaunchTemplateSpecification": {
                            "LaunchTemplateId": ref("Template"),
                            "Version": attribute("Template", "LatestVersionNumber"),
                        },
                        "Overrides": [
                            {"InstanceType": "g4dn.xlarge"},
                            {"InstanceType": "g5.xlarge"},
                        ],
                    },
                },
            ),
            "CreationPolicy": {"ResourceSignal": {"Count": 1, "Timeout": "PT1500S"}},
        },
        "End": resource(
            "AutoScaling::ScheduledAction",
            AutoScalingGroupName=ref("Learner"),
            MinSize=0,
            MaxSize=0,
            DesiredCapacity=0,
            StartTime="2099-01-01T00:00:00Z",
        ),
        "Target": resource(
            "ApplicationAutoScaling::ScalableTarget",
            MinCapacity=0,
            MaxCapacity=5,
            ServiceNamespace="lambda",
            ScalableDimension="lambda:function:ProvisionedConcurrency",
            ResourceId={
                "Fn::Join": [
                    "",
                    [
                        "function:test-actor:",
                        {"Fn::Select": [7, {"Fn::Split": [":", ref("Alias")]}]},
                    ],
                ]
            },
            ScheduledActions=[
                {
                    "ScheduledActionName": "End",
                    "Schedule": "at(2099-01-01T00:00:00)",
                    "ScalableTargetAction": {"MinCapacity": 0, "MaxCapacity": 0},
                }
            ],
        ),
        "Alarm": resource(
            "CloudWatch::Alarm",
            AlarmDescription="spent",
            ComparisonOperator="GreaterThanThreshold",
            EvaluationPeriods=1,
            MetricName="SpentUsd",
            Namespace="Nitro",
            Period=60,
            Threshold=0.135,
            Statistic="Maximum",
            TreatMissingData="notBreaching",
        ),
        "Dashboard": resource(
            "CloudWatch::Dashboard", DashboardName="test", DashboardBody='{"widgets": []}'
        ),
        "Topic": resource("SNS::Topic"),
        "TopicPolicy": resource("SNS::TopicPolicy", Topics=[ref("Topic")], PolicyDocument=POLICY),
    },
    "Outputs": {
        name: {"Value": value}
        for name, value in {
            "Bucket": ref("Bucket"),
            "CacheGroup": attribute("CacheGroup", "GroupId"),
            "Alias": attribute("Alias", "AliasArn"),
            "Alarm": ref("Alarm"),
            "Serverless": attribute("Serverless", "Endpoint.Address"),
            "Version": attribute("Version", "FunctionArn"),
            "Topic": ref("Topic"),
        }.items()
    },
}


@contextmanager
def in_process() -> Iterator[Client]:
    with mock_aws(), pytest.MonkeyPatch.context() as patch:
        for name, value in QUOTAS.items():
            patch.setenv(name, value)
        yield partial(boto3.client, region_name=REGION)


@contextmanager
def in_a_server() -> Iterator[Client]:
    with MotoServer(**QUOTAS) as server:
        yield server.client


@pytest.fixture(scope="module", params=[in_process, in_a_server], ids=["in_process", "in_a_server"])
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    with request.param() as made:
        yield made


@pytest.fixture
def outputs(client: Client, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The outputs of both stacks, which exist until the test ends."""
    found = {}
    (tmp_path / "manifest.json").write_text(
        json.dumps({"artifacts": {STACK: {"properties": {"tags": STACK_TAGS}}}})
    )
    for name, template in ((NETWORK, NETWORK_TEMPLATE), (STACK, TEMPLATE)):
        file = tmp_path / f"{name}.template.json"
        file.write_text(json.dumps(template))
        found |= deploy(client, file, name)
    yield found
    delete(client)


def delete(client: Client) -> None:
    for name in (STACK, NETWORK):
        client("cloudformation").delete_stack(StackName=name)


def test_a_function_its_alias_and_what_keeps_it_warm(
    client: Client, outputs: dict[str, str]
) -> None:
    functions = client("lambda")
    function = functions.get_function(FunctionName="test-actor")
    configuration = function["Configuration"]
    assert (configuration["PackageType"], configuration["Architectures"]) == ("Image", ["arm64"])
    assert (configuration["MemorySize"], configuration["Timeout"]) == (1024, 30)
    assert configuration["VpcConfig"]["SubnetIds"] == [outputs["Subnet"]]
    assert configuration["VpcConfig"]["SecurityGroupIds"] == [outputs["Actors"]]
    assert function["Code"]["ImageUri"].endswith("/actors:1")
    assert function["Tags"] == {"nitro:run": "r1"}
    assert (
        functions.get_function_concurrency(FunctionName="test-actor")[
            "ReservedConcurrentExecutions"
        ]
        == 32
    )
    alias = functions.get_alias(FunctionName="test-actor", Name="live")
    assert (alias["AliasArn"], alias["FunctionVersion"]) == (outputs["Alias"], "1")
    assert outputs["Version"].endswith(":function:test-actor:1")
    asynchronous = functions.get_function_event_invoke_config(
        FunctionName="test-actor", Qualifier="live"
    )
    assert (asynchronous["MaximumRetryAttempts"], asynchronous["MaximumEventAgeInSeconds"]) == (
        0,
        60,
    )


def test_provisioned_concurrency_is_ready_changes_and_ends(
    client: Client, outputs: dict[str, str]
) -> None:
    functions, alias = client("lambda"), {"FunctionName": "test-actor", "Qualifier": "live"}
    warm = functions.get_provisioned_concurrency_config(**alias)
    assert (warm["Status"], warm["AvailableProvisionedConcurrentExecutions"]) == ("READY", 5)
    functions.put_provisioned_concurrency_config(**alias, ProvisionedConcurrentExecutions=7)
    listed = functions.list_provisioned_concurrency_configs(FunctionName="test-actor")[
        "ProvisionedConcurrencyConfigs"
    ]
    assert [
        (each["FunctionArn"], each["RequestedProvisionedConcurrentExecutions"]) for each in listed
    ] == [(outputs["Alias"], 7)]
    functions.delete_provisioned_concurrency_config(**alias)
    with pytest.raises(functions.exceptions.ProvisionedConcurrencyConfigNotFoundException):
        functions.get_provisioned_concurrency_config(**alias)
    with pytest.raises(functions.exceptions.ResourceNotFoundException):
        functions.put_provisioned_concurrency_config(
            FunctionName="test-actor", Qualifier="dead", ProvisionedConcurrentExecutions=1
        )


def test_the_accounts_limits(client: Client, outputs: dict[str, str]) -> None:
    settings = client("lambda").get_account_settings()
    assert settings["AccountLimit"]["ConcurrentExecutions"] == 321
    assert settings["AccountLimit"]["UnreservedConcurrentExecutions"] == 321 - 32
    quotas = client("service-quotas")
    for code in ("L-DB2E81BA", "L-3819A6DF"):
        assert quotas.get_service_quota(ServiceCode="ec2", QuotaCode=code)["Quota"]["Value"] == 8
    with pytest.raises(ClientError, match="NoSuchResource"):
        quotas.get_service_quota(ServiceCode="ec2", QuotaCode="L-00000000")


def test_a_small_account_refuses_a_reservation(tmp_path: Path, monkeypatch: Any) -> None:
    (template := tmp_path / "small.template.json").write_text(
        json.dumps(
            {
                "Resources": {
                    "Role": role("lambda.amazonaws.com"),
                    "Function": resource(
                        "Lambda::Function",
                        FunctionName="small",
                        PackageType="Image",
                        ReservedConcurrentExecutions=1,
                        Code={"ImageUri": "123456789012.dkr.ecr.us-east-1.amazonaws.com/actors:1"},
                        Role=attribute("Role", "Arn"),
                    ),
                }
            }
        )
    )
    with in_process() as client:
        monkeypatch.setenv("MOTO_LAMBDA_CONCURRENCY_QUOTA", "10")
        with pytest.raises(ClientError, match=r"below its minimum value of \[10\]"):
            deploy(client, template, "Small")


def test_a_serverless_cache_its_user_and_the_users_group(
    client: Client, outputs: dict[str, str]
) -> None:
    caches = client("elasticache")
    [cache] = caches.describe_serverless_caches(ServerlessCacheName="test-cache")[
        "ServerlessCaches"
    ]
    assert cache["Endpoint"] == {"Address": outputs["Serverless"], "Port": 6379}
    assert (cache["Status"], cache["UserGroupId"], cache["SubnetIds"]) == (
        "available",
        "test",
        [outputs["Subnet"]],
    )
    assert cache["SecurityGroupIds"] == [outputs["CacheGroup"]]
    assert cache["CacheUsageLimits"]["DataStorage"]["Maximum"] == 2
    assert caches.list_tags_for_resource(ResourceName=cache["ARN"])["TagList"] == TAGS
    [group] = caches.describe_user_groups(UserGroupId="test")["UserGroups"]
    assert group["UserIds"] == ["test"]
    [user] = caches.describe_users(UserId="test")["Users"]
    assert (user["AccessString"], user["Authentication"]["Type"]) == ("on ~* -@all +get", "iam")


def test_a_serverless_cache_is_deleted_without_its_stack(
    client: Client, outputs: dict[str, str]
) -> None:
    caches = client("elasticache")
    caches.delete_serverless_cache(ServerlessCacheName="test-cache")
    with pytest.raises(caches.exceptions.ServerlessCacheNotFoundFault):
        caches.describe_serverless_caches(ServerlessCacheName="test-cache")
    assert caches.describe_serverless_caches()["ServerlessCaches"] == []


def test_security_groups_let_through_what_the_template_says(
    client: Client, outputs: dict[str, str]
) -> None:
    groups = {
        group["GroupId"]: group
        for group in client("ec2").describe_security_groups(
            GroupIds=[outputs["CacheGroup"], outputs["Actors"]]
        )["SecurityGroups"]
    }
    [out] = groups[outputs["Actors"]]["IpPermissionsEgress"]
    assert (out["FromPort"], out["ToPort"], out["IpRanges"]) == (
        443,
        443,
        [{"CidrIp": "0.0.0.0/0", "Description": "S3"}],
    )
    cache = groups[outputs["CacheGroup"]]
    [inward] = cache["IpPermissions"]
    assert (inward["FromPort"], inward["UserIdGroupPairs"][0]["GroupId"]) == (
        6380,
        outputs["Actors"],
    )
    outward = {rule.get("FromPort"): rule for rule in cache["IpPermissionsEgress"]}
    assert set(outward) == {None, 6381}
    assert (outward[6381]["ToPort"], outward[6381]["UserIdGroupPairs"][0]["GroupId"]) == (
        6382,
        outputs["Actors"],
    )


def test_a_bucket_is_closed_versioned_and_tidied(client: Client, outputs: dict[str, str]) -> None:
    store, bucket = client("s3"), {"Bucket": outputs["Bucket"]}
    assert store.get_bucket_versioning(**bucket)["Status"] == "Enabled"
    assert all(store.get_public_access_block(**bucket)["PublicAccessBlockConfiguration"].values())
    [rule] = store.get_bucket_lifecycle_configuration(**bucket)["Rules"]
    assert rule["NoncurrentVersionExpiration"]["NoncurrentDays"] == 30
    assert rule["Expiration"]["ExpiredObjectDeleteMarker"] is True
    [ownership] = store.get_bucket_ownership_controls(**bucket)["OwnershipControls"]["Rules"]
    assert ownership == {"ObjectOwnership": "BucketOwnerEnforced"}
    [statement] = json.loads(store.get_bucket_policy(**bucket)["Policy"])["Statement"]
    assert statement["Resource"] == f"arn:aws:s3:::{outputs['Bucket']}/*"


def test_one_instance_runs_and_desired_zero_ends_it(
    client: Client, outputs: dict[str, str]
) -> None:
    groups, machines = client("autoscaling"), client("ec2")
    [instance] = instances(client)
    assert (instance["InstanceType"], instance["ImageId"], instance["SubnetId"]) == (
        "g4dn.xlarge",
        IMAGE_ID,
        outputs["Subnet"],
    )
    assert [group["GroupId"] for group in instance["SecurityGroups"]] == [outputs["CacheGroup"]]
    assert TAGS[0] in instance["Tags"]
    user_data = machines.describe_instance_attribute(
        InstanceId=instance["InstanceId"], Attribute="userData"
    )
    assert (
        base64.b64decode(user_data["UserData"]["Value"]).decode() == f"{outputs['Serverless']}:6379"
    )
    groups.set_desired_capacity(AutoScalingGroupName="test-learner", DesiredCapacity=0)
    assert instances(client) == []
    [group] = groups.describe_auto_scaling_groups(AutoScalingGroupNames=["test-learner"])[
        "AutoScalingGroups"
    ]
    assert (group["DesiredCapacity"], group["Instances"]) == (0, [])


def test_its_disk_is_the_templates_alone(client: Client, outputs: dict[str, str]) -> None:
    [instance] = instances(client)
    [volume] = client("ec2").describe_volumes()["Volumes"]
    assert (volume["Size"], volume["Encrypted"]) == (100, True)
    assert [one["InstanceId"] for one in volume["Attachments"]] == [instance["InstanceId"]]


def test_one_that_is_terminated_is_replaced_as_long_as_its_group_wants_one(
    client: Client, outputs: dict[str, str]
) -> None:
    groups, machines = client("autoscaling"), client("ec2")
    [first] = instances(client)
    machines.terminate_instances(InstanceIds=[first["InstanceId"]])
    [second] = instances(client)
    assert second["InstanceId"] != first["InstanceId"]
    assert TAGS[0] in second["Tags"]
    [group] = groups.describe_auto_scaling_groups(AutoScalingGroupNames=["test-learner"])[
        "AutoScalingGroups"
    ]
    assert [one["InstanceId"] for one in group["Instances"]] == [second["InstanceId"]]
    machines.terminate_instances(InstanceIds=[first["InstanceId"]])
    assert instances(client) == [second]
    groups.update_auto_scaling_group(
        AutoScalingGroupName="test-learner", MinSize=0, MaxSize=0, DesiredCapacity=0
    )
    machines.terminate_instances(InstanceIds=[second["InstanceId"]])
    assert (instances(client), machines.describe_volumes()["Volumes"]) == ([], [])


def test_a_stack_has_the_tags_that_its_assembly_gives_it(
    client: Client, outputs: dict[str, str]
) -> None:
    formation = client("cloudformation")
    tags = {
        name: {
            tag["Key"]: tag["Value"]
            for tag in formation.describe_stacks(StackName=name)["Stacks"][0]["Tags"]
        }
        for name in (NETWORK, STACK)
    }
    assert tags == {NETWORK: {}, STACK: STACK_TAGS}


def test_a_stack_takes_the_signal_that_it_would_wait_for_and_no_more(
    client: Client, outputs: dict[str, str]
) -> None:
    formation = client("cloudformation")

    def tell(resource: str = "Learner", status: str = "SUCCESS") -> None:
        formation.signal_resource(
            StackName=STACK, LogicalResourceId=resource, UniqueId="i-1", Status=status
        )

    with pytest.raises(ClientError, match="Resource Nothing does not exist"):
        tell("Nothing")
    tell()
    [event] = [
        event
        for event in formation.describe_stack_events(StackName=STACK)["StackEvents"]
        if event["LogicalResourceId"] == "Learner"
    ]
    assert event["ResourceStatusReason"] == "Received SUCCESS signal with UniqueId i-1"
    assert event["ResourceType"] == "AWS::AutoScaling::AutoScalingGroup"
    for resource in ("Learner", "Function"):
        with pytest.raises(
            ClientError,
            match=r"ValidationError.* is in CREATE_COMPLETE state and cannot be signaled",
        ):
            tell(resource, "FAILURE")


def test_a_topics_policy(client: Client, outputs: dict[str, str]) -> None:
    attributes = client("sns").get_topic_attributes(TopicArn=outputs["Topic"])["Attributes"]
    assert json.loads(attributes["Policy"]) == POLICY


def instances(client: Client) -> list[dict[str, Any]]:
    found = client("ec2").describe_instances(
        Filters=[{"Name": "instance-state-name", "Values": ["running"]}]
    )
    return [
        instance for reservation in found["Reservations"] for instance in reservation["Instances"]
    ]


def test_an_alarm(client: Client, outputs: dict[str, str]) -> None:
    [alarm] = client("cloudwatch").describe_alarms(AlarmNames=[outputs["Alarm"]])["MetricAlarms"]
    assert (alarm["Threshold"], alarm["Period"], alarm["TreatMissingData"]) == (
        0.135,
        60,
        "notBreaching",
    )


def everything(client: Client) -> dict[str, int]:
    """Counts each kind of resource that the templates create."""
    kinds = {
        "ec2": (
            "describe_vpcs",
            "describe_subnets",
            "describe_route_tables",
            "describe_internet_gateways",
            "describe_flow_logs",
            "describe_security_groups",
            "describe_launch_templates",
            "describe_network_interfaces",
            "describe_volumes",
        ),
        "elasticache": (
            "describe_users",
            "describe_user_groups",
            "describe_serverless_caches",
        ),
        "lambda": ("list_functions",),
        "autoscaling": ("describe_auto_scaling_groups",),
        "s3": ("list_buckets",),
        "cloudwatch": ("describe_alarms", "list_dashboards"),
        "logs": ("describe_log_groups",),
        "iam": ("list_roles", "list_instance_profiles"),
        "cloudformation": ("list_exports",),
        "sns": ("list_topics",),
    }
    counts = {
        operation: sum(
            len(value)
            for value in getattr(client(service), operation)().values()
            if isinstance(value, list)
        )
        for service, operations in kinds.items()
        for operation in operations
    }
    return {**counts, "instances": len(instances(client))}


def test_deleting_the_stacks_leaves_nothing(
    client: Client, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    before = everything(client)
    request.getfixturevalue("outputs")
    during = everything(client)
    assert [kind for kind in before if during[kind] <= before[kind]] == []
    formation = client("cloudformation")
    stack = formation.describe_stacks(StackName=STACK)["Stacks"][0]["StackId"]
    had = [
        one["PhysicalResourceId"]
        for one in formation.list_stack_resources(StackName=stack)["StackResourceSummaries"]
    ]
    delete(client)
    assert everything(client) == before
    # Asking for resources that CloudFormation remembers does not create them again.
    assert {"test-actor", "test-learner", "test-cache"} <= set(had)
    assert [
        one["PhysicalResourceId"]
        for one in formation.list_stack_resources(StackName=stack)["StackResourceSummaries"]
    ] == had
    assert everything(client) == before


def test_a_property_that_the_service_does_not_know_is_refused(tmp_path: Path) -> None:
    template = tmp_path / "wrong.template.json"
    template.write_text(
        json.dumps({"Resources": {"User": resource("ElastiCache::User", UserID="test")}})
    )
    with in_process() as client, pytest.raises(ValueError, match="UserID"):
        deploy(client, template, "Wrong")


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the clock, in seconds."""
    monkeypatch.setenv("MOTO_CLOCK", str(tmp_path / "clock"))
    monkeypatch.setenv("MOTO_FAULTS", str(tmp_path / "faults"))

    def set_clock(now_s: float) -> None:
        (tmp_path / "clock").write_text(f"0 {now_s} 0")

    set_clock(0.0)
    return set_clock


def test_by_the_clock_a_stack_waits_for_its_signal_or_is_taken_back(
    at: Callable[[float], None], tmp_path: Path
) -> None:
    template = tmp_path / "waits.template.json"
    template.write_text(
        json.dumps(
            {
                "Resources": {
                    "Cache": resource(
                        "ElastiCache::ServerlessCache", Engine="valkey", ServerlessCacheName="waits"
                    ),
                    "Topic": resource(
                        "SNS::Topic", TopicName="waits", DisplayName=attribute("Cache", "ARN")
                    )
                    | {"CreationPolicy": {"ResourceSignal": {"Count": 1, "Timeout": "PT600S"}}},
                },
                "Outputs": {"At": {"Value": attribute("Cache", "Endpoint.Port")}},
            }
        )
    )
    with in_process() as client:
        formation = client("cloudformation")

        def status(name: str) -> str:
            return formation.describe_stacks(StackName=name)["Stacks"][0]["StackStatus"]

        def caches() -> list[str]:
            return [
                one["Status"]
                for one in client("elasticache").describe_serverless_caches()["ServerlessCaches"]
            ]

        assert deploy(client, template, "Good") == {}, "none before all of it is there"
        assert status("Good") == "CREATE_IN_PROGRESS"
        formation.signal_resource(
            StackName="Good", LogicalResourceId="Topic", UniqueId="i-1", Status="SUCCESS"
        )
        at(1000.0)
        assert (status("Good"), caches()) == ("CREATE_COMPLETE", ["available"])
        formation.delete_stack(StackName="Good")
        deploy(client, template, "Late")
        at(1600.0)
        assert (status("Late"), caches()) == ("ROLLBACK_IN_PROGRESS", [])
        with pytest.raises(
            ClientError, match="cannot be deleted while in status ROLLBACK_IN_PROGRESS"
        ):
            formation.delete_stack(StackName="Late")
        at(1660.0)
        assert (status("Late"), client("sns").list_topics()["Topics"]) == ("ROLLBACK_COMPLETE", [])
        (tmp_path / "faults").write_text(
            json.dumps({"creation": {"AWS::ElastiCache::ServerlessCache": [300.0, "no room"]}})
        )
        deploy(client, template, "Failed")
        assert (caches(), client("sns").list_topics()["Topics"]) == (["creating"], [])
        with pytest.raises(ClientError, match="InvalidServerlessCacheState"):
            client("elasticache").delete_serverless_cache(ServerlessCacheName="waits")
        at(1960.0)
        assert (status("Failed"), caches()) == ("ROLLBACK_IN_PROGRESS", [])


def test_by_the_clock_what_is_scheduled_is_done(
    at: Callable[[float], None], tmp_path: Path
) -> None:
    (tmp_path / "manifest.json").write_text(
        json.dumps({"artifacts": {STACK: {"properties": {"tags": STACK_TAGS}}}})
    )

    def deploy_both(client: Client, group: str = "test-learner") -> None:
        for name, template in ((NETWORK, NETWORK_TEMPLATE), (STACK, TEMPLATE)):
            file = tmp_path / f"{name}.template.json"
            file.write_text(json.dumps(template).replace("test-learner", group))
            deploy(client, file, name)

    with in_process() as client:
        deploy_both(client, group="of-an-account-that-is-no-more")
    with in_process() as client:
        formation, functions = client("cloudformation"), client("lambda")

        def left() -> tuple[int, int, bool]:
            formation.describe_stacks(StackName=STACK)
            [group] = client("autoscaling").describe_auto_scaling_groups(
                AutoScalingGroupNames=["test-learner"]
            )["AutoScalingGroups"]
            try:
                functions.get_provisioned_concurrency_config(
                    FunctionName="test-actor", Qualifier="live"
                )
            except functions.exceptions.ProvisionedConcurrencyConfigNotFoundException:
                return len(instances(client)), group["MaxSize"], False
            return len(instances(client)), group["MaxSize"], True

        deploy_both(client)
        formation.signal_resource(
            StackName=STACK, LogicalResourceId="Learner", UniqueId="i-1", Status="SUCCESS"
        )
        ends_s = 4_070_908_800.0
        at(ends_s - 1.0)
        assert left() == (1, 1, True)
        at(ends_s)
        assert left() == (0, 0, False)


@pytest.mark.parametrize(
    "time", ["2099-01-01 00:00:00", "2099-01-01T00:00:00", "2020-01-01T00:00:00Z"]
)
def test_a_scheduled_action_at_no_time_to_come_is_refused(tmp_path: Path, time: str) -> None:
    template = tmp_path / "wrong.template.json"
    template.write_text(
        json.dumps(
            {
                "Resources": {
                    "End": resource(
                        "AutoScaling::ScheduledAction",
                        AutoScalingGroupName="any",
                        MaxSize=0,
                        StartTime=time,
                    )
                }
            }
        )
    )
    with in_process() as client, pytest.raises(ValueError, match=time):
        deploy(client, template, "Wrong")


def test_a_deletion_can_fail_and_a_cache_can_be_somewhere_else(
    tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("MOTO_FAILING_DELETIONS", "Fails=1")
    monkeypatch.setenv("MOTO_ELASTICACHE_ENDPOINT", "127.0.0.1:7001")
    template = tmp_path / "cache.template.json"
    template.write_text(
        json.dumps(
            {
                "Resources": {
                    "Cache": resource(
                        "ElastiCache::ServerlessCache", Engine="valkey", ServerlessCacheName="moved"
                    )
                },
                "Outputs": {
                    "At": {
                        "Value": {
                            "Fn::Join": [
                                ":",
                                [
                                    attribute("Cache", "Endpoint.Address"),
                                    attribute("Cache", "Endpoint.Port"),
                                ],
                            ]
                        }
                    }
                },
            }
        )
    )
    with in_process() as client:
        formation, caches = client("cloudformation"), client("elasticache")
        assert deploy(client, template, "Fails")["At"] == "127.0.0.1:7001"
        stack = formation.describe_stacks(StackName="Fails")["Stacks"][0]["StackId"]
        formation.delete_stack(StackName=stack)
        [failed] = formation.describe_stacks(StackName=stack)["Stacks"]
        assert (failed["StackStatus"], "failed to delete" in failed["StackStatusReason"]) == (
            "DELETE_FAILED",
            True,
        )
        caches.delete_serverless_cache(ServerlessCacheName="moved")
        formation.delete_stack(StackName=stack)
        assert (
            formation.describe_stacks(StackName=stack)["Stacks"][0]["StackStatus"]
            == "DELETE_COMPLETE"
        )
        assert caches.describe_serverless_caches()["ServerlessCaches"] == []


def test_the_server_ends_with_its_parent() -> None:
    script = (
        "import time; from tests.simulators.aws.moto_server import MotoServer\n"
        "with MotoServer() as server: print(server.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as parent:
        server = int(parent.stdout.readline())
        assert is_alive(server)
        parent.send_signal(signal.SIGKILL)
    wait_for(lambda: not is_alive(server), "the server to end")


def test_the_server_forgets_everything_when_reset() -> None:
    with MotoServer() as server:
        server.client("sqs").create_queue(QueueName="test")
        server.reset()
        assert "QueueUrls" not in server.client("sqs").list_queues()
