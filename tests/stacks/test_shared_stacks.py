"""Network, results and guard: shared, cheap when idle, and unchanged by any experiment's deployment."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import aws_cdk as cdk
import pytest

from runtime.aws.guard.check import VERSION_TYPE
from stacks.guard import GuardStack
from stacks.network import NetworkStack
from stacks.results import ResultsStack
from tests.stacks.conftest import SETTINGS, Assembly, Synthesise, flat

SHARED = ("NitroGuard", "NitroNetwork", "NitroResults")
ALWAYS_ON = {
    "AWS::Lambda::Function",
    "AWS::Lambda::Permission",
    "AWS::Events::Rule",
    "AWS::DynamoDB::Table",
    "AWS::SNS::Topic",
    "AWS::SNS::TopicPolicy",
    "AWS::CloudWatch::Alarm",
    "AWS::Lambda::EventInvokeConfig",
    "AWS::Logs::MetricFilter",
}
"""The guard's resources: about 60 cents a month, as docs/guides/cost.md adds up."""
FREE_WHEN_IDLE = {
    "AWS::EC2::VPC",
    "AWS::EC2::Subnet",
    "AWS::EC2::RouteTable",
    "AWS::EC2::SubnetRouteTableAssociation",
    "AWS::EC2::Route",
    "AWS::EC2::InternetGateway",
    "AWS::EC2::VPCGatewayAttachment",
    "AWS::EC2::SecurityGroup",
    "AWS::EC2::FlowLog",
    "AWS::IAM::Role",
    "AWS::IAM::Policy",
    "AWS::Logs::LogGroup",
    "AWS::S3::Bucket",
    "AWS::S3::BucketPolicy",
    VERSION_TYPE,
}


@pytest.mark.parametrize("stack", SHARED)
def test_they_do_not_depend_on_the_experiment(synthesise: Synthesise, stack: str) -> None:
    others = [
        synthesise(cache="none"),
        synthesise(name="ant-x"),
        synthesise(context={"actor_concurrency": "10"}, actor__provisioned=6),
    ]
    template = f"{stack}.template.json"
    first = (synthesise().directory / template).read_bytes()
    assert [(other.directory / template).read_bytes() == first for other in others] == [True] * len(
        others
    )


def test_exports_do_not_wait_for_an_experiment_that_imports(each_kind: Assembly) -> None:
    app = cdk.App(context=SETTINGS)
    ResultsStack(app, "NitroResults")
    network = NetworkStack(app, "NitroNetwork", region="us-east-1")
    GuardStack(app, "NitroGuard", network=network)
    alone = Path(app.synth().directory)
    for stack in SHARED:
        assert json.loads((alone / f"{stack}.template.json").read_text()) == each_kind.template(
            stack
        )


@pytest.mark.parametrize("stack", SHARED)
def test_what_experiments_import_is_exported(each_kind: Assembly, stack: str) -> None:
    exported = {
        output["Export"]["Name"]
        for output in each_kind.template(stack)["Outputs"].values()
        if "Export" in output
    }
    imported = set(
        re.findall(
            rf'"Fn::ImportValue": "({stack}:[^"]+)"',
            (each_kind.directory / f"{each_kind.stack}.template.json").read_text(),
        )
    )
    assert imported
    assert imported <= exported


@pytest.mark.parametrize("stack", SHARED)
def test_idle_they_cost_next_to_nothing(serverless: Assembly, stack: str) -> None:
    resources = serverless.template(stack)["Resources"].values()
    assert {resource["Type"] for resource in resources} <= FREE_WHEN_IDLE | (
        ALWAYS_ON if stack == "NitroGuard" else set()
    )


def _zones(made: Assembly) -> dict[str, list[Any]]:
    """Returns the zones of the public and of the isolated subnets."""
    subnets = made.resources("AWS::EC2::Subnet", "NitroNetwork").items()
    assert len(subnets) == 4
    return {
        kind: sorted(
            found["Properties"].get("AvailabilityZoneId")
            or (found["Properties"]["AvailabilityZone"]["Fn::Select"][0])
            for name, found in subnets
            if kind in name
        )
        for kind in ("Public", "Isolated")
    }


