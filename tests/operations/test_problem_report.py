"""``python -m runtime report-problem``, with real boto3, against a moto server."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from tests.operations.accounts import ACCOUNT_ID, Account, start


def texts_of(path: Path) -> dict[str, str]:
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name).decode() for name in file.namelist()}


def test_what_happened_is_in_it_and_no_secret(aws: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHE_PASSWORD", "tooth-brush-77")
    ledger, bucket, stack = aws.make_guard(), aws.make_bucket(), aws.deploy()
    start(ledger, stack)
    said = ("rediss://nitro:hunter2@10.0.0.1:6380", "tooth-brush-77", "AKIAIOSFODNN7EXAMPLE", "me@example.org",
            f"arn:aws:s3:::{ACCOUNT_ID}")
    aws.log(aws.group_of("Nitro-hopper", "Learner"), "i-1/boot", "requirements", *said)
    aws.upload(bucket, "hopper/first/", {
        "boot/i-1-tools.json": b'{"message": "step \'tools\' failed"}', "ended.json": b"{}",
        "events.jsonl": " ".join(said).encode(), "policy.safetensors": b"large", "checkpoints/1": b"large"})
    aws.upload(bucket, "walker/first/", {"events.jsonl": b"of another experiment"})
    printed = aws.run("report-problem", "hopper")
    found = texts_of(tmp_path / "hopper-problem.zip")
    assert set(found) <= set(printed.split())
    folder = next(name for name in found if name.startswith("stacks/Nitro-hopper-")).rpartition("/")[0]
    assert json.loads(found[f"{folder}/events.json"]) and json.loads(found[f"{folder}/resources.json"])
    (logged,) = [text for name, text in found.items() if "/logs/" in name and "LearnerLogs" in name]
    assert logged.startswith("i-1/boot\n") and "requirements" in logged
    assert "step 'tools' failed" in found["runs/first/boot/i-1-tools.json"]
    assert {name for name in found if name.startswith("runs/")} == {
        "runs/first/boot/i-1-tools.json", "runs/first/ended.json", "runs/first/events.jsonl"}
    assert json.loads(found["quotas.json"])["lambda"]["ConcurrentExecutions"] == 1000
    assert "hopper/first" in found["status.json"]
    everything = "".join(found.values())
    assert [word for word in ("hunter2", "tooth-brush-77", "AKIAIOSF", "me@example.org", ACCOUNT_ID, "another experi")
            if word in everything] == []


def test_what_cannot_be_read_is_named_and_the_rest_is_there(aws: Account, tmp_path: Path) -> None:
    aws.make_guard()
    aws.client("dynamodb").delete_table(TableName="ledger")
    out = tmp_path / "mine.zip"
    assert f"written to:   {out}" in aws.run("report-problem", "hopper", "--out", str(out))
    found = texts_of(out)
    assert "bucket: KeptError: no stack NitroResults" in found["problems.txt"]
    assert "stacks: the ledger ledger: " in found["problems.txt"]
    assert any(name.startswith("stacks/NitroGuard-") for name in found)
    assert "is there already; name another file" in aws.run("report-problem", "hopper", "--out", str(out), code=2)
    assert "cannot be written: No such file" in aws.run("report-problem", "hopper", "--out", "no/such/x.zip", code=2)
