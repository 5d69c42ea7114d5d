"""`make first-deployment` beside its rehearsal: when it says that a promise was not kept, and what it never tells."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest
from hypothesis import given
from hypothesis import strategies as st
from moto import mock_aws

from runtime.aws.ledger import Entry
from runtime.names import EXPERIMENT_TAG
from stacks.deploy import first_deployment
from stacks.deploy.first_deployment import EXPERIMENT, find_problems, without_secrets
from tests.helpers import ROOT
from tests.simulators.aws.moto_types import REGION

STACK = "arn:aws:cloudformation:us-east-1:123456789012:stack/Nitro-first-deployment/1"
KEPT = Entry(run="first-deployment/1", stack=STACK, reason="budget", spent_usd=0.04)


@pytest.fixture
def client() -> Iterator[Any]:
    with mock_aws():
        yield boto3.Session(region_name=REGION).client


@given(
    account=st.from_regex(r"[0-9]{12}", fullmatch=True),
    key=st.from_regex(r"A[KS]IA[A-Z0-9]{16}", fullmatch=True),
    secret=st.from_regex(r"aZ9[A-Za-z0-9/+]{37}", fullmatch=True),
)
def test_the_report_has_no_account_key_secret_address_or_path_of_this_machine(
    account: str, key: str, secret: str
) -> None:
    text = f"arn:aws:iam::{account}:role/x {key} {secret} you+x@mail.example, {account}.dkr.ecr {ROOT}/cdk.out"
    told = without_secrets(text)
    assert not any(word in told for word in (account, key, secret, "mail.example", str(ROOT)))
    assert told.startswith("arn:aws:iam::ACCOUNT:role/x KEY ")


def test_without_credentials_it_says_so_in_a_line_and_writes_no_report(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {
        "AWS_DEFAULT_REGION": REGION,
        "AWS_CONFIG_FILE": str(tmp_path / "none"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "none"),
        "AWS_EC2_METADATA_DISABLED": "true",
        "CDK_DOCKER": "true",
    }.items():
        monkeypatch.setenv(name, value)
    assert first_deployment.main([]) == 2
    printed = capsys.readouterr().out
    assert printed.startswith("error: there are no AWS credentials") and printed.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (replace(KEPT, spent_usd=0.051), "$0.0510 of $0.05"),
        (replace(KEPT, reason="max_rounds"), "not because its budget was used up: max_rounds"),
    ],
)
def test_a_promise_of_money_that_was_not_kept_is_a_problem(
    client: Any, entry: Entry, problem: str
) -> None:
    assert find_problems(client, KEPT) == []
    (found,) = find_problems(client, entry)
    assert problem in found


def test_what_describe_still_finds_is_a_problem(client: Any) -> None:
    machines = client("ec2")
    tags = [{"Key": EXPERIMENT_TAG, "Value": EXPERIMENT.stem}]
    (instance,) = machines.run_instances(
        ImageId="ami-1e749f67",
        MinCount=1,
        MaxCount=1,
        TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
    )["Instances"]
    volume = machines.create_volume(
        Size=1,
        AvailabilityZone=f"{REGION}a",
        TagSpecifications=[{"ResourceType": "volume", "Tags": tags}],
    )
    template = '{"Resources": {"Topic": {"Type": "AWS::SNS::Topic"}}}'
    made = client("cloudformation").create_stack(
        StackName="Nitro-first-deployment", TemplateBody=template
    )
    (problem,) = find_problems(client, replace(KEPT, stack=made["StackId"]))
    assert problem.startswith("left: stack CREATE_COMPLETE, ")
    assert instance["InstanceId"] in problem
    assert volume["VolumeId"] in problem
