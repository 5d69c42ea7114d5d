"""The reader follows clients wherever code takes them, and reports an error if it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stacks.iam import calls
from tests.stacks.iam.calls import ALL, Call, UnfollowedError, calls_from, calls_of_script

HEAD = """
from runtime.aws.clients import clients
from runtime.aws.asking import ask, list_all
client = clients()
"""


def read(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> set[Call]:
    """Returns the calls of ``entry`` in a module with that text."""
    (folder / "program.py").write_text(HEAD + text)
    (folder / "runtime").symlink_to(calls.ROOT / "runtime")
    monkeypatch.setattr(calls, "ROOT", folder)
    calls_from.cache_clear()
    try:
        return set(calls_from("program", "entry"))
    finally:
        calls_from.cache_clear()


@pytest.mark.parametrize(
    ("text", "operations"),
    [
        ("def entry():\n    return client('sns').publish(TopicArn='t')", {"Publish"}),
        (
            "def entry():\n    if one := clients()('sns'):\n        ask(lambda: one.publish())",
            {"Publish"},
        ),
        (
            "def entry():\n    a, b = client('s3'), client('sns')\n    a.get_object()\n    b.publish()",
            {"GetObject", "Publish"},
        ),
        ("def entry():\n    list_all(client('ec2'), 'describe_tags', 'Tags')", {"DescribeTags"}),
        (
            "class Kept:\n    def __init__(self, made):\n        self.made = made\n    def go(self):\n"
            "        self._call(self.made.put_item)\n    def _call(self, operation):\n        operation()\n"
            "def entry():\n    Kept(client('dynamodb')).go()",
            {"PutItem"},
        ),
        (
            "def make():\n    return client('sqs')\ndef use(queue):\n    queue.send_message()\ndef entry():\n"
            "    use(queue=make())",
            {"SendMessage"},
        ),
        ("def entry():\n    pass\ndef other():\n    client('s3').delete_object()", set()),
    ],
    ids=["direct", "named", "pair", "paginated", "attribute", "argument", "unreached"],
)
def test_a_client_is_followed(
    text: str, operations: set[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert {call.operation for call in read(monkeypatch, tmp_path, text)} == operations


@pytest.mark.parametrize(
    "text",
    [
        "def entry():\n    client('sns').no_such_operation()",
        "def entry():\n    getattr(client('sns'), 'publish')()",
        "from functools import partial\ndef entry(use):\n    partial(use, client('sns'))",
        "def entry(known):\n    known['sns'] = client('sns')",
        "def entry(found):\n    client('ec2')\n    found.describe_tags()",
        "def entry():\n    client('ec2').get_waiter('instance_running')",
        "def entry(name):\n    client('ec2').get_paginator(name)",
    ],
    ids=["operation", "getattr", "partial", "container", "lost", "waiter", "paginator"],
)
def test_a_client_that_cannot_be_followed_is_an_error(
    text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(UnfollowedError):
        read(monkeypatch, tmp_path, text)


def test_the_commands_of_a_script_are_read() -> None:
    script = """
        # aws s3api get-object is not called here
        command -v aws || retry dnf install awscli-2
        retry aws s3api get-object --bucket "${URL%%/*}" --key one file || true
        aws s3api put-object --bucket b --key "$folder-$1.log" --body x || true
        found=$(aws s3api list-objects-v2 --bucket b \\
            --prefix "$PREFIX" --query 'length(Contents)')
        aws cloudformation describe-stacks # all
        aws ecr get-login-password | docker login
    """
    assert calls_of_script(script, {"URL": "b", "folder": "a", "PREFIX": "one/"}) == [
        Call("s3", "GetObject", "s3://b/one"),
        Call("s3", "PutObject", "s3://b/a-?.log"),
        Call("s3", "ListObjectsV2", "one/"),
        Call("cloudformation", "DescribeStacks", ALL),
        Call("ecr", "GetAuthorizationToken"),
    ]
    with pytest.raises(UnfollowedError):
        calls_of_script("aws s3 sync here s3://b", {})
