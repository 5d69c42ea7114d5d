"""``python -m runtime status``, with real boto3, against a moto server."""

from __future__ import annotations

import io
import json
import re
import time
import zipfile
from pathlib import Path

import pytest

from runtime.aws.ledger import FINISHED
from runtime.names import EXPERIMENT_TAG, STACK_ID_TAG
from stacks.assembly import make_app
from tests.aws.operations.accounts import (
    ACCOUNT_ID,
    DELETED_STACK,
    LEARNER,
    RULE,
    TABLE,
    ZONE,
    Account,
    flat,
    start,
)
from tests.helpers import ROOT, SMALL_EXPERIMENT
from tests.simulators.aws.moto_server import REGION
from tests.simulators.aws.moto_types import IMAGE_ID, deploy

MAY_BE_LEFT = "MAY BE LEFT WITHOUT A STACK (AWS LISTS TAGS FOR HOURS AFTER A DELETION)"


def test_an_empty_account_has_nothing_and_says_loudly_that_nothing_is_guarded(aws: Account) -> None:
    text = aws.run("status")
    assert "123456789012, us-east-1" in text
    assert "DEPLOYED\nnone\n" in text
    assert MAY_BE_LEFT not in text
    assert "There is no stack NitroGuard: NOTHING ENDS DEPLOYMENTS BY ITSELF" in text
    document = aws.survey()
    assert (document["deployments"], document["left"], document["gone"], document["guard"]) == (
        [],
        [],
        [],
        None,
    )


def test_a_deployment_that_trains_with_its_dollars_and_its_instance(aws: Account) -> None:
    ledger = aws.make_guard()
    ledger.tick(time.time() - 20)
    start(ledger, aws.deploy())
    text = aws.run("status")
    text = flat(text)
    assert re.search(r"training; g4dn\.xlarge i-\w+ running; heartbeat 0:1\d ago", text)
    assert (
        "spent $0.2500, reserved $0.0500; at most $0.3000 of $2.0000 by now; burns $1.0000 an hour"
        in text
    )
    assert re.search(r"old; 7:59:\d\d left", text)
    assert "its rule nitro-guard is ENABLED" in text and "!!!" not in text
    assert "burning $1.0000 an hour now" in text


def test_without_a_ledger_the_tags_tell_what_a_deployment_burns(aws: Account) -> None:
    aws.deploy()
    (found,) = aws.survey()["deployments"]
    assert (found["spent_usd"], found["burn_usd_per_hour"], found["budget_usd"]) == (None, 1.5, 2.0)
    assert 0 <= found["projected_usd"] < 0.1
    text = flat(aws.run("status"))
    assert "none has reported; g4dn.xlarge" in text and "nothing is known of it" in text


def test_a_learner_that_is_silent_is_said_to_be(aws: Account) -> None:
    ledger = aws.make_guard()
    start(ledger, aws.deploy(), ago_s=400.0, covered_until_s=time.time() - 3600)
    (found,) = aws.survey()["deployments"]
    assert found["is_silent"] and 399 < found["heartbeat_s"] < 460
    # Time since the stack began that no record covers is billed at the current cost.
    assert found["projected_usd"] == pytest.approx(0.3, abs=0.05)
    assert re.search("heartbeat [67]:.. ago: SILENT", flat(aws.run("status")))


def test_a_deployment_that_is_taken_down(aws: Account) -> None:
    ledger = aws.make_guard()
    stack = aws.deploy()
    start(ledger, stack)
    now_s = time.time()
    ledger.order("hopper/first", stack=stack, reason="its budget is used up", now_s=now_s - 200)
    for step, ago_s in (("stop key", 190), ("learner", 100)):
        ledger.step_done("hopper/first", step, stack=stack, now_s=now_s - ago_s)
    ledger.count_failure("hopper/first", stack=stack)
    text = flat(aws.run("status"))
    assert "teardown its budget is used up; done: stop key, learner; failures: 1" in text
    (found,) = aws.survey()["deployments"]
    assert list(found["teardown"]["steps"]) == ["stop key", "learner"]


def test_a_lifetime_that_is_over(aws: Account) -> None:
    aws.deploy(hours=0.0)
    assert "its lifetime is over" in aws.run("status")


def test_damaged_tags_are_told(aws: Account) -> None:
    aws.deploy("hopper", budget_usd="a lot")
    aws.make_stack("Nitro-bare", {"Resources": LEARNER})
    found = {one["stack"]: one for one in aws.survey()["deployments"]}
    assert found["Nitro-hopper"]["unreadable"] == "its tag nitro:budget-usd is 'a lot'"
    assert "nitro:lifetime-hours is None" in found["Nitro-bare"]["unreadable"]
    text = flat(aws.run("status"))
    assert "ATTENTION" in text and "burning $1.5000 an hour" in text


