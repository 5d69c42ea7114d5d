"""Watching a deletion: a stack is gone when CloudFormation says so, and leftovers are reported."""

from __future__ import annotations

import json
from typing import Any

import boto3
import moto
import pytest
from botocore.exceptions import ClientError

from runtime.aws.guard.deletion import POLL_S, TeardownError, delete_stack
from runtime.aws.stacks import find_stack, stack_names

TEMPLATE = json.dumps(
    {"Resources": {"Topic": {"Type": "AWS::SNS::Topic"}, "Queue": {"Type": "AWS::SQS::Queue"}}}
)
STACK = "Nitro-hopper"
STACK_ID = f"arn:aws:cloudformation:us-east-1:1:stack/{STACK}/one"


class Formation:
    """Replaces CloudFormation: describes the stack with each status in turn, repeating the last one."""

    class exceptions:  # noqa: N801
        ClientError = ClientError

    def __init__(
        self, *statuses: str | None, reason: str | None = None, refusal: ClientError | None = None
    ) -> None:
        self.statuses = ["CREATE_COMPLETE", *statuses]
        self.reason, self.refusal = reason, refusal
        self.resources: dict[str, list[str]] = {}
        self.deleted: list[str] = []
        self.described: list[str] = []
        self.sleeps: list[float] = []

    def describe_stacks(self, *, StackName: str) -> dict[str, Any]:
        self.described.append(StackName)
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        if status is None:
            raise failure(
                "ValidationError", f"Stack with id {StackName} does not exist", "DescribeStacks"
            )
        return {"Stacks": [{"StackName": STACK, "StackId": STACK_ID, "StackStatus": status}]}

    def delete_stack(self, *, StackName: str) -> None:
        if self.refusal:
            raise self.refusal
        self.deleted.append(StackName)

    def get_paginator(self, operation: str) -> Formation:
        assert operation == "list_stack_resources"
        return self

    def paginate(self, *, StackName: str) -> list[dict[str, Any]]:
        assert StackName == STACK_ID
        current = {
            name: statuses.pop(0) if len(statuses) > 1 else statuses[0]
            for name, statuses in self.resources.items()
        }
        return [
            {
                "StackResourceSummaries": [
                    {
                        "LogicalResourceId": name,
                        "ResourceStatus": status,
                        "ResourceType": f"AWS::{name}",
                        "ResourceStatusReason": f"{name} is in use",
                    }
                ]
            }
            for name, status in current.items()
        ]

    def describe_stack_events(self, *, StackName: str) -> dict[str, Any]:
        return {
            "StackEvents": [
                {},
                {"ResourceStatusReason": self.reason},
                {"ResourceStatusReason": "old"},
            ]
        }

    def delete(self) -> list[str]:
        said: list[str] = []
        delete_stack(self, STACK, said.append, sleep=self.sleeps.append)
        return said


def failure(code: str, message: str, operation: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": message}}, operation)


@pytest.mark.parametrize("end", ["DELETE_COMPLETE", None])
def test_it_returns_when_the_stack_is_gone_and_no_earlier(end: str | None) -> None:
    formation = Formation("CREATE_COMPLETE", *["DELETE_IN_PROGRESS"] * 700, end)
    formation.resources = {
        "Kept": ["CREATE_COMPLETE"],
        "Group": ["CREATE_COMPLETE", "DELETE_IN_PROGRESS", "DELETE_IN_PROGRESS", "DELETE_COMPLETE"],
    }
    assert formation.delete() == [
        "DELETE_IN_PROGRESS Group (AWS::Group)",
        "DELETE_COMPLETE Group (AWS::Group)",
    ]
    assert formation.deleted == [STACK_ID]
    assert set(formation.described[1:]) == {STACK_ID}
    assert formation.sleeps == [POLL_S] * 701


def test_what_could_not_be_deleted_is_named_with_its_reason() -> None:
    formation = Formation("DELETE_IN_PROGRESS", "DELETE_FAILED")
    formation.resources = {
        "Vpc": ["DELETE_FAILED"],
        "Gone": ["DELETE_COMPLETE"],
        "Group": ["DELETE_FAILED"],
    }
    with pytest.raises(TeardownError) as error:
        formation.delete()
    assert str(error.value).splitlines() == [
        f"{STACK} is DELETE_FAILED: these resources are left",
        "  Vpc (AWS::Vpc): Vpc is in use",
        "  Group (AWS::Group): Group is in use",
    ]


def test_a_deletion_that_was_called_off_is_told_with_its_reason() -> None:
    with pytest.raises(
        TeardownError, match=f"{STACK} is not being deleted, it is CREATE_COMPLETE: Delete canceled"
    ):
        Formation("CREATE_COMPLETE", reason="Delete canceled. Export is in use").delete()
    with pytest.raises(TeardownError, match="it is UPDATE_COMPLETE: Delete canceled"):
        Formation("DELETE_IN_PROGRESS", "UPDATE_COMPLETE", reason="Delete canceled").delete()


def test_a_refusal_is_told_in_cloudformations_words() -> None:
    text = "Export NitroNetwork:x cannot be deleted as it is in use by Nitro-hopper"
    with pytest.raises(TeardownError, match=f"^{STACK} was not deleted: {text}$"):
        Formation(refusal=failure("ValidationError", text, "DeleteStack")).delete()
    with pytest.raises(ClientError, match="AccessDenied"):
        Formation(refusal=failure("AccessDenied", "no", "DeleteStack")).delete()


def test_a_stack_that_is_not_there_is_deleted() -> None:
    formation = Formation()
    formation.statuses = [None]
    assert formation.delete() == []
    assert formation.deleted == []


def test_what_cannot_be_asked_is_not_taken_for_gone() -> None:
    formation = Formation()
    formation.describe_stacks = lambda **_: (_ for _ in ()).throw(
        failure("Throttling", "slow", "DescribeStacks")
    )
    with pytest.raises(ClientError, match="Throttling"):
        formation.delete()


def test_against_moto(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with moto.mock_aws():
        client = boto3.client("cloudformation")
        for name in (STACK, "Nitro-walker", "NitroNetwork", "theirs"):
            client.create_stack(StackName=name, TemplateBody=TEMPLATE)
        stack_id = find_stack(client, STACK)["StackId"]
        delete_stack(client, STACK, print)
        assert find_stack(client, STACK) is None
        assert find_stack(client, stack_id)["StackStatus"] == "DELETE_COMPLETE"
        assert stack_names(client, "Nitro-") == ["Nitro-walker"]
        assert stack_names(client, "") == ["Nitro-walker", "NitroNetwork", "theirs"]
