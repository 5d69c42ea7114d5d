"""Properties of an experiment's whole stack: tags, deletion, outputs, dashboard, and external rules."""

from __future__ import annotations

import ast
import datetime
import json
import re

import pytest
import yaml
from aws_cdk import aws_s3 as s3

from runtime.aws.guard.check import CHECK_TYPE
from runtime.aws.guard.stacks import read_deployment
from runtime.aws.learner import metrics
from runtime.experiment.loading import experiment_from_tree
from runtime.money.prices import WATCHED_USD_PER_HOUR
from runtime.names import GUARD_STACK, METRIC_NAMESPACE
from stacks.assembly import make_app
from stacks.plan import expected_cost
from tests.helpers import ROOT
from tests.stacks.conftest import (
    KINDS,
    NAME,
    RUN,
    SETTINGS,
    STACK,
    Assembly,
    Synthesise,
    experiment_text,
    flat,
)
from tests.stacks.iam.account import Account
from tests.stacks.iam.database import ACCOUNT
from tests.stacks.iam.policies import Request, is_allowed, read_statement

NOT_TAGGABLE = {
    "AWS::AutoScaling::AutoScalingGroup",
    "AWS::EC2::LaunchTemplate",
    "AWS::CloudWatch::Dashboard",
    "AWS::AutoScaling::ScheduledAction",
    "AWS::EC2::SecurityGroupEgress",
    "AWS::EC2::SecurityGroupIngress",
    "AWS::IAM::InstanceProfile",
    "AWS::IAM::Policy",
    "AWS::Lambda::Alias",
    "AWS::Lambda::EventInvokeConfig",
    "AWS::Lambda::Version",
    CHECK_TYPE,
}
"""Types that CloudFormation or the CDK does not tag. The first two are tagged in another form."""
SENT_BY_THE_BOOT_SCRIPT = {"BootFailures"}
RESOURCES_MAX = 500


TAGS = {
    "nitro:experiment": NAME,
    "nitro:run": RUN,
    "nitro:budget-usd": "1.0",
    "nitro:lifetime-hours": "24.0",
}
DOLLARS = {
    "nitro:burn-usd-per-hour",
    "nitro:floor-usd-per-hour",
    "nitro:cache-usd-per-hour",
    "nitro:provisioned-usd-per-hour",
    "nitro:tail-usd",
}


def without_dollars(tags: list[dict[str, str]]) -> dict[str, str]:
    """Returns our tags by name, without estimates, which another test checks."""
    found = {tag["Key"]: tag["Value"] for tag in tags if tag["Key"] != "Name"}
    assert found.keys() >= DOLLARS
    return {name: value for name, value in found.items() if name not in DOLLARS}


def test_all_that_can_be_tagged_is(each_kind: Assembly) -> None:
    for name, resource in each_kind.template()["Resources"].items():
        if resource["Type"] not in NOT_TAGGABLE:
            assert without_dollars(resource["Properties"].get("Tags", [])) == TAGS, name


def test_instances_and_volumes_are_tagged(serverless: Assembly) -> None:
    group = serverless.only("AWS::AutoScaling::AutoScalingGroup")["Tags"]
    assert all(tag["PropagateAtLaunch"] for tag in group)
    assert without_dollars(group) == TAGS
    specifications = serverless.only("AWS::EC2::LaunchTemplate")["LaunchTemplateData"][
        "TagSpecifications"
    ]
    assert {found["ResourceType"] for found in specifications} == {"instance", "volume"}
    assert [without_dollars(found["Tags"]) for found in specifications] == [TAGS, TAGS]


def test_the_guard_finds_the_stack_by_its_own_tags_and_they_are_the_estimates(
    synthesise: Synthesise,
) -> None:
    for kind in ("redis", "none"):
        experiment = experiment_from_tree(
            yaml.safe_load(experiment_text(cache__kind=kind)), source=""
        )
        expected = expected_cost(experiment.resolved(is_deployed=True))
        made = synthesise(cache=kind)
        manifest = json.loads((made.directory / "manifest.json").read_text())["artifacts"]
        tags = [
            {"Key": key, "Value": value}
            for key, value in manifest[STACK]["properties"]["tags"].items()
        ]
        assert without_dollars(tags) == TAGS
        found = read_deployment(
            {
                "StackName": STACK,
                "StackId": "id",
                "StackStatus": "CREATE_COMPLETE",
                "Tags": tags,
                "CreationTime": datetime.datetime.now(datetime.UTC),
            }
        )
        assert (found.run, found.unreadable, found.lifetime_s) == (f"{NAME}/{RUN}", "", 86_400.0)
        for name in (
            "burn_usd_per_hour",
            "floor_usd_per_hour",
            "cache_usd_per_hour",
            "provisioned_usd_per_hour",
            "tail_usd",
        ):
            assert 0.0 <= getattr(found, name) - getattr(expected, name) <= 0.0001
        assert not any(
            "tags" in manifest[name]["properties"]
            for name in ("NitroGuard", "NitroNetwork", "NitroResults")
        )


