"""Network, results, guard and mail: shared, cheap when idle, and there before any experiment."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import moto
import pytest

from runtime.aws.guard.check import ANSWER_S, VERSION, VERSION_TYPE
from runtime.aws.guard.watch import LOOKED_AT_ALL, PAUSE_S, TICK_S
from runtime.aws.learner import metrics
from runtime.errors import ExperimentError
from runtime.names import METRIC_NAMESPACE, OURS, RESERVED_OUTPUT
from stacks.constructs.staging import guard_files
from stacks.guard import GUARD_NAMESPACE
from stacks.mail import checked_address
from tests.simulators.aws.moto_types import REGION, deploy
from tests.stacks.conftest import Assembly, flat

GUARD, NETWORK, RESULTS = "NitroGuard", "NitroNetwork", "NitroResults"


def only(made: Assembly, kind: str, stack: str = GUARD) -> dict[str, Any]:
    return made.only(f"AWS::{kind}", stack)


# The guard


def test_it_looks_every_minute_and_is_not_started_twice_for_one(serverless: Assembly) -> None:
    rule = only(serverless, "Events::Rule")
    assert (rule["ScheduleExpression"], rule["State"]) == ("rate(1 minute)", "ENABLED")
    (target,) = rule["Targets"]
    (function,) = serverless.resources("AWS::Lambda::Function", GUARD)
    assert flat(target["Arn"]) == f"<{function}>"
    assert target["RetryPolicy"] == {"MaximumEventAgeInSeconds": 60, "MaximumRetryAttempts": 0}
    again = only(serverless, "Lambda::EventInvokeConfig")
    assert (again["MaximumRetryAttempts"], again["MaximumEventAgeInSeconds"]) == (0, 60)
    permission = only(serverless, "Lambda::Permission")
    assert (permission["Principal"], permission["Action"]) == (
        "events.amazonaws.com",
        "lambda:InvokeFunction",
    )


def test_its_version_is_told_and_asked_before_it_changes(serverless: Assembly) -> None:
    ((_, asked),) = serverless.resources(VERSION_TYPE, GUARD).items()
    (function,) = serverless.resources("AWS::Lambda::Function", GUARD)
    assert flat(asked["Properties"].pop("ServiceToken")) == f"<{function}>"
    assert asked["Properties"] == {"ServiceTimeout": str(ANSWER_S), "Version": VERSION}
    assert asked["DeletionPolicy"] == "Retain"
    outputs = serverless.template(GUARD)["Outputs"]
    assert outputs["Version"]["Value"] == str(VERSION)
    assert {"LedgerTable", "GuardFunction", "ReportsTopic", "RuleName"} <= outputs.keys()


def test_its_function(serverless: Assembly) -> None:
    function = only(serverless, "Lambda::Function")
    assert function["Handler"] == "runtime.aws.guard.function.handler"
    # Lambda has no Arm in some regions.
    assert (function["MemorySize"], function["Architectures"]) == (256, ["x86_64"])
    # A tick must not be cut off while it waits, nor a check that waits for the old learner; both answer themselves.
    assert 2 * TICK_S + PAUSE_S < function["Timeout"] < ANSWER_S
    assert "VpcConfig" not in function, "it calls AWS, and no network of ours"
    (table,) = serverless.resources("AWS::DynamoDB::Table", GUARD)
    (topic,) = serverless.resources("AWS::SNS::Topic", GUARD)
    assert {name: flat(value) for name, value in function["Environment"]["Variables"].items()} == {
        "NITRO_LEDGER_TABLE": f"<{table}>",
        "NITRO_REPORTS_TOPIC": f"<{topic}>",
    }


@pytest.mark.parametrize(("parameters", "reserved"), [({}, None), ({"Executions": "2"}, 2)])
def test_the_executions_reserved_for_it_are_a_parameter_whose_value_cloudformation_keeps(
    serverless: Assembly, parameters: dict[str, str], reserved: int | None
) -> None:
    with moto.mock_aws():
        client = boto3.Session(region_name=REGION).client
        template = serverless.directory / f"{GUARD}.template.json"
        outputs = deploy(client, template, GUARD, parameters)
        function = outputs["GuardFunction"]
        answer = client("lambda").get_function_concurrency(FunctionName=function)
    assert answer.get("ReservedConcurrentExecutions") == reserved
    assert outputs[RESERVED_OUTPUT] == parameters.get("Executions", "0")


def test_its_ledger(serverless: Assembly) -> None:
    table = only(serverless, "DynamoDB::Table")
    assert table["KeySchema"] == [{"AttributeName": "run", "KeyType": "HASH"}]
    assert table["BillingMode"] == "PAY_PER_REQUEST"
    assert table["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}


def test_people_hear_of_a_guard_that_fails_or_is_silent(serverless: Assembly) -> None:
    found = {
        one["Properties"]["MetricName"]: tuple(
            one["Properties"][key]
            for key in (
                "ComparisonOperator",
                "Threshold",
                "EvaluationPeriods",
                "TreatMissingData",
            )
        )
        for one in serverless.resources("AWS::CloudWatch::Alarm", GUARD).values()
    }
    assert found == {
        "Errors": ("GreaterThanOrEqualToThreshold", 1, 1, "notBreaching"),
        "GuardLooks": ("LessThanThreshold", 1, 5, "breaching"),
    }
    looks = only(serverless, "Logs::MetricFilter")
    assert looks["FilterPattern"] == f'"{LOOKED_AT_ALL}"', "not merely that it ran"
    transformation = {
        "MetricName": "GuardLooks",
        "MetricNamespace": GUARD_NAMESPACE,
        "MetricValue": "1",
    }
    assert looks["MetricTransformations"] == [transformation]
    # Experiments write the other one, also from their environment's code.
    assert GUARD_NAMESPACE != METRIC_NAMESPACE
    statements = {
        one["Sid"]: one
        for one in only(serverless, "SNS::TopicPolicy")["PolicyDocument"]["Statement"]
    }
    assert statements["AllowPublishThroughSSLOnly"]["Effect"] == "Deny"
    group = serverless.resources("AWS::Logs::LogGroup", GUARD).values()
    assert [(one["Properties"]["RetentionInDays"], one["DeletionPolicy"]) for one in group] == [
        (30, "Delete")
    ]


def test_one_page_shows_every_metric_of_the_run_that_is_chosen(serverless: Assembly) -> None:
    page = only(serverless, "CloudWatch::Dashboard")
    body = json.loads(flat(page["DashboardBody"]))
    shown = [one for widget in body["widgets"] for one in widget["properties"]["metrics"]]
    assert {one[1] for one in shown} <= set(metrics.METRICS)
    assert {"EpisodeReturn", "ActorsFailed", "ConvexityRatio", "SpentUsd"} <= {
        one[1] for one in shown
    }
    assert {(one[0], one[2], one[4]) for one in shown} == {(METRIC_NAMESPACE, "Experiment", "Run")}
    chosen = [(one["type"], one["property"], one["search"]) for one in body["variables"]]
    search = f'{{{METRIC_NAMESPACE},Experiment,Run}} MetricName="SpentUsd"'
    assert chosen == [("property", name, search) for name in ("Experiment", "Run")]
    assert page["DashboardName"] == OURS, "`status` tells its address"


def test_its_asset_is_all_that_it_needs_and_nothing_more() -> None:
    """Imports it in a fresh interpreter that sees only the asset's files and Lambda's Python and boto3."""
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); sys.dont_write_bytecode = True\n"
        "import runtime.aws.guard.function, json\n"
        "from pathlib import Path\n"
        "ours = [one.__file__ for name, one in sys.modules.items() if name.partition('.')[0] == 'runtime']\n"
        "others = {name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names) - {'runtime'}\n"
        "print(json.dumps([ours, sorted(others)]))"
    )
    with guard_files() as folder:
        staged = {str(path) for path in Path(folder).rglob("*") if path.is_file()}
        done = subprocess.run(
            [sys.executable, "-I", "-c", script, str(folder)],
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    ours, others = json.loads(done.stdout)
    assert set(ours) == staged
    assert not {"numpy", "pydantic", "yaml", "lambda_actor", "redis", "torch"} & set(others)


# Network, results, mail


def _zones(made: Assembly) -> list[Any]:
    return [
        one["Properties"].get("AvailabilityZoneId")
        or one["Properties"]["AvailabilityZone"]["Fn::Select"][0]
        for one in made.resources("AWS::EC2::Subnet", NETWORK).values()
    ]


def test_two_zones_which_every_account_has_and_which_have_lambda(
    variant: Callable[[str], Assembly],
) -> None:
    assert _zones(variant("two zones")) == [0, 1]
    # In us-east-1 any letter can be use1-az3, which lacks Lambda.
    assert _zones(variant("redis")) == ["use1-az2", "use1-az4"]
    for name in ("two zones", "redis"):
        assert len(variant(name).only("AWS::ElastiCache::ServerlessCache")["SubnetIds"]) == 2


def test_actors_reach_caches_only_and_nothing_reaches_them(serverless: Assembly) -> None:
    (group,) = serverless.resources("AWS::EC2::SecurityGroup", NETWORK).values()
    out = [
        (flat(rule["CidrIp"]), rule["IpProtocol"], rule["FromPort"], rule["ToPort"])
        for rule in group["Properties"]["SecurityGroupEgress"]
    ]
    (vpc,) = serverless.resources("AWS::EC2::VPC", NETWORK)
    assert out == [(f"<{vpc}.CidrBlock>", "tcp", 6379, 6379)]
    assert "SecurityGroupIngress" not in group["Properties"]
    subnets = serverless.resources("AWS::EC2::Subnet", NETWORK).values()
    assert {one["Properties"]["MapPublicIpOnLaunch"] for one in subnets} == {False}
    assert "AWS::EC2::NatGateway" not in json.dumps(serverless.template(NETWORK))


def test_results_are_kept_encrypted_and_private(serverless: Assembly) -> None:
    for kind in ("Bucket", "BucketPolicy"):
        (kept,) = serverless.resources(f"AWS::S3::{kind}", RESULTS).values()
        assert (kept["DeletionPolicy"], kept["UpdateReplacePolicy"]) == ("Retain", "Retain")
    properties = only(serverless, "S3::Bucket", RESULTS)
    (encryption,) = properties["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    assert encryption == {"ServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}
    assert list(properties["PublicAccessBlockConfiguration"].values()) == [True] * 4
    assert properties["OwnershipControls"]["Rules"] == [{"ObjectOwnership": "BucketOwnerEnforced"}]
    assert properties["VersioningConfiguration"] == {"Status": "Enabled"}
    (rule,) = properties["LifecycleConfiguration"]["Rules"]
    assert rule == {
        "Status": "Enabled",
        "NoncurrentVersionExpiration": {"NoncurrentDays": 1},
        "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7},
        "ExpiredObjectDeleteMarker": True,
    }
    policy = only(serverless, "S3::BucketPolicy", RESULTS)["PolicyDocument"]
    (statement,) = policy["Statement"]
    assert (statement["Effect"], statement["Action"]) == ("Deny", "s3:*")
    assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}


def test_somebody_hears_of_the_guard_who_asked_for_it(
    variant: Callable[[str], Assembly], serverless: Assembly
) -> None:
    made = variant("warm")
    subscribed = only(made, "SNS::Subscription", "NitroMail")
    assert flat(subscribed["TopicArn"]).startswith("<NitroGuard:")
    assert (subscribed["Endpoint"], subscribed["Protocol"]) == ("me+nitro@example.org", "email")
    # A later deployment without the option unsubscribes nobody.
    assert not (serverless.directory / "NitroMail.template.json").exists()


@pytest.mark.parametrize("text", ["", "me", "me@here", "me@x.org,you@x.org", "m\u00e9@x.org", 5])
def test_what_is_no_address_is_refused(text: object) -> None:
    with pytest.raises(ExperimentError, match="^mail = .*; allowed: .* address "):
        checked_address(text)
