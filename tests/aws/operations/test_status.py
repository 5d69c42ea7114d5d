"""``python -m runtime status``, with real boto3, against a moto server."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.aws.ledger import FINISHED, Ledger
from runtime.names import EXPERIMENT_TAG, STACK_ID_TAG
from tests.aws.operations.accounts import (
    ACCOUNT_ID,
    DELETED_STACK,
    TABLE,
    ZONE,
    Account,
    flat,
    start,
)
from tests.simulators.aws.moto_server import REGION
from tests.simulators.aws.moto_types import IMAGE_ID


def test_an_empty_account_has_nothing_and_says_loudly_that_nothing_is_guarded(aws: Account) -> None:
    text = aws.run("status")
    assert "123456789012, us-east-1" in text
    assert "DEPLOYED\nnone\n" in text and "MAY BE LEFT" not in text
    assert "There is no stack NitroGuard: NOTHING ENDS DEPLOYMENTS BY ITSELF" in text


def test_a_deployment_that_trains_with_its_dollars_and_its_instance(aws: Account) -> None:
    ledger = aws.make_guard()
    start(ledger, aws.deploy())
    ledger.tick(time.time() - 20)
    text = flat(aws.run("status"))
    assert re.search(r"training; i-\w+ g4dn\.xlarge running; heartbeat 0:1\d ago", text)
    assert (
        "spent $0.2500, reserved $0.0500; at most $0.3000 of $2.0000 by now; burns $1.0000 an hour"
        in text
    )
    assert re.search(r"old; 7:59:\d\d left", text)
    assert "looked 0:20 ago" in text and "!!!" not in text
    assert "burning $1.0000 an hour now" in text
    assert (
        f"https://{REGION}.console.aws.amazon.com/cloudwatch/home#dashboards/dashboard/Nitro"
        in text
    )


def _silent(aws: Account, ledger: Ledger) -> None:
    start(ledger, aws.deploy(), ago_s=400.0, covered_until_s=time.time() - 3600)


def _torn_down(aws: Account, ledger: Ledger) -> None:
    stack = aws.deploy()
    start(ledger, stack)
    ledger.order("hopper/first", stack=stack, reason="its budget is used up", now_s=1.0)
    for step in ("results", "learner"):
        ledger.step_done("hopper/first", step, stack=stack, now_s=2.0)
    ledger.count_failures("hopper/first", 1, stack=stack)


def _gone(aws: Account, ledger: Ledger) -> None:
    start(ledger, DELETED_STACK, heartbeat_at_s=1.8e9)
    ledger.finish("hopper/first", stack=DELETED_STACK, reason="target_return")
    ledger.close("hopper/first", stack=DELETED_STACK, spent_usd=1.25, now_s=time.time())


def _unread(aws: Account, ledger: Ledger) -> None:
    start(ledger, aws.deploy())
    aws.client("dynamodb").delete_table(TableName=TABLE)


@pytest.mark.parametrize(
    ("happens", "words"),
    [
        (lambda aws, ledger: aws.deploy(), "none has reported; i-"),
        (lambda aws, ledger: aws.deploy(), "at most $0.00"),
        (lambda aws, ledger: aws.deploy(hours=0.0), "its lifetime is over"),
        (
            lambda aws, ledger: aws.deploy(budget_usd="a lot"),
            "ATTENTION its tag nitro:budget-usd is 'a lot'",
        ),
        (_silent, "ago: SILENT"),
        (_torn_down, "its budget is used up; done: results, learner; failures: 1"),
        (_gone, "hopper/first $1.2500 of $2: target_return"),
        (_unread, "!!! WHAT THE LEDGER HOLDS IS NOT KNOWN"),
        (_unread, "hopper/first stack Nitro-hopper"),
        (lambda aws, ledger: None, "!!! IT DOES NOT WATCH, it never looked"),
        (
            lambda aws, ledger: ledger.tick(time.time() - 1000),
            "!!! IT DOES NOT WATCH, it looked 16:40 ago",
        ),
    ],
)
def test_what_people_should_know(
    aws: Account, happens: Callable[[Account, Ledger], None], words: str
) -> None:
    ledger = aws.make_guard()
    happens(aws, ledger)
    assert words in flat(aws.run("status"))


def test_one_experiment_with_its_last_round(aws: Account) -> None:
    start(aws.make_guard(), aws.deploy())
    aws.deploy("walker")
    assert aws.survey("hopper")["deployments"][0]["round"] is None, "there is no bucket"
    row = {"episode_return_mean": 1234.5, "actors_returned": 7, "actor_count": 8}
    rows = [json.dumps({"round_index": index, **row}) for index in (1, 2)]
    aws.upload(
        aws.make_bucket(),
        "hopper/first/",
        {"rounds.jsonl": "\n".join([*rows, '{"round_in']).encode()},
    )
    text = flat(aws.run("status", "experiments/hopper.yaml"))
    assert "2: return 1234.5, evaluated None, 7 of 8 actors" in text and "walker" not in text
    assert "nothing of ant in account 123456789012, region us-east-1; deployed are: hopper" in (
        aws.run("status", "ant", code=2)
    )


def test_what_is_billed_and_has_an_experiments_tag_but_no_stack_may_be_left(aws: Account) -> None:
    stack = aws.deploy("hopper")
    ended, instance = run_instance(aws, "walker"), run_instance(aws, "walker")
    aws.client("ec2").terminate_instances(InstanceIds=[ended])
    make_volume(aws, "hopper")
    make_volume(aws, "hopper", **{STACK_ID_TAG: stack})
    old = make_volume(aws, "hopper", **{STACK_ID_TAG: DELETED_STACK})
    volume = make_volume(aws, "walker")
    aws.client("logs").create_log_group(
        logGroupName="Nitro-walker-LearnerLogs1-x", tags={EXPERIMENT_TAG: "walker"}
    )
    here = f"arn:aws:ec2:{REGION}:{ACCOUNT_ID}"
    assert [one["arn"] for one in aws.survey("walker")["left"]] == [
        f"{here}:instance/{instance}",
        f"{here}:volume/{volume}",
    ]
    text = aws.run("status")
    assert f"walker: {here}:instance/{instance}\n" in text
    assert re.findall("hopper: (.*)", text) == [f"{here}:volume/{old}"]
    assert aws.survey()["gone"] == []


def test_a_run_that_is_gone_has_its_state_in_the_document(aws: Account) -> None:
    _gone(aws, aws.make_guard())
    (gone,) = aws.survey()["gone"]
    assert (gone["state"], gone["spent_usd"]) == (FINISHED, 1.25)
    assert "ledger" not in gone


def run_instance(aws: Account, experiment: str) -> str:
    tags = [{"Key": EXPERIMENT_TAG, "Value": experiment}]
    (instance,) = aws.client("ec2").run_instances(
        ImageId=IMAGE_ID,
        InstanceType="g4dn.xlarge",
        MinCount=1,
        MaxCount=1,
        TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
    )["Instances"]
    return instance["InstanceId"]


def make_volume(aws: Account, experiment: str, **tags: str) -> str:
    """Makes a volume with the experiment's tag and others."""
    named = [
        {"Key": key, "Value": value} for key, value in (tags | {EXPERIMENT_TAG: experiment}).items()
    ]
    return aws.client("ec2").create_volume(
        AvailabilityZone=ZONE,
        Size=50,
        TagSpecifications=[{"ResourceType": "volume", "Tags": named}],
    )["VolumeId"]


@pytest.mark.parametrize("command", ["status", "logs", "results", "stop"])
def test_without_credentials_or_region_one_line_says_so(
    aws: Account, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    assert aws.run(command, "hopper", code=2).startswith("error: no region is set")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(aws.tmp_path / "none"))
    assert aws.run(command, "hopper", code=2).startswith("error: there are no AWS credentials")


@pytest.mark.parametrize("command", ["status", "logs", "results", "stop"])
def test_a_run_on_this_machine_is_for_another_command(
    aws: Account, command: str, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("seed: 3")
    error = aws.run(command, str(tmp_path / "run"), code=2)
    assert "Ctrl-C stops a run here" in flat(error)
    assert f"python -m runtime report {tmp_path / 'run'} shows it" in flat(error)
