"""``python -m runtime stop``, against moto: it asks, deletes the right stacks, and reports the result."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import moto
import pytest
from botocore.exceptions import ClientError

from runtime.aws.guard.teardown import TeardownError
from runtime.aws.operations import stop
from runtime.aws.stacks import stack_names
from runtime.cli import main as cli

TEMPLATE = json.dumps({"Resources": {"Topic": {"Type": "AWS::SNS::Topic"}}})
STACK = "Nitro-hopper"


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Returns a CloudFormation client of an account with the stacks Nitro-hopper and Nitro-walker, and others."""
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


def names(aws: Any) -> list[str]:
    return stack_names(aws, "")


ALL = ["Nitro-hopper", "Nitro-walker", "NitroNetwork", "theirs"]


def test_only_the_files_name_counts(
    aws: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hopper.yaml").write_text("budget: {usd: [")
    assert cli.main(["stop", str(tmp_path / "hopper.yaml"), "--yes"]) == 0
    assert cli.main(["stop", "gone/Walker.yaml", "--yes"]) == 0
    assert names(aws) == ["NitroNetwork", "theirs"]
    said = capsys.readouterr().out.splitlines()
    assert said[:3] == [
        "account      123456789012, us-east-1",
        "stack        Nitro-hopper, CREATE_COMPLETE",
        "stays        the results bucket, and other shared stacks",
    ]
    assert "Nitro-hopper is gone" in said
    assert said[-1] == "Nitro-walker is gone"


def test_a_stack_by_name(aws: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["stop", "--stack", "NitroNetwork", "--yes"]) == 0
    assert "NitroNetwork is gone\n" in capsys.readouterr().out
    assert cli.main(["stop", "--stack", "theirs", "--yes"]) == 2
    assert "--stack theirs is not ours to delete" in capsys.readouterr().err
    assert names(aws) == ["Nitro-hopper", "Nitro-walker", "theirs"]


def test_a_stack_that_is_not_there_is_no_success(
    aws: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(["stop", "ant.yaml", "--yes"]) == 2
    assert capsys.readouterr().err.startswith(
        "error: no stack Nitro-ant in account 123456789012, region us-east-1; there are: Nitro-hopper, Nitro-walker. "
    )
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    assert cli.main(["stop", "hopper.yaml", "--yes"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(
        "error: no stack Nitro-hopper in account 123456789012, region us-west-2; there are: none. "
    )
    assert "AWS_DEFAULT_REGION" in error
    assert names(aws) == ALL


@pytest.mark.parametrize(
    ("typed", "is_gone"),
    {"y\n": True, "YES\n": True, "n\n": False, "\n": False, "": False, "yikes\n": False}.items(),
)
def test_it_asks_on_a_terminal(
    aws: Any, monkeypatch: pytest.MonkeyPatch, typed: str, is_gone: bool
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(typed))
    assert cli.main(["stop", "hopper.yaml"]) == (0 if is_gone else 2)
    assert (STACK in names(aws)) is not is_gone


@pytest.mark.parametrize("stdin", [io.StringIO("y\n"), None])
def test_without_a_terminal_it_wants_to_be_told(
    aws: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    stdin: io.StringIO | None,
) -> None:
    monkeypatch.setattr("sys.stdin", stdin)
    assert cli.main(["stop", "hopper.yaml"]) == 2
    assert (
        capsys.readouterr().err
        == "error: nothing was deleted: there is no terminal to ask on; say --yes\n"
    )
    assert names(aws) == ALL


@pytest.mark.parametrize(
    ("problem", "code", "text"),
    [
        (
            TeardownError("Nitro-hopper is DELETE_FAILED"),
            1,
            "error: Nitro-hopper is DELETE_FAILED\nThe guard keeps",
        ),
        (
            ClientError(
                {"Error": {"Code": "ExpiredToken", "Message": "expired"}}, "DescribeStacks"
            ),
            1,
            "error: the AWS account cannot be asked: DescribeStacks: ExpiredToken: expired. What has begun continues",
        ),
        (KeyboardInterrupt(), 130, "\nNot waiting any longer"),
    ],
)
def test_its_exit_code_tells_what_has_become_of_it(
    aws: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    problem: BaseException,
    code: int,
    text: str,
) -> None:
    def fail(*_: object) -> None:
        raise problem

    monkeypatch.setattr(stop, "take_down", fail)
    assert cli.main(["stop", "hopper.yaml", "--yes"]) == code
    assert capsys.readouterr().err.startswith(text)


def test_a_name_that_no_stack_can_have(aws: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["stop", "7.yaml", "--yes"]) == 2
    assert "the experiment file's name '7' cannot name a stack" in capsys.readouterr().err
