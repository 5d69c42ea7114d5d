"""AWS' command line, simulated: what it refuses. The boot script's tests send with it."""

from __future__ import annotations

import boto3
import pytest
from moto import mock_aws

from tests.helpers import create_ledger_table
from tests.simulators import aws_command
from tests.simulators.aws.moto_server import CREDENTIALS, REGION


@pytest.fixture(autouse=True)
def account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    with mock_aws():
        monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
        boto3.client("s3").create_bucket(Bucket="bucket")
        create_ledger_table(boto3.client("dynamodb"), "table")
        yield


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("dynamodb get-item --table-name table --key run={S=one}", 0),
        ("s4 put-object", 252),
        ("s3api put-objects --bucket bucket", 252),
        ("s3api put-object --bucket bucket --kee one", 252),
        ("s3api put-object --bucket bucket", 252),
        ("s3api put-object --bucket other --key one", 254),
        ("dynamodb get-item --table-name table --key run={X=one}", 252),
        ("dynamodb get-item --table-name table --key run={S=one", 252),
        ("dynamodb get-item --table-name table --key run=one}", 252),
        ("dynamodb get-item --table-name table --key {'run':1}", 252),
        ("dynamodb get-item --table-name table --key run=", 252),
        ("autoscaling set-desired-capacity --auto-scaling-group-name g", 252),
    ],
)
def test_only_what_there_is_is_done(text: str, code: int) -> None:
    variables = {**CREDENTIALS, "AWS_SESSION_TOKEN": "", "AWS_ENDPOINT_URL": ""}
    assert aws_command.call(text.split(), variables)[0] == code
