"""IAM in front of moto allows and denies, in AWS' words."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from tests.helpers import create_ledger_table
from tests.simulators.aws.gate import DECISIONS_VARIABLE
from tests.simulators.aws.moto_server import REGION, MotoServer

ACCOUNT = "123456789012"
TABLE = f"arn:aws:dynamodb:{REGION}:{ACCOUNT}:table/ledger"
TRUST = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Effect": "Allow",
            "Action": "sts:AssumeRole",
            "Principal": {"Service": "lambda.amazonaws.com"},
        }
    ],
}
POLICY = {
    "Version": "2012-10-17",
    "Statement": [
        {
            "Effect": "Allow",
            "Action": "dynamodb:UpdateItem",
            "Resource": TABLE,
            "Condition": {
                "ForAllValues:StringEquals": {
                    "dynamodb:LeadingKeys": ["mine"],
                    "dynamodb:Attributes": ["run", "state"],
                }
            },
        },
        {"Effect": "Allow", "Action": "lambda:GetFunctionConcurrency", "Resource": "*"},
        {"Effect": "Allow", "Action": "s3:*", "Resource": "arn:aws:s3:::results/run/*"},
        {"Effect": "Deny", "Action": "s3:DeleteObject", "Resource": "*"},
        {
            "Effect": "Allow",
            "Action": "cloudwatch:PutMetricData",
            "Resource": "*",
            "Condition": {"StringEquals": {"cloudwatch:namespace": "Mine"}},
        },
        {
            "Effect": "Allow",
            "Action": "logs:CreateLogGroup",
            "Resource": "*",
            "Condition": {"StringEquals": {"logs:LogGeneratingResourceArns": ["x"]}},
        },
        {
            "Effect": "Allow",
            "Action": "ec2:TerminateInstances",
            "Resource": "*",
            "Condition": {"Null": {"aws:ResourceTag/nitro": "false"}},
        },
    ],
}
Clients = Callable[[str], Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("decisions")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[MotoServer]:
    with MotoServer(**{DECISIONS_VARIABLE: str(folder)}) as running:
        create_ledger_table(running.client("dynamodb"), "ledger")
        # CloudFormation's own S3 client removes the bucket from the paths of the model that it reads.
        running.client("cloudformation").create_stack(
            StackName="Results",
            TemplateBody=json.dumps(
                {
                    "Resources": {
                        "Bucket": {
                            "Type": "AWS::S3::Bucket",
                            "Properties": {"BucketName": "results"},
                        },
                        "Policy": {
                            "Type": "AWS::S3::BucketPolicy",
                            "Properties": {
                                "Bucket": {"Ref": "Bucket"},
                                "PolicyDocument": {"Statement": []},
                            },
                        },
                    }
                }
            ),
        )
        roles = running.client("iam")
        roles.create_role(RoleName="learner", AssumeRolePolicyDocument=json.dumps(TRUST))
        roles.put_role_policy(
            RoleName="learner", PolicyName="own", PolicyDocument=json.dumps(POLICY)
        )
        yield running


@pytest.fixture(scope="module")
def client(server: MotoServer) -> Clients:
    """Returns a client with a session of the role."""
    given = server.client("sts").assume_role(
        RoleArn=f"arn:aws:iam::{ACCOUNT}:role/learner", RoleSessionName="i-1"
    )["Credentials"]
    session = boto3.Session(
        given["AccessKeyId"], given["SecretAccessKey"], given["SessionToken"], REGION
    )
    return lambda service: session.client(
        service, endpoint_url=server.url, config=Config(retries={"total_max_attempts": 1})
    )


def update(client: Clients, *, run: str = "mine", **more: Any) -> Any:
    return client("dynamodb").update_item(
        **{
            "TableName": "ledger",
            "Key": {"run": {"S": run}},
            "UpdateExpression": "SET #s = :s",
            "ExpressionAttributeNames": {"#s": "state"},
            "ExpressionAttributeValues": {":s": {"S": "new"}},
        }
        | more
    )


def refusal(ask: Callable[[], Any]) -> tuple[str, str]:
    with pytest.raises(ClientError) as raised:
        ask()
    return raised.value.response["Error"]["Code"], raised.value.response["Error"]["Message"]


def test_what_a_policy_allows_is_done(client: Clients) -> None:
    assert update(client, ReturnValues="ALL_NEW")["Attributes"]["state"] == {"S": "new"}
    client("s3").put_object(Bucket="results", Key="run/one", Body=b"x" * 1000)
    assert client("s3").get_object(Bucket="results", Key="run/one")["Body"].read() == b"x" * 1000
    # Bodies with this many values are compressed.
    client("cloudwatch").put_metric_data(
        Namespace="Mine",
        MetricData=[
            {"MetricName": f"one of many metrics, {number}", "Value": 1} for number in range(500)
        ],
    )
    assert client("sts").get_caller_identity()["Arn"].endswith("assumed-role/learner/i-1")


def test_a_condition_on_an_attribute_that_may_not_be_named_is_denied_as_aws_words_it(
    client: Clients, server: MotoServer
) -> None:
    assert refusal(
        lambda: update(
            client,
            ConditionExpression="attribute_not_exists(#t) OR #t.#k <> :s",
            ExpressionAttributeNames={"#s": "state", "#t": "teardown", "#k": "stack"},
        )
    ) == (
        "AccessDeniedException",
        f"User: arn:aws:sts::{ACCOUNT}:assumed-role/learner/i-1 is not authorized to perform: dynamodb:UpdateItem on "
        f"resource: {TABLE} because no identity-based policy allows the dynamodb:UpdateItem action",
    )
    assert refusal(lambda: update(client, run="another"))[0] == "AccessDeniedException"
    # Requests without a role's key are not judged. Nothing was carried out.
    assert "Item" not in server.client("dynamodb").get_item(
        TableName="ledger", Key={"run": {"S": "another"}}
    )


def test_each_protocol_says_no(client: Clients) -> None:
    assert (
        refusal(lambda: client("s3").get_object(Bucket="results", Key="other"))[0] == "AccessDenied"
    )
    code, message = refusal(
        lambda: client("s3").delete_objects(
            Bucket="results", Delete={"Objects": [{"Key": "run/one"}]}
        )
    )
    assert (
        code,
        message.endswith(
            "s3:DeleteObject on resource: arn:aws:s3:::results/run/one "
            "with an explicit deny in an identity-based policy"
        ),
    ) == ("AccessDenied", True)
    assert refusal(
        lambda: client("sns").publish(TopicArn=f"arn:aws:sns:{REGION}:{ACCOUNT}:t", Message="m")
    )[0] == ("AccessDenied")
    assert (
        refusal(lambda: client("ec2").terminate_instances(InstanceIds=["i-1"]))[0]
        == "UnauthorizedOperation"
    )
    assert refusal(lambda: client("lambda").get_account_settings())[0] == "AccessDeniedException"
    assert refusal(
        lambda: client("cloudwatch").put_metric_data(
            Namespace="N", MetricData=[{"MetricName": "m", "Value": 1}]
        )
    )[0].startswith("AccessDenied")


def test_a_missing_object_is_forbidden_to_who_may_not_list(client: Clients) -> None:
    code, message = refusal(lambda: client("s3").get_object(Bucket="results", Key="run/missing"))
    assert (code, "s3:ListBucket on resource: arn:aws:s3:::results because" in message) == (
        "AccessDenied",
        True,
    )
    assert (
        refusal(lambda: client("s3").head_object(Bucket="results", Key="run/missing"))[0] == "403"
    )


def test_what_cannot_be_judged_fails_and_is_noted(client: Clients, folder: Path) -> None:
    for ask in (
        lambda: client("logs").create_log_group(logGroupName="g"),
        lambda: client("dynamodb").query(TableName="ledger", KeyConditionExpression="run = :r"),
    ):
        with pytest.raises(ClientError, match="500"):
            ask()
    noted = [json.loads(line) for line in (folder / "learner").read_text().splitlines()]
    assert [one["action"] for one in noted if "cannot be judged" in one["action"]] != []
    assert any("logs:LogGeneratingResourceArns is not derived" in one["action"] for one in noted)
