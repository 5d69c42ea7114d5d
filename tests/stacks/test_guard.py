"""The guard's stack: armed by itself, before any experiment, and with only what its function needs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.aws.guard.check import (
    ANSWER_S,
    CHECK_TYPE,
    LIFETIME_PROPERTY,
    REPLACEMENT_S,
    VERSION,
    VERSION_TYPE,
)
from runtime.aws.guard.needs import Needs
from runtime.aws.guard.watch import LOOKED_AT_ALL, PAUSE_S, TICK_S
from runtime.names import METRIC_NAMESPACE, RESERVED_OUTPUT
from stacks.constructs.staging import guard_files
from stacks.guard import GUARD_NAMESPACE
from tests.stacks.conftest import RUN, STACK, Assembly, Synthesise, flat

GUARD = "NitroGuard"


def only(made: Assembly, kind: str) -> dict:
    return made.only(f"AWS::{kind}", GUARD)


def test_it_looks_every_minute_and_is_not_started_twice_for_one(serverless: Assembly) -> None:
    rule = only(serverless, "Events::Rule")
    assert (rule["ScheduleExpression"], rule["State"]) == ("rate(1 minute)", "ENABLED")
    (target,) = rule["Targets"]
    (function,) = serverless.resources("AWS::Lambda::Function", GUARD)
    assert flat(target["Arn"]) == f"<{function}>"
    (event_rule,) = serverless.resources("AWS::Events::Rule", GUARD).values()
    (policy,) = serverless.resources("AWS::IAM::Policy", GUARD)
    assert policy in event_rule["DependsOn"], "a tick without rights would end nothing"
    assert target["RetryPolicy"] == {"MaximumEventAgeInSeconds": 60, "MaximumRetryAttempts": 0}
    permission = only(serverless, "Lambda::Permission")
    assert (permission["Principal"], permission["Action"]) == (
        "events.amazonaws.com",
        "lambda:InvokeFunction",
    )


def test_it_is_there_before_what_it_guards_and_cannot_be_deleted_under_it(
    each_kind: Assembly,
) -> None:
    manifest = json.loads((each_kind.directory / "manifest.json").read_text())["artifacts"]
    assert GUARD in manifest[STACK]["dependencies"]
    assert f"{GUARD}:" in json.dumps(each_kind.template()), "CloudFormation keeps what is imported"


def test_nothing_of_an_experiment_is_made_before_the_guard_has_said_that_it_guards(
    each_kind: Assembly,
) -> None:
    ((name, check),) = each_kind.resources(CHECK_TYPE).items()
    assert flat(check["Properties"].pop("ServiceToken")).startswith(
        f"<{GUARD}:ExportsOutputFnGetAttGuard"
    )
    needs = Needs.read(check["Properties"])
    assert float(check["Properties"].pop(LIFETIME_PROPERTY)) > 3600
    assert check["Properties"] == {
        "ServiceTimeout": str(ANSWER_S),
        "Version": VERSION,
        **needs.properties(),
    }
    assert (needs.run, needs.budget_usd, needs.region) == (RUN, "1", "us-east-1")
    assert "DependsOn" not in check
    assert check["DeletionPolicy"] == "Retain", "deletions do not invoke the guard"
    others = {
        other: one for other, one in each_kind.template()["Resources"].items() if other != name
    }
    assert len(others) > 10
    assert [other for other, one in others.items() if name not in one.get("DependsOn", [])] == []


def test_its_version_is_told_and_asked_before_it_changes(serverless: Assembly) -> None:
    ((_, asked),) = serverless.resources(VERSION_TYPE, GUARD).items()
    (function,) = serverless.resources("AWS::Lambda::Function", GUARD)
    assert flat(asked["Properties"].pop("ServiceToken")) == f"<{function}>"
    assert asked["Properties"] == {"ServiceTimeout": str(ANSWER_S), "Version": VERSION}
    assert asked["DeletionPolicy"] == "Retain"
    assert serverless.template(GUARD)["Outputs"]["Version"]["Value"] == str(VERSION)
    # Within the function's own limit, so that it can report the reason itself.
    assert 2 * TICK_S + PAUSE_S < only(serverless, "Lambda::Function")["Timeout"] < ANSWER_S


def test_its_function(serverless: Assembly) -> None:
    function = only(serverless, "Lambda::Function")
    assert function["Handler"] == "runtime.aws.guard.function.handler"
    assert (function["MemorySize"], function["Architectures"]) == (256, ["x86_64"]), (
        "Lambda has no Arm in some regions"
    )
    # A tick must not be cut off while it waits, nor a check that waits for the old learner.
    assert REPLACEMENT_S + 60 < function["Timeout"] < ANSWER_S
    assert "VpcConfig" not in function, "it calls AWS, and no network of ours"
    (table,) = serverless.resources("AWS::DynamoDB::Table", GUARD)
    (topic,) = serverless.resources("AWS::SNS::Topic", GUARD)
    assert {name: flat(value) for name, value in function["Environment"]["Variables"].items()} == {
        "NITRO_LEDGER_TABLE": f"<{table}>",
        "NITRO_REPORTS_TOPIC": f"<{topic}>",
    }


@pytest.mark.parametrize(
    ("context", "reserved"),
    [({}, None), ({"actor_concurrency": "101"}, None), ({"actor_concurrency": "102"}, 2)],
)
def test_nobody_can_take_its_executions_where_the_account_is_large_enough(
    synthesise: Synthesise, context: dict[str, str], reserved: int | None
) -> None:
    made = synthesise(context=context)
    assert only(made, "Lambda::Function").get("ReservedConcurrentExecutions") == reserved
    assert made.template(GUARD)["Outputs"][RESERVED_OUTPUT]["Value"] == str(reserved or 0)


def test_its_ledger(serverless: Assembly) -> None:
    table = only(serverless, "DynamoDB::Table")
    assert table["KeySchema"] == [{"AttributeName": "run", "KeyType": "HASH"}]
    assert table["BillingMode"] == "PAY_PER_REQUEST"
    assert table["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}


def test_people_hear_of_a_guard_that_fails_or_is_silent(serverless: Assembly) -> None:
    (topic,) = serverless.resources("AWS::SNS::Topic", GUARD)
    found = {}
    for alarm in serverless.resources("AWS::CloudWatch::Alarm", GUARD).values():
        properties = alarm["Properties"]
        assert [flat(action) for action in properties["AlarmActions"]] == [f"<{topic}>"]
        found[properties["MetricName"]] = (
            properties["ComparisonOperator"],
            properties["Threshold"],
            properties["EvaluationPeriods"],
            properties["TreatMissingData"],
        )
    assert found == {
        "Errors": ("GreaterThanOrEqualToThreshold", 1, 1, "notBreaching"),
        "GuardLooks": ("LessThanThreshold", 1, 5, "breaching"),
    }
    looks = only(serverless, "Logs::MetricFilter")
    assert looks["FilterPattern"] == f'"{LOOKED_AT_ALL}"', "not merely that it ran"
    assert looks["MetricTransformations"] == [
        {"MetricName": "GuardLooks", "MetricNamespace": GUARD_NAMESPACE, "MetricValue": "1"}
    ]
    assert GUARD_NAMESPACE != METRIC_NAMESPACE, (
        "experiments write the other one, also from their environment's code"
    )
    statements = {
        one["Sid"]: one
        for one in only(serverless, "SNS::TopicPolicy")["PolicyDocument"]["Statement"]
    }
    assert flat(statements["Alarms"]["Principal"]["Service"]) == "cloudwatch.amazonaws.com"
    assert statements["AllowPublishThroughSSLOnly"]["Effect"] == "Deny"


def test_its_asset_is_all_that_it_needs_and_nothing_more() -> None:
    """Imports it in a fresh interpreter that sees only the asset's files and Lambda's Python and boto3."""
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); sys.dont_write_bytecode = True\n"
        "import runtime.aws.guard.function, json\n"
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
    assert set(others) <= {
        "boto3",
        "botocore",
        "s3transfer",
        "jmespath",
        "dateutil",
        "six",
        "urllib3",
        "__main__",
        "__mp_main__",
        "awscrt",
        "brotli",
        "zstandard",
        "cython_runtime",
        "_cython_3_0_0",
        "simplejson",
        "_distutils_hack",
        "certifi",
    }


@pytest.mark.parametrize("name", ["LedgerTable", "GuardFunction", "ReportsTopic", "RuleName"])
def test_its_outputs(serverless: Assembly, name: str) -> None:
    assert name in serverless.template(GUARD)["Outputs"]
