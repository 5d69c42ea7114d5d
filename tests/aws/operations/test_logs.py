"""``python -m runtime logs``, with real boto3, against a moto server."""

from __future__ import annotations

import time

import pytest

from runtime.aws.operations.logs import show_logs
from tests.aws.operations.accounts import Account


def test_logs_in_the_order_of_time_with_the_names_of_their_streams(aws: Account) -> None:
    aws.make_bucket()
    aws.deploy()
    group, now_s = aws.group_of("Nitro-hopper", "Learner"), time.time()
    aws.log(group, "i-1/learner", "round 1", "round 2\x1b[2J", at_s=now_s - 50)
    aws.log(group, "i-2/learner", "requirements", at_s=now_s - 100)
    aws.log(group, "i-2/learner", "long ago", at_s=now_s - 7200)
    lines = aws.run("logs", "hopper").splitlines()
    assert [line[15:] for line in lines] == [
        "i-2/learner  requirements",
        "i-1/learner  round 1",
        "i-1/learner  round 2?[2J",
    ]
    assert "long ago" in aws.run("logs", "experiments/hopper.yaml", "--since", "180")
    assert "no events" in aws.run("logs", "hopper", "--actors")
    aws.log(aws.group_of("Nitro-hopper", "Actor"), "2026/01/01/[1]a", "START")
    assert aws.run("logs", "hopper", "--actors").rstrip().endswith("2026/01/01/[1]a  START")


def test_a_stack_that_has_no_outputs_yet_has_logs_and_failed_boots_all_the_same(
    aws: Account,
) -> None:
    aws.upload(aws.make_bucket(), "hopper/first/", {"boot/i-2-image.log": b"no such image"})
    aws.make_stack(
        "Nitro-hopper", {"Resources": {"LearnerLogs1A2B": {"Type": "AWS::Logs::LogGroup"}}}
    )
    (group,) = aws.client("logs").describe_log_groups()["logGroups"]
    aws.log(group["logGroupName"], "i-1/learner", "tools")
    text = aws.run("logs", "hopper")
    assert "i-1/learner  tools" in text
    # An instance that failed to boot has no log events.
    assert text.index("boot/i-2-image.log") < text.index("  no such image")


def test_following_tells_each_event_once_and_ends_with_the_stack(aws: Account) -> None:
    bucket = aws.make_bucket()
    aws.upload(bucket, "hopper/first/", {"ended.json": b'{"stop_reason": "budget"}'})
    stack = aws.deploy()
    group, now_s = aws.group_of("Nitro-hopper", "Learner"), time.time()
    aws.log(group, "i-1/learner", "one", at_s=now_s - 30)
    # The second event is late: it is older than events already shown.
    happenings = iter(
        [
            lambda: aws.log(group, "i-2/learner", "two", at_s=now_s - 31),
            lambda: aws.log(group, "i-1/learner", "three", at_s=now_s - 5),
            lambda: None,
            lambda: aws.client("cloudformation").delete_stack(StackName=stack),
        ]
    )
    said: list[str] = []
    show_logs(
        aws.client,
        "hopper",
        said.append,
        of_actors=False,
        since_s=3600,
        is_following=True,
        now=time.time,
        sleep=lambda _: next(happenings)(),
    )
    assert [line[15:] for line in said[:3]] == [
        "i-1/learner  one",
        "i-2/learner  two",
        "i-1/learner  three",
    ]
    assert said[3] == "Nitro-hopper is gone; what the bucket kept:"
    assert '  {"stop_reason": "budget"}' in said


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
    assert "stream  of the second\nNitro-hopper is gone; what the bucket kept:" in text
    assert "of the first" not in text
    assert aws.survey()["left"] == []


def test_ctrl_c_ends_following(aws: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    aws.deploy()

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupt)
    assert aws.run("logs", "hopper", "--follow", code=130) == "interrupted\n"


def test_without_a_stack_the_bucket_tells_why_it_failed(aws: Account) -> None:
    bucket = aws.make_bucket()
    aws.upload(bucket, "hopper/old/", {"events.jsonl": b'{"event": "of an old run"}\n'})
    aws.upload(
        bucket,
        "hopper/new/",
        {
            "boot/i-1-image.log": b"".join(b"line %d\n" % n for n in range(90)),
            "refused.json": b'{"error": "another experiment"}',
            "events.jsonl": b"".join(b'{"event": "number %d"}\n' % n for n in range(50)),
            "rounds.jsonl": b"",
        },
    )
    text = aws.run("logs", "hopper")
    assert text.startswith("Nitro-hopper is not deployed; what the bucket kept:\n")
    assert "boot/i-1-image.log" in text
    assert "line 89" in text and "line 60" not in text
    assert "another experiment" in text and "number 49" in text and "number 29" not in text
    assert "of an old run" not in text
    assert "no run of walker" in aws.run("logs", "walker", code=2)


def test_without_stack_and_bucket_there_is_nothing_to_log(aws: Account) -> None:
    assert "no stack NitroResults" in aws.run("logs", "hopper", code=2)
