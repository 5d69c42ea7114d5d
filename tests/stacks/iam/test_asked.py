"""Requests to IAM, derived from the parameters of calls."""

from __future__ import annotations

from typing import Any

import pytest

from tests.stacks.iam.asked import UnderivableError, requests_of, unjudged
from tests.stacks.iam.database import ACCOUNT, REGION
from tests.stacks.iam.policies import Request, Statement

HERE = f"{REGION}:{ACCOUNT}"
TABLE = f"arn:aws:dynamodb:{HERE}:table/t"
FUNCTION = f"arn:aws:lambda:{HERE}:function:f"


def only(service: str, operation: str, **parameters: Any) -> Request:
    (request,) = requests_of(service, operation, parameters)
    return request


def test_attributes_are_those_of_key_update_condition_and_projection_and_not_those_returned() -> (
    None
):
    asked = only(
        "dynamodb",
        "UpdateItem",
        TableName="t",
        Key={"run": {"S": "a/b"}},
        ReturnValues="ALL_NEW",
        UpdateExpression="SET #state = :s, spent = if_not_exists(spent, :zero) + :n",
        ConditionExpression="attribute_not_exists(#teardown) OR #teardown.#stack <> :stack AND kept[0].x = :s",
        ExpressionAttributeNames={"#state": "state", "#teardown": "teardown", "#stack": "stack"},
    )
    assert (asked.action, asked.resource) == ("dynamodb:UpdateItem", TABLE)
    assert asked.context["dynamodb:LeadingKeys"] == ("a/b",)
    assert set(asked.context["dynamodb:Attributes"]) == {
        "run",
        "state",
        "spent",
        "teardown",
        "kept",
    }
    assert asked.context["dynamodb:ReturnValues"] == ("ALL_NEW",)
    read = only(
        "dynamodb",
        "GetItem",
        TableName="t",
        Key={"run": {"S": "guard"}},
        ProjectionExpression="a.b, c",
    )
    assert set(read.context["dynamodb:Attributes"]) == {"run", "a", "c"}
    assert "dynamodb:Attributes" not in only("dynamodb", "Scan", TableName="t").context


@pytest.mark.parametrize(
    ("service", "operation", "parameters", "wanted"),
    [
        (
            "s3",
            "ListObjectsV2",
            {"Bucket": "b", "Prefix": "run/"},
            [("s3:ListBucket", "arn:aws:s3:::b")],
        ),
        (
            "s3",
            "DeleteObjects",
            {"Bucket": "b", "Delete": {"Objects": [{"Key": "1"}, {"Key": "2"}]}},
            [("s3:DeleteObject", "arn:aws:s3:::b/1"), ("s3:DeleteObject", "arn:aws:s3:::b/2")],
        ),
        (
            "lambda",
            "Invoke",
            {"FunctionName": f"{FUNCTION}:live"},
            [("lambda:InvokeFunction", f"{FUNCTION}:live")],
        ),
        (
            "lambda",
            "DeleteFunction",
            {"FunctionName": "f", "Qualifier": "1"},
            [("lambda:DeleteFunction", FUNCTION), ("lambda:DeleteFunction", f"{FUNCTION}:1")],
        ),
        (
            "lambda",
            "CreateFunction",
            {"FunctionName": "f", "Role": "arn:aws:iam::1:role/r"},
            [
                ("lambda:CreateFunction", FUNCTION),
                ("iam:PassRole", "arn:aws:iam::1:role/r"),
            ],
        ),
        (
            "cloudformation",
            "DescribeStacks",
            {},
            [("cloudformation:DescribeStacks", "*"), ("cloudformation:ListStacks", "*")],
        ),
        (
            "autoscaling",
            "SetDesiredCapacity",
            {"AutoScalingGroupName": "g", "DesiredCapacity": 0},
            [
                (
                    "autoscaling:SetDesiredCapacity",
                    f"arn:aws:autoscaling:{HERE}:autoScalingGroup:"
                    "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9:autoScalingGroupName/g",
                )
            ],
        ),
        (
            "ec2",
            "TerminateInstances",
            {"InstanceIds": ["i-1", "i-2"]},
            [
                ("ec2:TerminateInstances", f"arn:aws:ec2:{HERE}:instance/i-1"),
                ("ec2:TerminateInstances", f"arn:aws:ec2:{HERE}:instance/i-2"),
            ],
        ),
        (
            "iam",
            "CreateServiceLinkedRole",
            {"AWSServiceName": "spot.amazonaws.com"},
            [
                (
                    "iam:CreateServiceLinkedRole",
                    f"arn:aws:iam::{ACCOUNT}:role/aws-service-role/spot.amazonaws.com/*",
                )
            ],
        ),
        ("sts", "GetCallerIdentity", {}, []),
    ],
)
def test_actions_and_resources(
    service: str, operation: str, parameters: dict[str, Any], wanted: list[tuple[str, str]]
) -> None:
    assert [
        (one.action, one.resource) for one in requests_of(service, operation, parameters)
    ] == wanted


def test_conditions_see_prefixes_namespaces_tags_and_whom_a_role_is_passed_to() -> None:
    assert only("s3", "ListObjectsV2", Bucket="b", Prefix="run/", MaxKeys=5).context == {
        "s3:prefix": ("run/",),
        "s3:max-keys": ("5",),
    }
    assert only("s3", "ListObjectsV2", Bucket="b").context == {}
    assert only("cloudwatch", "PutMetricData", Namespace="N", MetricData=[]).context == {
        "cloudwatch:namespace": ("N",)
    }
    assert (
        only(
            "cloudformation", "CreateStack", StackName="s", Tags=[{"Key": "k", "Value": "v"}]
        ).context
        == (only("logs", "CreateLogGroup", logGroupName="g", tags={"k": "v"}).context)
        == {"aws:TagKeys": ("k",), "aws:RequestTag/k": ("v",)}
    )
    (ended,) = requests_of(
        "ec2", "TerminateInstances", {"InstanceIds": ["i-1"]}, tags=lambda arn: {"mine": arn[-3:]}
    )
    assert ended.context == {"aws:ResourceTag/mine": ("i-1",)}
    _, passed = requests_of("lambda", "CreateFunction", {"FunctionName": "f", "Role": "r"})
    assert passed.context == {"iam:PassedToService": ("lambda.amazonaws.com",)}


@pytest.mark.parametrize(
    ("operation", "parameters"),
    [
        ("Query", {"TableName": "t", "KeyConditionExpression": "run = :r"}),
        ("GetItem", {"TableName": "t", "Key": {"run": {"S": "a"}, "at": {"N": "1"}}}),
        ("GetItem", {"TableName": "t", "Key": {"run": {"S": "a"}}, "AttributesToGet": ["a"]}),
        ("UpdateItem", {"Key": {"run": {"S": "a"}}}),
    ],
)
def test_what_cannot_be_derived_is_an_error(operation: str, parameters: dict[str, Any]) -> None:
    with pytest.raises(UnderivableError):
        requests_of("dynamodb", operation, parameters)


def test_a_key_that_is_not_derived_is_named_and_not_taken_for_absent() -> None:
    statement = Statement(
        "One", "Allow", ("s3:*",), ("*",), (("StringEqualsIfExists", "s3:TlsVersion", ("1.3",)),)
    )
    assert unjudged([statement], Request("s3:GetObject", "arn:aws:s3:::b/k")) == {"s3:TlsVersion"}
    assert unjudged([statement], Request("sns:Publish")) == set()
