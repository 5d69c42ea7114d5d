"""An account of a moto server, with a test's resources."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from runtime.aws.guard.stacks import tags_of_limits
from runtime.aws.ledger import Ledger
from runtime.cli import main as cli
from runtime.names import EXPERIMENT_TAG
from tests.simulators.aws.moto_server import REGION, MotoServer
from tests.simulators.aws.moto_types import IMAGE_ID

TABLE = "ledger"
ZONE = f"{REGION}a"
ACCOUNT_ID = "123456789012"
DELETED_STACK = "arn:aws:cloudformation:us-east-1:123456789012:stack/Nitro-hopper/of-last-week"
_GUARD = {
    "Resources": {
        "Ledger": {
            "Type": "AWS::DynamoDB::Table",
            "Properties": {
                "TableName": TABLE,
                "BillingMode": "PAY_PER_REQUEST",
                "AttributeDefinitions": [{"AttributeName": "run", "AttributeType": "S"}],
                "KeySchema": [{"AttributeName": "run", "KeyType": "HASH"}],
            },
        },
    },
    "Outputs": {
        "LedgerTable": {"Value": TABLE},
    },
}
_RESULTS = {"Resources": {"Results": {"Type": "AWS::S3::Bucket"}}}
LEARNER = {
    "Configuration": {
        "Type": "AWS::AutoScaling::LaunchConfiguration",
        "Properties": {"ImageId": IMAGE_ID, "InstanceType": "g4dn.xlarge"},
    }
}


@dataclass
class Account:
    """An account, and a user's view of it from a terminal.

    Attributes:
        now_s: The time in this process. It stands still, a second after the newest deployment began.
    """

    server: MotoServer
    tmp_path: Path
    capsys: pytest.CaptureFixture[str]
    now_s: float = field(default_factory=time.time)

    def client(self, service: str) -> Any:
        return self.server.client(service)

    def run(self, *arguments: str, code: int = 0) -> str:
        """Returns the command's output, or its error if it fails."""
        self.capsys.readouterr()
        assert cli.main(arguments) == code, self.capsys.readouterr()
        printed = self.capsys.readouterr()
        return printed.err if code else printed.out

    def survey(self, *arguments: str) -> dict[str, Any]:
        return json.loads(self.run("status", *arguments, "--json"))

    def make_stack(
        self, name: str, template: dict[str, Any], tags: dict[str, str] | None = None
    ) -> str:
        """Returns the id."""
        return self.client("cloudformation").create_stack(
            StackName=name,
            TemplateBody=json.dumps(template),
            Tags=[{"Key": key, "Value": value} for key, value in (tags or {}).items()],
        )["StackId"]

    def deploy(
        self, name: str = "hopper", *, run: str = "first", hours: float = 8.0, **tags: str
    ) -> str:
        logs = {
            f"{whose}Logs1A2B": {"Type": "AWS::Logs::LogGroup", "DeletionPolicy": "Retain"}
            for whose in ("Learner", "Actor")
        }
        group = {
            "Type": "AWS::AutoScaling::AutoScalingGroup",
            "Properties": {
                "AutoScalingGroupName": f"Nitro-{name}-learner",
                "MinSize": "0",
                "MaxSize": "1",
                "DesiredCapacity": "1",
                "VPCZoneIdentifier": [self.subnet],
                "LaunchConfigurationName": {"Ref": "Configuration"},
                "Tags": [{"Key": EXPERIMENT_TAG, "Value": name, "PropagateAtLaunch": True}],
            },
        }
        limits = tags_of_limits(
            experiment=name,
            run=run,
            budget_usd=2.0,
            tail_usd=0.01,
            burn_usd_per_hour=1.5,
            floor_usd_per_hour=1.5,
            cache_usd_per_hour=0.0084,
            provisioned_usd_per_hour=0.0,
            lifetime_hours=hours,
        )
        stack = self.make_stack(
            f"Nitro-{name}",
            {"Resources": {**logs, **LEARNER, "LearnerGroup": group}},
            {**limits, **{f"nitro:{key.replace('_', '-')}": value for key, value in tags.items()}},
        )
        (made,) = self.client("cloudformation").describe_stacks(StackName=stack)["Stacks"]
        self.now_s = max(self.now_s, made["CreationTime"].timestamp() + 1.0)
        return stack

    @property
    def subnet(self) -> str:
        return self.client("ec2").describe_subnets()["Subnets"][0]["SubnetId"]

    def make_guard(self) -> Ledger:
        self.make_stack("NitroGuard", _GUARD)
        return Ledger(self.client("dynamodb"), TABLE)

    def make_bucket(self) -> str:
        self.make_stack("NitroResults", _RESULTS)
        (bucket,) = self.client("s3").list_buckets()["Buckets"]
        return bucket["Name"]

    def upload(self, bucket: str, prefix: str, files: dict[str, bytes]) -> None:
        for name, data in files.items():
            self.client("s3").put_object(Bucket=bucket, Key=prefix + name, Body=data)

    def log(self, group: str, stream: str, *messages: str, at_s: float | None = None) -> None:
        logs = self.client("logs")
        if not logs.describe_log_streams(logGroupName=group, logStreamNamePrefix=stream)[
            "logStreams"
        ]:
            logs.create_log_stream(logGroupName=group, logStreamName=stream)
        at_ms = int(1000 * (time.time() if at_s is None else at_s))
        logs.put_log_events(
            logGroupName=group,
            logStreamName=stream,
            logEvents=[
                {"timestamp": at_ms + index, "message": message}
                for index, message in enumerate(messages)
            ],
        )

    def group_of(self, stack: str, whose: str) -> str:
        found = self.client("cloudformation").describe_stack_resource(
            StackName=stack, LogicalResourceId=f"{whose}Logs1A2B"
        )
        return str(found["StackResourceDetail"]["PhysicalResourceId"])


def flat(text: str) -> str:
    """Whatever the line wrapping."""
    return re.sub(r"\s+", " ", text)


def start(
    ledger: Ledger, stack: str, *, run: str = "hopper/first", ago_s: float = 10.0, **figures: Any
) -> None:
    """Adds a learner that trains, last heard from ``heard_s`` seconds ago."""
    now_s = time.time()
    ledger.notice(run, stack=stack, began_at_s=0.0)
    ledger.take_over(run, stack=stack, writer="w", instance_id="i-1", now_s=now_s - ago_s)
    ledger.record(
        run,
        writer="w",
        **{
            "state": "training",
            "spent_usd": 0.25,
            "reserved_usd": 0.05,
            "burn_usd_per_hour": 1.0,
            "covered_until_s": now_s - ago_s + 3600,
            "heartbeat_at_s": now_s - ago_s,
            "budget_usd": 2.0,
            **figures,
        },
    )
