"""AWS' command line, simulated: what it sends, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import boto3
import pytest
from moto import mock_aws

from tests.simulators import aws_command


@pytest.fixture(autouse=True)
def account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with mock_aws():
        monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)
        boto3.client("s3").create_bucket(Bucket="bucket")
        boto3.client("dynamodb").create_table(
            TableName="table",
            BillingMode="PAY_PER_REQUEST",
            KeySchema=[{"AttributeName": "run", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "run", "AttributeType": "S"}],
        )
        yield


def run(text: str, *more: str) -> int:
    return aws_command.main([*text.split(), *more])


def test_objects_items_and_metrics_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = tmp_path / "body"
    body.write_text("the body")
    for name in "ab":
        assert run(f"s3api put-object --bucket bucket --key one/{name} --body {body}") == 0
    found = boto3.client("s3").get_object(Bucket="bucket", Key="one/a")["Body"].read()
    assert found == b"the body"
    listed = "s3api list-objects-v2 --bucket bucket --prefix one/ --output text --query"
    capsys.readouterr()
    assert run(listed, "length(Contents)") == 0
    assert capsys.readouterr().out == "2\n"
    update = "dynamodb update-item --table-name table --key run={S=a/b} --update-expression"
    values = ":text={S='it is, so: far'},:at={N=7}"
    names = "--expression-attribute-names #text=text,#at=at --expression-attribute-values"
    assert run(update, "SET #text=:text, #at=:at", *names.split(), values) == 0
    (item,) = boto3.client("dynamodb").scan(TableName="table")["Items"]
    assert item == {"run": {"S": "a/b"}, "text": {"S": "it is, so: far"}, "at": {"N": "7"}}
    datum = "MetricName=Failures,Value=1,Dimensions=[{Name=A,Value=a b},{Name=B,Value=b}]"
    assert run("cloudwatch put-metric-data --namespace N --metric-data", datum) == 0
    (metric,) = boto3.client("cloudwatch").list_metrics(Namespace="N")["Metrics"]
    assert metric["Dimensions"] == [
        {"Name": "A", "Value": "a b"},
        {"Name": "B", "Value": "b"},
    ]
    capsys.readouterr()
    assert run("ecr get-login-password") == 0
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize(
    ("text", "code"),
    [
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
def test_what_there_is_not_is_refused(text: str, code: int) -> None:
    assert run(text) == code
