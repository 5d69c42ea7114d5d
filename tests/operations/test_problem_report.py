"""``python -m runtime report-problem``, with real boto3, against a moto server."""

from __future__ import annotations

import errno
import json
import zipfile
from pathlib import Path

import pytest

from runtime.operations.problem_report import hidden
from tests.operations.accounts import ACCOUNT_ID, Account, start


def texts_of(path: Path) -> dict[str, str]:
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name).decode() for name in file.namelist()}


def test_what_happened_is_in_it_and_no_secret(
    aws: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHE_PASSWORD", "tooth-brush-77")
    ledger, bucket, stack = aws.make_guard(), aws.make_bucket(), aws.deploy()
    start(ledger, stack)
    said = (
        "rediss://nitro:hunter2@10.0.0.1:6380",
        "tooth-brush-77",
        "AKIAIOSFODNN7EXAMPLE",
        "me@example.org",
        f"arn:aws:s3:::{ACCOUNT_ID}",
    )
    aws.log(aws.group_of("Nitro-hopper", "Learner"), "i-1/boot", "requirements", *said)
    aws.upload(
        bucket,
        "hopper/first/",
        {
            "boot/i-1-tools.json": b'{"message": "step \'tools\' failed"}',
            "ended.json": b"{}",
            "events.jsonl": " ".join(said).encode(),
            "policy.safetensors": b"large",
            "checkpoints/1": b"large",
            "boot/../../../../etc/cron.d/x": b"escaped",
            "boot/..": b"escaped",
            "boot/AKIAIOSFODNN7EXAMPLE.json": b"{}",
        },
    )
    aws.upload(bucket, "hopper/../", {"ended.json": b"escaped"})
    aws.upload(bucket, "walker/first/", {"events.jsonl": b"of another experiment"})
    printed = aws.run("report-problem", "hopper")
    found = texts_of(tmp_path / "hopper-problem.zip")
    assert set(found) <= set(printed.split())
    folder = next(name for name in found if name.startswith("stacks/Nitro-hopper-")).rpartition(
        "/"
    )[0]
    assert json.loads(found[f"{folder}/events.json"]) and json.loads(
        found[f"{folder}/resources.json"]
    )
    (logged,) = [text for name, text in found.items() if "/logs/" in name and "LearnerLogs" in name]
    assert logged.startswith("i-1/boot\n") and "requirements" in logged
    assert "step 'tools' failed" in found["runs/first/boot/i-1-tools.json"]
    assert {name for name in found if name.startswith("runs/")} == {
        "runs/first/boot/i-1-tools.json",
        "runs/first/boot/ACCESS-KEY.json",
        "runs/first/ended.json",
        "runs/first/events.jsonl",
    }
    assert json.loads(found["quotas.json"])["lambda"]["ConcurrentExecutions"] == 1000
    assert "hopper/first" in found["status.json"]
    assert (
        hidden(found["README.txt"], ACCOUNT_ID) == found["README.txt"]
        and "SECRET\n" not in found["README.txt"]
    )
    everything = "".join([*found, *found.values()])
    assert [
        word
        for word in (
            "hunter2",
            "tooth-brush-77",
            "AKIAIOSF",
            "me@example.org",
            ACCOUNT_ID,
            "another experi",
        )
        if word in everything
    ] == []


@pytest.mark.parametrize(
    "text",
    [
        'own {"value": "7Q\\"x/é+7Q"}'.replace("é", "\\u00e9"),
        "own https://h/?p=7Q%22x%2F%C3%A9%2B7Q",
        "own https://h/?p=7Q%22x%2f%c3%a9%2b7Q",
        "redis://u:pa/7Q@h:6380/0",
        "redis://:pa@7Q@h",
        "https://7Q:x-oauth-basic@github.com/a",
        "https://7Q@github.com/a",
        '{"SecretAccessKey":"7Q/ab+c=","x":1}',
        '{"Token": "7Q"}',
        r'"message": "{\"SecretAccessKey\": \"7Q/ab\"}"',
        "AWS_SECRET_ACCESS_KEY=7Q",
        "export HF_TOKEN='7Q'",
        "https://h/x?X-Amz-Signature=7Q&X-Amz-Expires=5",
        "Authorization: Basic 7Q==",
        '"authorization": "Bearer 7Q"',
        "Authorization: AWS4 Credential=a, Signature=7Q",
        "api-key: 7Q",
        "apiKey=7Q",
        '"password": "two 7Q"',
        "my_password = 12347Q",
        "password=123456789",
        "AWSxAKIAIOSFODNN7EXAMPLE",
        "akiaiosfodnn7example_",
        f"{ACCOUNT_ID[:4]}-{ACCOUNT_ID[4:8]}-{ACCOUNT_ID[8:]}",
    ],
)
def test_what_looks_like_a_secret_is_hidden(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", '7Q"x/é+7Q')
    found = hidden(text, ACCOUNT_ID)
    assert [
        word
        for word in ("7Q", "iosfodnn", "123456789", ACCOUNT_ID[8:])
        if word in found.lower().replace("7q", "7Q")
    ] == [], found


@pytest.mark.parametrize(
    "text",
    [
        '{"tokens": 512, "max_tokens": 5}',
        '{"a": {"token_count": 1.5}}',
        '{"password": null}',
        "The security token included in the request is expired",
        "ExpiredTokenException: The token is old",
        "arn:aws:secretsmanager:us-east-1:1:secret:mine",
        "secretsmanager:GetSecretValue",
        "GetAuthorizationToken",
        "https://registry.npmjs.org/@aws-cdk/core",
        "x.dkr.ecr.us-east-1.amazonaws.com/nitro@sha256:12",
        '{"learner_steps": 5, "budget_usd": 2.0, "wait_s": 0.5}',
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert hidden(text, ACCOUNT_ID) == text


def test_what_cannot_be_read_is_named_and_the_rest_is_there(aws: Account, tmp_path: Path) -> None:
    aws.make_guard()
    aws.client("dynamodb").delete_table(TableName="ledger")
    out = tmp_path / "mine.zip"
    assert f"written to:   {out}" in aws.run("report-problem", "hopper", "--out", str(out))
    found = texts_of(out)
    assert "bucket: KeptError: no stack NitroResults" in found["problems.txt"]
    assert ": the ledger ledger: " in found["problems.txt"]
    assert any(name.startswith("stacks/NitroGuard-") for name in found)
    assert "is there already; name another file" in aws.run(
        "report-problem", "hopper", "--out", str(out), code=2
    )
    assert "cannot be written: No such file" in aws.run(
        "report-problem", "hopper", "--out", "no/such/x.zip", code=2
    )


def test_half_a_file_is_not_in_the_way_of_the_next_attempt(
    aws: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "mine.zip"

    def fill_the_disk(file: zipfile.ZipFile, *_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(zipfile.ZipFile, "writestr", fill_the_disk)
        assert "mine.zip: cannot be written: No space" in aws.run(
            "report-problem", "hopper", "--out", str(out), code=2
        )
    assert f"written to:   {out}" in aws.run("report-problem", "hopper", "--out", str(out))
