"""Network, results and guard: shared, cheap when idle, and unchanged by any experiment's deployment."""

from __future__ import annotations

import json
import re
from pathlib import Path

import aws_cdk as cdk
import pytest

from runtime.errors import ExperimentError
from runtime.guard.check import VERSION_TYPE
from stacks.guard import GuardStack
from stacks.network import NetworkStack
from stacks.plan import zone_names
from stacks.results import ResultsStack
from tests.stacks.conftest import SETTINGS, Assembly, Synthesise, flat

SHARED = ("NitroGuard", "NitroNetwork", "NitroResults")
ALWAYS_ON = {"AWS::Lambda::Function", "AWS::Lambda::Permission", "AWS::Events::Rule", "AWS::DynamoDB::Table",
             "AWS::SNS::Topic", "AWS::SNS::TopicPolicy", "AWS::CloudWatch::Alarm", "AWS::Lambda::EventInvokeConfig",
             "AWS::Logs::MetricFilter"}
"""The guard's resources: about 60 cents a month, as docs/guides/cost.md adds up."""
FREE_WHEN_IDLE = {
    "AWS::EC2::VPC", "AWS::EC2::Subnet", "AWS::EC2::RouteTable", "AWS::EC2::SubnetRouteTableAssociation",
    "AWS::EC2::Route", "AWS::EC2::InternetGateway", "AWS::EC2::VPCGatewayAttachment", "AWS::EC2::VPCEndpoint",
    "AWS::EC2::SecurityGroup", "AWS::EC2::FlowLog", "AWS::IAM::Role", "AWS::IAM::Policy", "AWS::Logs::LogGroup",
    "AWS::S3::Bucket", "AWS::S3::BucketPolicy", VERSION_TYPE,
}


@pytest.mark.parametrize("stack", SHARED)
def test_they_do_not_depend_on_the_experiment(synthesise: Synthesise, stack: str) -> None:
    others = [synthesise(cache="node"), synthesise(cache="learner"), synthesise(name="ant-x"),
              synthesise(context={"actor_concurrency": "10"}, actor__provisioned=6)]
    template = f"{stack}.template.json"
    first = (synthesise().directory / template).read_bytes()
    assert [(other.directory / template).read_bytes() == first for other in others] == [True] * len(others)


def test_exports_do_not_wait_for_an_experiment_that_imports(each_kind: Assembly) -> None:
    app = cdk.App(context=SETTINGS)
    results = ResultsStack(app, "NitroResults")
    network = NetworkStack(app, "NitroNetwork", zones=None, results_bucket=results.bucket)
    GuardStack(app, "NitroGuard", network=network)
    alone = Path(app.synth().directory)
    for stack in SHARED:
        assert json.loads((alone / f"{stack}.template.json").read_text()) == each_kind.template(stack)


@pytest.mark.parametrize("stack", SHARED)
def test_what_experiments_import_is_exported(each_kind: Assembly, stack: str) -> None:
    exported = {output["Export"]["Name"] for output in each_kind.template(stack)["Outputs"].values()
                if "Export" in output}
    imported = set(re.findall(rf'"Fn::ImportValue": "({stack}:[^"]+)"', (
        each_kind.directory / f"{each_kind.stack}.template.json").read_text()))
    assert imported
    assert imported <= exported


@pytest.mark.parametrize("stack", SHARED)
def test_idle_they_cost_next_to_nothing(serverless: Assembly, stack: str) -> None:
    resources = serverless.template(stack)["Resources"].values()
    assert {resource["Type"] for resource in resources} <= FREE_WHEN_IDLE | (
        ALWAYS_ON if stack == "NitroGuard" else set())
    assert all(resource["Properties"]["VpcEndpointType"] == "Gateway" for resource in resources
               if resource["Type"] == "AWS::EC2::VPCEndpoint")


def test_three_zones_of_public_and_isolated_subnets(serverless: Assembly) -> None:
    subnets = serverless.resources("AWS::EC2::Subnet", "NitroNetwork")
    zones = {name: found["Properties"]["AvailabilityZone"]["Fn::Select"][0] for name, found in subnets.items()}
    assert sorted(zone for name, zone in zones.items() if "Public" in name) == [0, 1, 2]
    assert sorted(zone for name, zone in zones.items() if "Isolated" in name) == [0, 1, 2]
    assert not any(found["Properties"]["MapPublicIpOnLaunch"] for found in subnets.values())