def test_nothing_but_logs_outlives_the_stack_and_they_empty_themselves(each_kind: Assembly) -> None:
    for name, resource in each_kind.template()["Resources"].items():
        # A question to the guard leaves nothing behind.
        expected = "Retain" if resource["Type"] in (CHECK_TYPE, "AWS::Logs::LogGroup") else "Delete"
        assert resource.get("DeletionPolicy", "Delete") == expected, name
        assert resource.get("UpdateReplacePolicy", "Delete") == expected, name
        assert not resource["Properties"].get("DeletionProtectionEnabled")
    for resource in each_kind.resources("AWS::Logs::LogGroup").values():
        assert resource["Properties"]["RetentionInDays"] == 7
        assert "LogGroupName" not in resource["Properties"], "the next deployment would meet it"


COMMON = {
    "AWS::AutoScaling::AutoScalingGroup": 1,
    "AWS::AutoScaling::ScheduledAction": 1,
    "AWS::EC2::LaunchTemplate": 1,
    "AWS::CloudWatch::Dashboard": 1,
    CHECK_TYPE: 1,
}


def test_it_holds_nothing_but_what_it_is_known_to_hold(each_kind: Assembly) -> None:
    counts: dict[str, int] = {}
    for resource in each_kind.template()["Resources"].values():
        counts[resource["Type"]] = counts.get(resource["Type"], 0) + 1
    costly = {
        kind: count
        for kind, count in counts.items()
        if not kind.startswith(("AWS::IAM", "AWS::EC2::Security"))
    }
    found = {
        kind: count for kind, count in costly.items() if not kind.startswith("AWS::ElastiCache")
    }
    if "AWS::Lambda::Function" not in counts:
        assert costly == {**COMMON, "AWS::Logs::LogGroup": 1, "AWS::CloudWatch::Alarm": 3}
        return
    assert found == {
        **COMMON,
        "AWS::Lambda::Function": 1,
        "AWS::Lambda::Version": 1,
        "AWS::Lambda::Alias": 1,
        "AWS::Lambda::EventInvokeConfig": 1,
        "AWS::Logs::LogGroup": 2,
        "AWS::CloudWatch::Alarm": 3,
    }


def test_what_cloudwatch_keeps_is_what_is_counted(serverless: Assembly) -> None:
    alarms = [one["Properties"] for one in serverless.resources("AWS::CloudWatch::Alarm").values()]
    watched = sum(
        sum("MetricStat" in part for part in one.get("Metrics", [{"MetricStat": 1}]))
        for one in alarms
    )
    # Includes the boot script's metric, and the images with CUDA: 3.3 and 0.3 GB.
    month_usd = 0.30 * (len(metrics.METRICS) + 1) + 3.00 + 0.10 * watched + 0.10 * 3.6
    assert pytest.approx(month_usd / 730 + 60 * 0.00001) == WATCHED_USD_PER_HOUR


def test_outputs_say_where_to_look(each_kind: Assembly) -> None:
    outputs = {
        name: flat(output["Value"]) for name, output in each_kind.template()["Outputs"].items()
    }
    of_function = (
        {"ActorLogs", "ActorFunction"} if each_kind.resources("AWS::Lambda::Function") else set()
    )
    assert (
        outputs.keys()
        == {
            "ResultsBucket",
            "ResultsPrefix",
            "DashboardUrl",
            "LearnerLogs",
            "LearnerImage",
            "LearnerGroupName",
        }
        | of_function
    )
    assert outputs["ResultsPrefix"] == f"{NAME}/{RUN}/"
    assert outputs["DashboardUrl"].endswith(f"#dashboards/dashboard/{STACK}")


# Dashboard and alarms


def dashboard(made: Assembly) -> list[dict]:
    body = json.loads(flat(made.only("AWS::CloudWatch::Dashboard")["DashboardBody"]))
    return [widget["properties"] for widget in body["widgets"]]