def test_runs_that_are_gone_with_what_they_spent(aws: Account) -> None:
    ledger = aws.make_guard()
    start(ledger, DELETED_STACK, heartbeat_at_s=1.8e9)
    ledger.finish("hopper/first", stack=DELETED_STACK, reason="target_return")
    ledger.close("hopper/first", stack=DELETED_STACK, spent_usd=1.25, now_s=time.time())
    text = aws.run("status")
    assert re.search(r"hopper/first +\$1\.2500 of \$2: target_return", text)
    assert aws.survey()["gone"][0]["state"] == FINISHED


def test_a_guard_that_does_not_watch_is_told(aws: Account) -> None:
    ledger = aws.make_guard()
    assert "never looked" in aws.run("status") and "IT DOES NOT WATCH" in aws.run("status")
    ledger.tick(time.time() - 1000)
    assert "looked 16:4" in (text := aws.run("status")) and "IT DOES NOT WATCH" in text
    ledger.tick(time.time())
    assert "IT DOES NOT WATCH" not in aws.run("status")
    aws.client("events").disable_rule(Name=RULE)
    text = aws.run("status")
    assert "IT DOES NOT WATCH" in text and f"aws events enable-rule --name {RULE}" in text


def test_a_guard_without_its_rule_does_not_watch(aws: Account) -> None:
    aws.make_guard().tick(time.time())
    aws.client("events").delete_rule(Name=RULE)
    text = aws.run("status")
    assert "its rule nitro-guard is not there" in text and "IT DOES NOT WATCH" in text


def test_a_ledger_that_cannot_be_read_hides_nothing_else(aws: Account) -> None:
    ledger = aws.make_guard()
    start(ledger, aws.deploy())
    aws.client("dynamodb").delete_table(TableName=TABLE)
    text = flat(aws.run("status"))
    assert "WHAT THE LEDGER HOLDS IS NOT KNOWN" in text
    assert "hopper/first" in text


def test_whether_somebody_gets_the_guards_reports(aws: Account) -> None:
    aws.make_guard()
    topic = aws.survey()["guard"]["topic"]
    assert f"aws sns subscribe --topic-arn {topic} --protocol email" in aws.run("status")
    aws.client("sns").subscribe(TopicArn=topic, Protocol="email", Endpoint="me@example.org")
    text = aws.run("status")
    assert "1 subscribed to its reports" in text and "sns subscribe" not in text


def test_one_experiment_in_more_detail(aws: Account) -> None:
    bucket = aws.make_bucket()
    start(aws.make_guard(), aws.deploy())
    aws.deploy("walker")
    aws.upload(
        bucket,
        "hopper/first/",
        {
            "rounds.jsonl": b"".join(
                json.dumps(
                    {
                        "round_index": index,
                        "episode_return_mean": 1234.5,
                        "evaluation_return_mean": None,
                        "actors_returned": 7,
                        "actor_count": 8,
                    }
                ).encode()
                + b"\n"
                for index in (1, 2)
            )
            + b'{"round_in'
        },
    )
    text = aws.run("status", "experiments/hopper.yaml")
    assert "2: return 1234.5, evaluated None, 7 of 8 actors" in flat(text)
    assert f"s3://{bucket}/hopper/first/" in text and "https://example.org/Nitro-hopper" in text
    assert "walker" not in text
    assert aws.survey("hopper")["deployments"][0]["round"]["round_index"] == 2


def test_a_coordinator_with_its_executions(aws: Account) -> None:
    wait = {"Type": "Wait", "Seconds": 900, "End": True}
    definition = {"StartAt": "Wait", "States": {"Wait": wait}}
    aws.make_stack(
        "Nitro-hopper",
        {
            "Resources": {
                "Machine": {
                    "Type": "AWS::StepFunctions::StateMachine",
                    "Properties": {
                        "StateMachineName": "Nitro-hopper-coordinator",
                        "RoleArn": f"arn:aws:iam::{ACCOUNT_ID}:role/it",
                        "StateMachineType": "STANDARD",
                        "DefinitionString": json.dumps(definition),
                    },
                }
            },
            "Outputs": {"StateMachine": {"Value": {"Ref": "Machine"}}},
        },
    )
    assert aws.survey()["deployments"][0]["executions"] == []
    machines = aws.client("stepfunctions")
    (machine,) = machines.list_state_machines()["stateMachines"]
    for name in ("one", "two"):
        machines.start_execution(stateMachineArn=machine["stateMachineArn"], name=name)
    assert "executions RUNNING, RUNNING" in flat(aws.run("status", "hopper"))