def test_zones_that_nobody_chose_are_warned_about(synthesise: Synthesise) -> None:
    def warned(made: Assembly) -> bool:
        return any("nitro:zones" in path.read_text() for path in made.directory.glob("*.json"))

    assert warned(synthesise())
    assert not warned(synthesise(context={"zones": "us-east-1b,us-east-1d"}))


def test_named_zones(synthesise: Synthesise) -> None:
    made = synthesise(context={"zones": "us-east-1b,us-east-1d"})
    subnets = made.resources("AWS::EC2::Subnet", "NitroNetwork").values()
    zones = sorted(found["Properties"]["AvailabilityZone"] for found in subnets)
    assert zones == ["us-east-1b"] * 2 + ["us-east-1d"] * 2
    assert len(made.only("AWS::ElastiCache::ServerlessCache")["SubnetIds"]) == 2


@pytest.mark.parametrize("zones", ["", "us-east-1a", "us-east-1a,us-east-1a", "a,b", "us-east-1", 3,
                                   "us-east-1a,us-east-1b,us-east-1c,us-east-1d"])
def test_zones_that_are_refused(zones: object) -> None:
    with pytest.raises(ExperimentError, match="two or three availability zones"):
        zone_names(zones)


def test_isolated_means_no_way_out(serverless: Assembly) -> None:
    routes = serverless.resources("AWS::EC2::Route", "NitroNetwork")
    assert len(routes) == 3
    assert all("Public" in flat(route["Properties"]["RouteTableId"]) for route in routes.values())
    endpoints = serverless.resources("AWS::EC2::VPCEndpoint", "NitroNetwork").values()
    assert all("Isolated" in flat(table) for found in endpoints for table in found["Properties"]["RouteTableIds"])


def test_actors_reach_caches_and_s3_and_nothing_reaches_them(serverless: Assembly) -> None:
    (group,) = serverless.resources("AWS::EC2::SecurityGroup", "NitroNetwork").values()
    out = [(flat(rule["CidrIp"]), rule["IpProtocol"], rule["FromPort"], rule["ToPort"])
           for rule in group["Properties"]["SecurityGroupEgress"]]
    (vpc,) = serverless.resources("AWS::EC2::VPC", "NitroNetwork")
    assert out == [(f"<{vpc}.CidrBlock>", "tcp", 6379, 6379), (f"<{vpc}.CidrBlock>", "tcp", 6380, 6380),
                   ("0.0.0.0/0", "tcp", 443, 443)]
    assert "SecurityGroupIngress" not in group["Properties"]


def test_refused_traffic_is_logged_for_a_while(serverless: Assembly) -> None:
    assert serverless.only("AWS::EC2::FlowLog", "NitroNetwork")["TrafficType"] == "REJECT"
    assert serverless.only("AWS::Logs::LogGroup", "NitroNetwork")["RetentionInDays"] == 30


def test_results_are_kept_encrypted_and_private(serverless: Assembly) -> None:
    (bucket,) = serverless.resources("AWS::S3::Bucket", "NitroResults").values()
    assert (bucket["DeletionPolicy"], bucket["UpdateReplacePolicy"]) == ("Retain", "Retain")
    properties = bucket["Properties"]
    assert properties["BucketEncryption"]["ServerSideEncryptionConfiguration"] == [
        {"ServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]
    assert set(properties["PublicAccessBlockConfiguration"].values()) == {True}
    assert len(properties["PublicAccessBlockConfiguration"]) == 4
    assert properties["OwnershipControls"]["Rules"] == [{"ObjectOwnership": "BucketOwnerEnforced"}]
    assert "BucketName" not in properties


def test_replaced_versions_and_broken_uploads_are_not_kept_for_ever(serverless: Assembly) -> None:
    properties = serverless.only("AWS::S3::Bucket", "NitroResults")
    assert properties["VersioningConfiguration"] == {"Status": "Enabled"}
    assert properties["LifecycleConfiguration"]["Rules"] == [{
        "Status": "Enabled", "NoncurrentVersionExpiration": {"NoncurrentDays": 1},
        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7}, "ExpiredObjectDeleteMarker": True}]


def test_the_bucket_answers_over_tls_only(serverless: Assembly) -> None:
    (statement,) = serverless.only("AWS::S3::BucketPolicy", "NitroResults")["PolicyDocument"]["Statement"]
    assert (statement["Effect"], statement["Action"]) == ("Deny", "s3:*")
    assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
    assert len(statement["Resource"]) == 2