def test_every_metric_that_is_shown_or_watched_is_sent(serverless: Assembly) -> None:
    ours = re.escape(json.dumps([METRIC_NAMESPACE])[1:-1])
    shown = set(re.findall(rf'\[{ours}, "(\w+)"', json.dumps(dashboard(serverless))))
    watched = set()
    for alarm in serverless.resources("AWS::CloudWatch::Alarm").values():
        parts = alarm["Properties"].get(
            "Metrics", [{"MetricStat": {"Metric": alarm["Properties"]}}]
        )
        for metric in (part["MetricStat"]["Metric"] for part in parts if "MetricStat" in part):
            if metric["Namespace"] == METRIC_NAMESPACE:
                watched.add(metric["MetricName"])
                assert metric["Dimensions"] == [
                    {"Name": "Experiment", "Value": NAME},
                    {"Name": "Run", "Value": RUN},
                ]
    sent = set(metrics.METRICS) | SENT_BY_THE_BOOT_SCRIPT
    assert (
        {"EpisodeReturn", "Actors", "ConvexityRatio", "SpentUsd", "RoundSeconds"} <= shown <= sent
    )
    assert watched == {"Actors", "ActorsFailed", "SpentUsd", "BootFailures"}
    assert watched <= sent


def test_the_dashboard_shows_the_budget_and_the_function(serverless: Assembly) -> None:
    (money,) = [widget for widget in dashboard(serverless) if widget["title"] == "Dollars"]
    assert [line["value"] for line in money["annotations"]["horizontal"]] == [1]
    (function,) = [
        widget for widget in dashboard(serverless) if widget["title"] == "Actor function"
    ]
    names = {metric[1] for metric in function["metrics"]}
    assert names == {
        "Errors",
        "Throttles",
        "ConcurrentExecutions",
        "ProvisionedConcurrencySpilloverInvocations",
    }


def test_what_raises_an_alarm(serverless: Assembly) -> None:
    found = {}
    for name, alarm in serverless.resources("AWS::CloudWatch::Alarm").items():
        properties = alarm["Properties"]
        found[re.match(r"Dashboard([A-Za-z]+?)(?=[0-9A-F]{8}$)", name)[1]] = (
            properties.get("MetricName", "share"),
            properties["ComparisonOperator"],
            properties["Threshold"],
            properties["EvaluationPeriods"],
            properties["TreatMissingData"],
        )
    over = "GreaterThanThreshold"
    assert found == {
        "ActorFailures": ("share", over, 5, 1, "notBreaching"),
        "Spending": ("SpentUsd", over, 0.9, 1, "notBreaching"),
        "BootFailures": ("BootFailures", over, 0, 1, "notBreaching"),
    }


@pytest.mark.parametrize("kind", [*KINDS, "function", "external"])
def test_every_alarm_notifies_the_guards_topic_which_lets_cloudwatch_publish(
    synthesise: Synthesise, kind: str
) -> None:
    account = Account(synthesise(cache=kind))
    (topic,) = [arn for arn in account.arns(GUARD_STACK) if ":sns:" in arn]
    actions = {
        f"{stack} {name}": [
            account.text(stack, one) for one in alarm["Properties"].get("AlarmActions", [])
        ]
        for stack in account.templates
        for name, alarm in account.resources("AWS::CloudWatch::Alarm", stack).items()
    }
    assert actions == dict.fromkeys(actions, [topic])
    assert len(actions) == 2 + {"function": 2, "external": 0}.get(kind, 3)
    (policy,) = account.resources("AWS::SNS::TopicPolicy", GUARD_STACK).values()
    asked = Request(
        "sns:Publish", topic, {"aws:SourceAccount": (ACCOUNT,), "aws:SecureTransport": ("true",)}
    )
    admitted = [
        read_statement(one, lambda value: account.text(GUARD_STACK, value))
        for one in policy["Properties"]["PolicyDocument"]["Statement"]
        if one["Principal"] in ("*", {"AWS": "*"}, {"Service": "cloudwatch.amazonaws.com"})
    ]
    assert is_allowed(admitted, asked)


# External rules


def test_cdk_nag_is_asked_and_finds_what_nobody_answered_for(synthesise: Synthesise) -> None:
    """Every synthesis of these tests passed it. This one must fail."""
    app = make_app({**SETTINGS, "experiment": str(ROOT / "experiments" / "hopper.yaml")})
    s3.Bucket(app.node.find_child("Nitro-hopper"), "Careless")
    with pytest.raises(RuntimeError, match="Careless"):
        app.synth()


def test_each_acknowledgement_says_why() -> None:
    calls = [
        node
        for path in (ROOT / "stacks").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "").startswith("acknowledge")
        and path.name != "acknowledgements.py"
    ]
    assert len(calls) >= 8
    for call in calls:
        reason = "".join(
            part.value
            for part in ast.walk(call.args[2])
            if isinstance(part, ast.Constant) and isinstance(part.value, str)
        )
        assert len(reason.split()) >= 5


def test_the_stack_is_far_from_cloudformations_limit(each_kind: Assembly) -> None:
    assert len(each_kind.template()["Resources"]) < RESOURCES_MAX / 4
