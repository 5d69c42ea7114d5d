"""``python -m runtime stop``: a stack is gone when CloudFormation says so, and what is left is told; against moto."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import moto
import pytest
from botocore.exceptions import ClientError

from runtime.aws.stacks import find_stack, stack_names
from runtime.cli import main as cli
from runtime.guard.deletion import POLL_S, TeardownError, delete_stack
from runtime.operations import stop

TEMPLATE = json.dumps({"Resources": {"Topic": {"Type": "AWS::SNS::Topic"}, "Queue": {"Type": "AWS::SQS::Queue"}}})
STACK = "Nitro-hopper"
STACK_ID = f"arn:aws:cloudformation:us-east-1:1:stack/{STACK}/one"


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """A client of CloudFormation in an account that has the stacks Nitro-hopper and Nitro-walker, and others."""
    with moto.mock_aws():
        for name in ("AWS_REGION", "AWS_PROFILE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
        client = boto3.client("cloudformation")
        for name in (STACK, "Nitro-walker", "NitroNetwork", "theirs"):
            client.create_stack(StackName=name, TemplateBody=TEMPLATE)
        yield client


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Formation:
    """Stands for CloudFormation: describes the stack as a list of statuses says, the last one again and again."""

    class exceptions:  # noqa: N801
        ClientError = ClientError

    def __init__(self, *statuses: str | None, reason: str | None = None, refusal: ClientError | None = None) -> None:
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
            raise failure("ValidationError", f"Stack with id {StackName} does not exist", "DescribeStacks")
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
        current = {name: statuses.pop(0) if len(statuses) > 1 else statuses[0]
                   for name, statuses in self.resources.items()}
        return [{"StackResourceSummaries": [
            {"LogicalResourceId": name, "ResourceStatus": status, "ResourceType": f"AWS::{name}",
             "ResourceStatusReason": f"{name} is in use"}]} for name, status in current.items()]

    def describe_stack_events(self, *, StackName: str) -> dict[str, Any]:
        return {"StackEvents": [{}, {"ResourceStatusReason": self.reason}, {"ResourceStatusReason": "old"}]}

    def delete(self) -> list[str]:
        said: list[str] = []
        delete_stack(self, STACK, said.append, sleep=self.sleeps.append)
        return said


def failure(code: str, message: str, operation: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": message}}, operation)


# How a deletion is watched


@pytest.mark.parametrize("end", ["DELETE_COMPLETE", None])
def test_it_returns_when_the_stack_is_gone_and_no_earlier(end: str | None) -> None:
    formation = Formation("CREATE_COMPLETE", *["DELETE_IN_PROGRESS"] * 700, end)
    formation.resources = {"Kept": ["CREATE_COMPLETE"],
                           "Group": ["CREATE_COMPLETE", "DELETE_IN_PROGRESS", "DELETE_IN_PROGRESS", "DELETE_COMPLETE"]}
    assert formation.delete() == ["DELETE_IN_PROGRESS Group (AWS::Group)", "DELETE_COMPLETE Group (AWS::Group)"]
    assert formation.deleted == [STACK_ID]
    assert set(formation.described[1:]) == {STACK_ID}
    assert formation.sleeps == [POLL_S] * 701


def test_what_could_not_be_deleted_is_named_with_its_reason() -> None:
    formation = Formation("DELETE_IN_PROGRESS", "DELETE_FAILED")
    formation.resources = {"Vpc": ["DELETE_FAILED"], "Gone": ["DELETE_COMPLETE"], "Group": ["DELETE_FAILED"]}
    with pytest.raises(TeardownError) as error:
        formation.delete()
    assert str(error.value).splitlines() == [
        f"{STACK} is DELETE_FAILED: these resources are left", "  Vpc (AWS::Vpc): Vpc is in use",
        "  Group (AWS::Group): Group is in use"]


def test_a_deletion_that_was_called_off_is_told_with_its_reason() -> None:
    with pytest.raises(TeardownError, match=f"{STACK} is not being deleted, it is CREATE_COMPLETE: Delete canceled"):
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
    formation.describe_stacks = lambda **_: (_ for _ in ()).throw(failure("Throttling", "slow", "DescribeStacks"))
    with pytest.raises(ClientError, match="Throttling"):
        formation.delete()


def test_against_moto(aws: Any) -> None:
    stack_id = find_stack(aws, STACK)["StackId"]
    delete_stack(aws, STACK, print)
    assert find_stack(aws, STACK) is None
    assert find_stack(aws, stack_id)["StackStatus"] == "DELETE_COMPLETE"
    assert stack_names(aws, "Nitro-") == ["Nitro-walker"]
    assert stack_names(aws, "") == ["Nitro-walker", "NitroNetwork", "theirs"]


# The command


def names(aws: Any) -> list[str]:
    return stack_names(aws, "")


ALL = ["Nitro-hopper", "Nitro-walker", "NitroNetwork", "theirs"]


def test_only_the_files_name_counts(aws: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "hopper.yaml").write_text("budget: {usd: [")
    assert cli.main(["stop", str(tmp_path / "hopper.yaml"), "--yes"]) == 0
    assert cli.main(["stop", "gone/Walker.yaml", "--yes"]) == 0
    assert names(aws) == ["NitroNetwork", "theirs"]
    said = capsys.readouterr().out.splitlines()
    assert said[:3] == ["account      123456789012, us-east-1", "stack        Nitro-hopper, CREATE_COMPLETE",
                        "stays        the results bucket, the network and the guard (stacks NitroResults, NitroNetwork"]
    assert "Nitro-hopper is gone" in said
    assert said[-1] == "Nitro-walker is gone"


def test_a_stack_by_name(aws: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["stop", "--stack", "NitroNetwork", "--yes"]) == 0
    assert "stays        the results bucket (stack NitroResults)\n" in capsys.readouterr().out
    assert cli.main(["stop", "--stack", "theirs", "--yes"]) == 2
    assert "--stack theirs is not ours to delete" in capsys.readouterr().err
    assert names(aws) == ["Nitro-hopper", "Nitro-walker", "theirs"]


def test_a_stack_that_is_not_there_is_no_success(
        aws: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.main(["stop", "ant.yaml", "--yes"]) == 2
    assert capsys.readouterr().err.startswith(
        "error: no stack Nitro-ant in account 123456789012, region us-east-1; there are: Nitro-hopper, Nitro-walker. ")
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    assert cli.main(["stop", "hopper.yaml", "--yes"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: no stack Nitro-hopper in account 123456789012, region us-west-2; there are: none. ")
    assert "AWS_DEFAULT_REGION" in error
    assert names(aws) == ALL


@pytest.mark.parametrize(("typed", "is_gone"), {
    "y\n": True, "YES\n": True, "n\n": False, "\n": False, "": False, "yikes\n": False}.items())
def test_it_asks_on_a_terminal(aws: Any, monkeypatch: pytest.MonkeyPatch, typed: str, is_gone: bool) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(typed))
    assert cli.main(["stop", "hopper.yaml"]) == (0 if is_gone else 2)
    assert (STACK in names(aws)) is not is_gone


def test_without_a_terminal_it_wants_to_be_told(
        aws: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert cli.main(["stop", "hopper.yaml"]) == 2
    assert capsys.readouterr().err == "error: nothing was deleted: there is no terminal to ask on; say --yes\n"
    assert names(aws) == ALL


@pytest.mark.parametrize(("problem", "code", "text"), [
    (TeardownError("Nitro-hopper is DELETE_FAILED"), 1, "error: Nitro-hopper is DELETE_FAILED\nThe guard goes on"),
    (failure("ExpiredToken", "expired", "DescribeStacks"), 1,
     "error: the AWS account cannot be asked: DescribeStacks: ExpiredToken: expired. What has begun goes on"),
    (KeyboardInterrupt(), 130, "\nNot waiting any longer"),
])
def test_its_exit_code_tells_what_has_become_of_it(
        aws: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], problem: BaseException,
        code: int, text: str) -> None:
    def fail(*_: object) -> None:
        raise problem

    monkeypatch.setattr(stop, "take_down", fail)
    assert cli.main(["stop", "hopper.yaml", "--yes"]) == code
    assert capsys.readouterr().err.startswith(text)


def test_without_a_region_or_credentials_it_says_what_to_do(
        aws: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        # moto sets some, and removes them again.
        for name in [name for name in os.environ if name.startswith("AWS_") and "KEY" in name]:
            patch.delenv(name)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
        assert cli.main(["stop", "hopper.yaml", "--yes"]) == 2
        assert capsys.readouterr().err == (
            "error: there are no AWS credentials: run `aws configure` or set AWS_PROFILE\n")
        patch.delenv("AWS_DEFAULT_REGION")
        assert cli.main(["stop", "hopper.yaml", "--yes"]) == 2
        assert capsys.readouterr().err == "error: no region is set: set AWS_DEFAULT_REGION=us-east-1\n"


@pytest.mark.parametrize("arguments", [[], ["a.yaml", "--stack", "NitroNetwork"]], ids=str)
def test_its_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["stop", *arguments]) == 2
    assert capsys.readouterr().err.startswith("error: stop what? Name an experiment, or a stack with --stack NAME")


def test_a_name_that_no_stack_can_have(aws: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["stop", "7.yaml", "--yes"]) == 2
    assert "the experiment file's name '7' cannot name a stack" in capsys.readouterr().err