def test_what_is_billed_and_has_an_experiments_tag_but_no_stack_may_be_left(aws: Account) -> None:
    aws.deploy("hopper")
    ended, instance = run_instance(aws, "walker"), run_instance(aws, "walker")
    aws.client("ec2").terminate_instances(InstanceIds=[ended])
    make_volume(aws, "hopper")
    volume = make_volume(aws, "walker")
    aws.client("logs").create_log_group(
        logGroupName="Nitro-walker-LearnerLogs1-x", tags={EXPERIMENT_TAG: "walker"}
    )
    here = f"arn:aws:ec2:{REGION}:{ACCOUNT_ID}"
    document = aws.survey("walker")
    assert document["left"] == [
        {"experiment": "walker", "arn": f"{here}:instance/{instance}"},
        {"experiment": "walker", "arn": f"{here}:volume/{volume}"},
    ]
    text = aws.run("status")
    assert f"{MAY_BE_LEFT}\nwalker: {here}:instance/{instance}\n" in text
    assert "burning $1.5000 an hour" in flat(text)


def test_what_an_earlier_deployments_stack_had_may_be_left_although_its_experiment_is_deployed(
    aws: Account,
) -> None:
    stack = aws.deploy("hopper")
    make_volume(aws, "hopper", **{STACK_ID_TAG: stack})
    volume = make_volume(aws, "hopper", **{STACK_ID_TAG: DELETED_STACK})
    (left,) = aws.survey()["left"]
    assert left["arn"].endswith(f":volume/{volume}")


def run_instance(aws: Account, experiment: str) -> str:
    (instance,) = aws.client("ec2").run_instances(
        ImageId=IMAGE_ID,
        InstanceType="g4dn.xlarge",
        MinCount=1,
        MaxCount=1,
        TagSpecifications=[
            {"ResourceType": "instance", "Tags": [{"Key": EXPERIMENT_TAG, "Value": experiment}]}
        ],
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


def test_an_experiment_of_which_there_is_nothing(aws: Account) -> None:
    aws.deploy("walker")
    error = aws.run("status", "hopper", code=2)
    assert (
        "nothing of hopper in account 123456789012, region us-east-1; deployed are: walker" in error
    )


@pytest.mark.parametrize("arguments", [["status"], ["logs", "hopper"], ["results", "hopper"]])
def test_without_credentials_or_region_one_line_says_so(
    aws: Account, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    assert aws.run(*arguments, code=2).startswith("error: no region is set")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(aws.tmp_path / "none"))
    assert aws.run(*arguments, code=2).startswith("error: there are no AWS credentials")


# The real stacks


def test_the_real_stacks_have_what_is_looked_for(aws: Account) -> None:
    file = aws.tmp_path / "hopper.yaml"
    file.write_text(SMALL_EXPERIMENT)
    settings = json.loads((ROOT / "cdk.json").read_text())["context"]
    folder = Path(make_app({**settings, "run": "first", "experiment": str(file)}).synth().directory)
    for name in ("NitroResults", "NitroNetwork", "NitroGuard", "Nitro-hopper"):
        upload_assets(aws, folder / f"{name}.assets.json")
        deploy(aws.client, folder / f"{name}.template.json", name)
    # moto ignores conditions: the rule that requires TLS for the bucket would refuse everything.
    (bucket,) = [
        one["Name"]
        for one in aws.client("s3").list_buckets()["Buckets"]
        if "results" in one["Name"]
    ]
    aws.client("s3").delete_bucket_policy(Bucket=bucket)
    guard = aws.survey()["guard"]
    assert (guard["rule_state"], guard["problem"], guard["last_tick_s"]) == ("ENABLED", "", None)
    document = aws.survey("hopper")
    (found,) = document["deployments"]
    assert (found["run"], found["budget_usd"], found["unreadable"]) == ("hopper/first", 1.0, "")
    assert [one["state"] for one in found["instances"]] == ["running"]
    assert (
        found["results"] == f"s3://{bucket}/hopper/first/" and "dashboard" in found["dashboard_url"]
    )
    assert document["left"] == []
    logical = {
        one["LogicalResourceId"]
        for one in aws.client("cloudformation").list_stack_resources(StackName="Nitro-hopper")[
            "StackResourceSummaries"
        ]
        if one["ResourceType"] == "AWS::Logs::LogGroup"
    }
    assert sorted(name[:-8] for name in logical) == ["ActorLogs", "LearnerLogs"]
    assert "no events in" in aws.run("logs", "hopper")


def upload_assets(aws: Account, manifest: Path) -> None:
    """Creates empty roles, since a stack only needs them to exist."""
    with io.BytesIO() as data:
        zipfile.ZipFile(data, "w").close()
        empty = data.getvalue()
    for asset in json.loads(manifest.read_text())["files"].values():
        for place in asset["destinations"].values():
            bucket = (
                place["bucketName"]
                .replace("${AWS::AccountId}", ACCOUNT_ID)
                .replace("${AWS::Region}", REGION)
            )
            aws.client("s3").create_bucket(Bucket=bucket)
            aws.client("s3").put_object(Bucket=bucket, Key=place["objectKey"], Body=empty)