@pytest.mark.parametrize("region", ["us-west-1", "eu-central-1", "ap-southeast-2"])
def test_two_zones_which_every_account_has(
    synthesise: Synthesise, region: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CDK_DEFAULT_REGION", region)
    made = synthesise(name=region)
    assert _zones(made) == {"Public": [0, 1], "Isolated": [0, 1]}
    assert len(made.only("AWS::ElastiCache::ServerlessCache")["SubnetIds"]) == 2


def test_in_us_east_1_never_the_zone_that_lacks_lambda_whatever_its_letter(
    serverless: Assembly,
) -> None:
    zones = _zones(serverless)
    assert zones["Public"] == zones["Isolated"]
    assert len(set(zones["Public"])) == 2
    assert "use1-az3" not in zones["Public"]


def test_isolated_means_no_way_out(serverless: Assembly) -> None:
    routes = serverless.resources("AWS::EC2::Route", "NitroNetwork")
    assert len(routes) == 2
    assert all("Public" in flat(route["Properties"]["RouteTableId"]) for route in routes.values())


def test_actors_reach_caches_only_and_nothing_reaches_them(serverless: Assembly) -> None:
    (group,) = serverless.resources("AWS::EC2::SecurityGroup", "NitroNetwork").values()
    out = [
        (flat(rule["CidrIp"]), rule["IpProtocol"], rule["FromPort"], rule["ToPort"])
        for rule in group["Properties"]["SecurityGroupEgress"]
    ]
    (vpc,) = serverless.resources("AWS::EC2::VPC", "NitroNetwork")
    assert out == [(f"<{vpc}.CidrBlock>", "tcp", 6379, 6379)]
    assert "SecurityGroupIngress" not in group["Properties"]


def test_refused_traffic_is_logged_for_a_while(serverless: Assembly) -> None:
    assert serverless.only("AWS::EC2::FlowLog", "NitroNetwork")["TrafficType"] == "REJECT"
    for stack in ("NitroNetwork", "NitroGuard"):
        (group,) = serverless.resources("AWS::Logs::LogGroup", stack).values()
        assert (group["Properties"]["RetentionInDays"], group["DeletionPolicy"]) == (30, "Delete")


def test_results_are_kept_encrypted_and_private(serverless: Assembly) -> None:
    (bucket,) = serverless.resources("AWS::S3::Bucket", "NitroResults").values()
    assert (bucket["DeletionPolicy"], bucket["UpdateReplacePolicy"]) == ("Retain", "Retain")
    properties = bucket["Properties"]
    assert properties["BucketEncryption"]["ServerSideEncryptionConfiguration"] == [
        {"ServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}
    ]
    assert set(properties["PublicAccessBlockConfiguration"].values()) == {True}
    assert len(properties["PublicAccessBlockConfiguration"]) == 4
    assert properties["OwnershipControls"]["Rules"] == [{"ObjectOwnership": "BucketOwnerEnforced"}]
    assert "BucketName" not in properties


def test_replaced_versions_and_broken_uploads_are_not_kept_for_ever(serverless: Assembly) -> None:
    properties = serverless.only("AWS::S3::Bucket", "NitroResults")
    assert properties["VersioningConfiguration"] == {"Status": "Enabled"}
    assert properties["LifecycleConfiguration"]["Rules"] == [
        {
            "Status": "Enabled",
            "NoncurrentVersionExpiration": {"NoncurrentDays": 1},
            "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7},
            "ExpiredObjectDeleteMarker": True,
        }
    ]


def test_the_bucket_answers_over_tls_only(serverless: Assembly) -> None:
    (statement,) = serverless.only("AWS::S3::BucketPolicy", "NitroResults")["PolicyDocument"][
        "Statement"
    ]
    assert (statement["Effect"], statement["Action"]) == ("Deny", "s3:*")
    assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
    assert len(statement["Resource"]) == 2
