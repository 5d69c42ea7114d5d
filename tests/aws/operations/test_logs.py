"""``python -m runtime logs``, with real boto3, against a moto server."""

from __future__ import annotations

import time

import pytest

from tests.aws.operations.accounts import Account


def test_logs_in_the_order_of_time_with_the_names_of_their_streams(aws: Account) -> None:
    aws.upload(aws.make_bucket(), "hopper/first/", {"boot/i-2-image.log": b"no such image"})
    aws.deploy()
    group, now_s = aws.group_of("Nitro-hopper", "Learner"), time.time()
    aws.log(group, "i-1/learner", "round 1", "round 2\x1b[2J", at_s=now_s - 50)
    aws.log(group, "i-2/learner", "requirements", at_s=now_s - 100)
    aws.log(group, "i-2/learner", "long ago", at_s=now_s - 7200)
    lines = aws.run("logs", "hopper").splitlines()
    assert [line[26:] for line in lines[:3]] == [
        "i-2/learner  requirements",
        "i-1/learner  round 1",
        "i-1/learner  round 2?[2J",
    ]
    # An instance whose boot failed has no log events.
    assert lines[3].endswith(f"aws logs tail {group} --follow")
    assert lines[5:] == ["boot/i-2-image.log", "  no such image"]
    assert "long ago" in aws.run("logs", "experiments/hopper.yaml", "--since", "180")
    assert "0 events in the last 60 minutes" in aws.run("logs", "hopper", "--actors")
    aws.log(aws.group_of("Nitro-hopper", "Actor"), "2026/01/01/[1]a", "START")
    assert "2026/01/01/[1]a  START" in aws.run("logs", "hopper", "--actors")


@pytest.mark.parametrize("whose", ["Learner", "Actor"])
def test_logs_of_a_stack_that_is_gone_are_kept_and_those_of_the_last_are_shown(
    aws: Account, whose: str
) -> None:
    aws.upload(aws.make_bucket(), "hopper/first/", {"ended.json": b"{}"})
    for message in ("of the first", "of the second"):
        stack = aws.deploy()
        aws.log(aws.group_of("Nitro-hopper", whose), "stream", message)
        aws.client("cloudformation").delete_stack(StackName=stack)
        time.sleep(0.002)
    text = aws.run("logs", "hopper", *(["--actors"] if whose == "Actor" else []))
    assert "stream  of the second\n" in text and "of the first" not in text


def test_without_a_group_the_bucket_tells_why_the_newest_run_failed(aws: Account) -> None:
    assert "no stack NitroResults" in aws.run("logs", "hopper", code=2)
    bucket = aws.make_bucket()
    aws.upload(bucket, "hopper/old/", {"ended.json": b"of an old run"})
    boot = b"".join(b"line %d\n" % n for n in range(90))
    files = {"boot/i-1-image.log": boot, "refused.json": b"another experiment", "ended.json": b""}
    aws.upload(bucket, "hopper/new/", files)
    text = aws.run("logs", "hopper")
    assert text.startswith("Nitro-hopper has no log group LearnerLogs\n")
    assert "line 89" in text and "line 60" not in text
    assert "another experiment" in text and "of an old run" not in text
    assert "no run of walker" in aws.run("logs", "walker", code=2)
