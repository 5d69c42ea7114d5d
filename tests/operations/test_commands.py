"""``python -m runtime status``, ``logs``, ``results`` and ``reconcile``, with real boto3, against a moto server."""

from __future__ import annotations

import datetime
import io
import json
import re
import shutil
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from runtime.cli import main as cli
from runtime.guard.ledger import FINISHED, Ledger
from runtime.guard.stacks import tags_of_limits
from runtime.names import EXPERIMENT_TAG
from runtime.operations import commands as operations
from runtime.operations.leftovers import Stacks
from stacks.assembly import make_app
from tests import helpers
from tests.helpers import ROOT, SMALL_EXPERIMENT, run_command
from tests.simulators.aws.moto_server import CREDENTIALS, REGION, MotoServer
from tests.simulators.aws.moto_types import IMAGE_ID, deploy

TABLE, RULE = "ledger", "nitro-guard"
ZONE = f"{REGION}a"
ACCOUNT = "123456789012"
DELETED_STACK = "arn:aws:cloudformation:us-east-1:123456789012:stack/Nitro-hopper/of-last-week"
_GUARD = {
    "Resources": {
        "Ledger": {"Type": "AWS::DynamoDB::Table", "Properties": {
            "TableName": TABLE, "BillingMode": "PAY_PER_REQUEST",
            "AttributeDefinitions": [{"AttributeName": "run", "AttributeType": "S"}],
            "KeySchema": [{"AttributeName": "run", "KeyType": "HASH"}]}},
        "Rule": {"Type": "AWS::Events::Rule", "Properties": {
            "Name": RULE, "ScheduleExpression": "rate(1 minute)", "State": "ENABLED"}},
        "Topic": {"Type": "AWS::SNS::Topic"}},
    "Outputs": {"LedgerTable": {"Value": TABLE}, "RuleName": {"Value": RULE},
                "ReportsTopic": {"Value": {"Ref": "Topic"}}, "GuardFunction": {"Value": "NitroGuard-Function"}}}
_RESULTS = {"Resources": {"Results": {"Type": "AWS::S3::Bucket"}}}
_LEARNER = {
    "Configuration": {"Type": "AWS::AutoScaling::LaunchConfiguration", "Properties": {
        "ImageId": IMAGE_ID, "InstanceType": "g4dn.xlarge"}}}


@dataclass
class Account:
    """An account, and how a user's terminal looks into it."""

    server: MotoServer
    tmp_path: Path
    capsys: pytest.CaptureFixture[str]

    def client(self, service: str) -> Any:
        return self.server.client(service)

    def run(self, *arguments: str, code: int = 0) -> str:
        """What the command prints; its error where it fails."""
        self.capsys.readouterr()
        assert cli.main(arguments) == code, self.capsys.readouterr()
        printed = self.capsys.readouterr()
        return printed.err if code else printed.out

    def survey(self, *arguments: str) -> dict[str, Any]:
        return json.loads(self.run("status", *arguments, "--json"))

    def make_stack(self, name: str, template: dict[str, Any], tags: dict[str, str] | None = None) -> str:
        """Returns its id."""
        return self.client("cloudformation").create_stack(
            StackName=name, TemplateBody=json.dumps(template),
            Tags=[{"Key": key, "Value": value} for key, value in (tags or {}).items()])["StackId"]

    def deploy(self, name: str = "hopper", *, run: str = "first", hours: float = 8.0, **tags: str) -> str:
        logs = {f"{whose}Logs1A2B": {"Type": "AWS::Logs::LogGroup"} for whose in ("Learner", "Actor")}
        group = {"Type": "AWS::AutoScaling::AutoScalingGroup", "Properties": {
            "AutoScalingGroupName": f"Nitro-{name}-learner", "MinSize": "0", "MaxSize": "1", "DesiredCapacity": "1",
            "VPCZoneIdentifier": [self.subnet], "LaunchConfigurationName": {"Ref": "Configuration"},
            "Tags": [{"Key": EXPERIMENT_TAG, "Value": name, "PropagateAtLaunch": True}]}}
        limits = tags_of_limits(experiment=name, run=run, budget_usd=2.0, tail_usd=0.01, burn_usd_per_hour=1.5,
                                cache_usd_per_hour=0.0084, provisioned_usd_per_hour=0.0, lifetime_hours=hours)
        return self.make_stack(f"Nitro-{name}", {
            "Resources": {**logs, **_LEARNER, "LearnerGroup": group},
            "Outputs": {"LearnerLogs": {"Value": {"Ref": "LearnerLogs1A2B"}},
                        "ActorLogs": {"Value": {"Ref": "ActorLogs1A2B"}},
                        "DashboardUrl": {"Value": f"https://example.org/Nitro-{name}"}}},
            {**limits, **{f"nitro:{key.replace('_', '-')}": value for key, value in tags.items()}})

    @property
    def subnet(self) -> str:
        return self.client("ec2").describe_subnets()["Subnets"][0]["SubnetId"]

    def make_guard(self) -> Ledger:
        self.make_stack("NitroGuard", _GUARD)
        return Ledger(self.client("dynamodb"), TABLE)

    def make_bucket(self) -> str:
        self.make_stack("NitroResults", _RESULTS)
        (bucket,) = self.client("s3").list_buckets()["Buckets"]
        return bucket["Name"]

    def upload(self, bucket: str, prefix: str, files: dict[str, bytes]) -> None:
        for name, data in files.items():
            self.client("s3").put_object(Bucket=bucket, Key=prefix + name, Body=data)

    def log(self, group: str, stream: str, *messages: str, at_s: float | None = None) -> None:
        logs = self.client("logs")
        if not logs.describe_log_streams(logGroupName=group, logStreamNamePrefix=stream)["logStreams"]:
            logs.create_log_stream(logGroupName=group, logStreamName=stream)
        at_ms = int(1000 * (time.time() if at_s is None else at_s))
        logs.put_log_events(logGroupName=group, logStreamName=stream, logEvents=[
            {"timestamp": at_ms + index, "message": message} for index, message in enumerate(messages)])

    def group_of(self, stack: str, whose: str) -> str:
        (found,) = self.client("cloudformation").describe_stacks(StackName=stack)["Stacks"]
        return next(one["OutputValue"] for one in found["Outputs"] if one["OutputKey"] == f"{whose}Logs")


@pytest.fixture(scope="module")
def server() -> Iterator[MotoServer]:
    with MotoServer() as running:
        yield running


@pytest.fixture
def aws(
    server: MotoServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Account:
    """An empty account."""
    server.reset()
    for name in ("AWS_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**CREDENTIALS, "AWS_ENDPOINT_URL": server.url, "AWS_EC2_METADATA_DISABLED": "true",
                        "AWS_CONFIG_FILE": str(tmp_path / "none")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return Account(server, tmp_path, capsys)


def flat(text: str) -> str:
    """However it was wrapped."""
    return re.sub(r"\s+", " ", text)


def start(ledger: Ledger, stack: str, *, run: str = "hopper/first", ago_s: float = 10.0, **figures: Any) -> None:
    """A learner that trains, heard of so long ago."""
    now_s = time.time()
    ledger.take_over(run, stack=stack, writer="w", instance_id="i-1", now_s=now_s - ago_s)
    ledger.record(run, writer="w", **{
        "state": "training", "spent_usd": 0.25, "reserved_usd": 0.05, "burn_usd_per_hour": 1.0,
        "covered_until_s": now_s - ago_s + 3600, "heartbeat_at_s": now_s - ago_s, "budget_usd": 2.0, **figures})


# status


def test_an_empty_account_has_nothing_and_says_loudly_that_nothing_is_guarded(aws: Account) -> None:
    text = aws.run("status")
    assert "123456789012, us-east-1" in text
    assert "DEPLOYED\nnone\n" in text
    assert "ORPHANS, WHICH NO STACK HAS\nnone\n" in text
    assert "There is no stack NitroGuard: NOTHING ENDS DEPLOYMENTS BY ITSELF" in text
    document = aws.survey()
    assert (document["deployments"], document["orphans"], document["gone"], document["guard"]) == ([], [], [], None)
    assert document["totals"]["burn_usd_per_hour"] == 0


def test_a_deployment_that_trains_with_its_dollars_and_its_instance(aws: Account) -> None:
    ledger = aws.make_guard()
    ledger.tick(time.time() - 20)
    start(ledger, aws.deploy())
    text = aws.run("status")
    assert all(len(line) <= 100 for line in text.splitlines() if "aws " not in line)
    text = flat(text)
    assert re.search(r"training; g4dn\.xlarge i-\w+ running; heard of 1\d s ago", text)
    assert "spent $0.2500, reserved $0.0500; at most $0.3000 of $2.0000 by now; burns $1.0000 an hour" in text
    assert "7 h 59 min of its lifetime left" in text
    assert "its rule nitro-guard is ENABLED" in text and "!!!" not in text
    assert "ORPHANS, WHICH NO STACK HAS none" in text
    assert "total $0.2500 spent in all; burning $1.0000 an hour now" in text


def test_without_a_ledger_the_tags_tell_what_a_deployment_burns(aws: Account) -> None:
    aws.deploy()
    (found,) = aws.survey()["deployments"]
    assert (found["spent_usd"], found["burn_usd_per_hour"], found["budget_usd"]) == (None, 1.5, 2.0)
    assert 0 <= found["projected_usd"] < 0.1
    text = flat(aws.run("status"))
    assert "none has reported; g4dn.xlarge" in text and "the ledger knows nothing of it yet" in text
    assert "what was spent is not known" in text


def test_a_learner_that_is_silent_is_said_to_be(aws: Account) -> None:
    ledger = aws.make_guard()
    start(ledger, aws.deploy(), ago_s=400.0, covered_until_s=time.time() - 3600)
    (found,) = aws.survey()["deployments"]
    assert found["is_silent"] and 399 < found["heartbeat_s"] < 460
    # What nobody counted since the stack began costs what exists.
    assert found["projected_usd"] == pytest.approx(0.3, abs=0.05)
    assert "heard of 6 min ago: SILENT" in aws.run("status")


def test_what_an_earlier_deployment_wrote_is_not_taken_for_this_ones(aws: Account) -> None:
    ledger = aws.make_guard()
    start(ledger, DELETED_STACK)
    aws.deploy()
    (found,) = aws.survey()["deployments"]
    assert (found["state"], found["heartbeat_s"], found["burn_usd_per_hour"]) == ("", None, 1.5)
    assert found["spent_usd"] == 0.25
    assert aws.survey()["gone"] == []


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
    assert ("teardown ordered 3 min ago: its budget is used up; done: stop key, learner; its stack could not be "
            "deleted 1 time") in text
    assert "training, being torn down" in text
    (found,) = aws.survey()["deployments"]
    assert list(found["teardown"]["steps"]) == ["stop key", "learner"]


def test_a_lifetime_that_is_over(aws: Account) -> None:
    aws.deploy(hours=0.0)
    assert "its lifetime is over since" in aws.run("status")


def test_damaged_tags_are_told_and_make_the_total_a_lower_bound(aws: Account) -> None:
    aws.deploy("hopper", budget_usd="a lot")
    aws.make_stack("Nitro-bare", {"Resources": _LEARNER})
    found = {one["stack"]: one for one in aws.survey()["deployments"]}
    assert found["Nitro-hopper"]["unreadable"] == "its tag nitro:budget-usd is 'a lot'"
    assert "nitro:lifetime-hours is None" in found["Nitro-bare"]["unreadable"]
    text = flat(aws.run("status"))
    assert "ATTENTION" in text and "burning at least $1.5000 an hour" in text


def test_orphans_of_every_kind_with_their_price_and_the_command_that_removes_them(aws: Account) -> None:
    names = make_orphans(aws)
    document = aws.survey()
    found = {one["kind"]: one for one in document["orphans"]}
    assert {kind: one["name"] for kind, one in found.items()} == names
    assert all(one["experiment"] == "walker" for one in found.values())
    assert all(one["name"].partition(":")[0] in one["remove"] for one in found.values())
    prices = {kind: one["usd_per_hour"] for kind, one in found.items()}
    assert prices == {
        "instance": pytest.approx(0.526, abs=0.0051), "volume": pytest.approx(50 * 0.08 / 730),
        "Auto Scaling group": 0.0, "warm actors": pytest.approx(4 * 2 * 3600 * 4.1667e-6),
        "serverless cache": pytest.approx(0.0084), "cache node": 0.032}
    assert document["totals"]["burn_usd_per_hour"] == pytest.approx(sum(prices.values()))
    assert not document["totals"]["is_at_least"]
    (logs,) = document["left_logs"]
    assert logs["name"] == "Nitro-walker-LearnerLogs1-x"
    text = aws.run("status")
    assert f"instance {names['instance']} of walker: g4dn.xlarge, running; $0.5" in text
    assert f"  aws ec2 terminate-instances --instance-ids {names['instance']}\n" in text
    assert "  aws logs delete-log-group --log-group-name Nitro-walker-LearnerLogs1-x\n" in text


def test_what_a_stack_has_is_no_orphan(aws: Account) -> None:
    names = make_orphans(aws, needs_group=False)
    aws.deploy("walker")
    document = aws.survey()
    # A learner's disk is never detached while its stack is there.
    assert [one["name"] for one in document["orphans"]] == [names["volume"]]
    assert document["left_logs"] == []


def test_what_is_left_of_an_earlier_deployment_is_an_orphan_although_the_experiment_is_deployed(aws: Account) -> None:
    aws.deploy("hopper")
    aws.client("elasticache").create_serverless_cache(
        ServerlessCacheName="nitro-hopper", Engine="valkey", Tags=[
            {"Key": EXPERIMENT_TAG, "Value": "hopper"}, {"Key": "aws:cloudformation:stack-id", "Value": DELETED_STACK}])
    assert [one["kind"] for one in aws.survey("hopper")["orphans"]] == ["serverless cache"]


def test_a_price_that_is_not_known_makes_the_total_a_lower_bound(aws: Account) -> None:
    run_instance(aws, "t3.micro", "walker")
    document = aws.survey()
    assert document["orphans"][0]["usd_per_hour"] is None and document["totals"]["is_at_least"]
    assert "price not known" in aws.run("status")


def test_others_resources_are_not_ours(aws: Account) -> None:
    run_instance(aws, "g4dn.xlarge", None)
    aws.client("logs").create_log_group(logGroupName="/aws/lambda/theirs")
    aws.client("elasticache").create_serverless_cache(ServerlessCacheName="theirs", Engine="valkey")
    document = aws.survey()
    assert document["orphans"] == [] and document["left_logs"] == []


def test_runs_that_are_gone_with_what_they_spent(aws: Account) -> None:
    ledger = aws.make_guard()
    start(ledger, DELETED_STACK, heartbeat_at_s=1.8e9)
    ledger.finish("hopper/first", stack=DELETED_STACK, reason="target_return")
    ledger.close("hopper/first", stack=DELETED_STACK, spent_usd=1.25, now_s=time.time())
    text = aws.run("status")
    assert re.search(r"hopper/first +\$1\.2500 +\$2\.0000 +2027-01-15 08:00 +target_return", text)
    assert "$1.2500 spent in all" in text
    assert aws.survey()["gone"][0]["state"] == FINISHED


def test_a_guard_that_does_not_watch_is_told(aws: Account) -> None:
    ledger = aws.make_guard()
    assert "never looked" in aws.run("status") and "IT DOES NOT WATCH" in aws.run("status")
    ledger.tick(time.time() - 1000)
    assert "looked 16 min ago" in (text := aws.run("status")) and "IT DOES NOT WATCH" in text
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
    aws.client("dynamodb").update_item(
        TableName=TABLE, Key={"run": {"S": "hopper/first"}}, UpdateExpression="SET spent_usd = :lots",
        ExpressionAttributeValues={":lots": {"S": "lots"}})
    text = flat(aws.run("status"))
    assert "WHAT THE LEDGER HOLDS IS NOT KNOWN: hopper/first is damaged: spent_usd = {'S': 'lots'}" in text
    aws.client("dynamodb").delete_table(TableName=TABLE)
    text = flat(aws.run("status"))
    assert "WHAT THE LEDGER HOLDS IS NOT KNOWN" in text
    assert "hopper/first" in text and "what was spent is not known" in text


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
    aws.upload(bucket, "hopper/first/", {"rounds.jsonl": b"".join(
        json.dumps({"round_index": index, "episode_return_mean": 1234.5, "evaluation_return_mean": None,
                    "actors_returned": 7, "actor_count": 8, "env_steps_total": 2048}).encode() + b"\n"
        for index in (1, 2)) + b'{"round_in'})
    text = aws.run("status", "experiments/hopper.yaml")
    assert "2: return 1,234.5, 7 of 8 actors, 2,048 steps in all" in text
    assert f"s3://{bucket}/hopper/first/" in text and "https://example.org/Nitro-hopper" in text
    assert "walker" not in text
    assert aws.survey("hopper")["deployments"][0]["round"]["round_index"] == 2


def test_an_experiment_of_which_there_is_nothing(aws: Account) -> None:
    aws.deploy("walker")
    error = aws.run("status", "hopper", code=2)
    assert "nothing of hopper in account 123456789012, region us-east-1; deployed are: walker" in error


@pytest.mark.parametrize("arguments", [["status"], ["logs", "hopper"], ["results", "hopper"], ["reconcile", "hopper"]])
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


def make_orphans(aws: Account, *, needs_group: bool = True) -> dict[str, str]:
    """One of every kind, of walker; returns their names."""
    tags = [{"Key": EXPERIMENT_TAG, "Value": "walker"}]
    names = {}
    names["volume"] = aws.client("ec2").create_volume(
        AvailabilityZone=ZONE, Size=50, TagSpecifications=[{"ResourceType": "volume", "Tags": tags}])["VolumeId"]
    if needs_group:
        groups = aws.client("autoscaling")
        groups.create_launch_configuration(LaunchConfigurationName="g", ImageId=IMAGE_ID, InstanceType="g4dn.xlarge")
        groups.create_auto_scaling_group(AutoScalingGroupName="Nitro-walker-learner", MinSize=0, MaxSize=1,
                                         DesiredCapacity=1, LaunchConfigurationName="g", AvailabilityZones=[ZONE])
        (group,) = groups.describe_auto_scaling_groups(
            AutoScalingGroupNames=["Nitro-walker-learner"])["AutoScalingGroups"]
        names |= {"Auto Scaling group": "Nitro-walker-learner", "instance": group["Instances"][0]["InstanceId"]}
    names["warm actors"] = make_function(aws, "Nitro-walker-actor")
    cache = aws.client("elasticache")
    cache.create_serverless_cache(ServerlessCacheName="nitro-walker", Engine="valkey", Tags=tags)
    cache.create_replication_group(ReplicationGroupId="nitro-walker", ReplicationGroupDescription="a cache", Tags=tags,
                                   CacheNodeType="cache.t4g.small", NumCacheClusters=1)
    aws.client("logs").create_log_group(logGroupName="Nitro-walker-LearnerLogs1-x")
    return names | {"serverless cache": "nitro-walker", "cache node": "nitro-walker"}


def run_instance(aws: Account, instance_type: str, experiment: str | None) -> str:
    tags = [{"Key": EXPERIMENT_TAG, "Value": experiment}] if experiment else [{"Key": "Name", "Value": "theirs"}]
    (instance,) = aws.client("ec2").run_instances(
        ImageId=IMAGE_ID, InstanceType=instance_type, MinCount=1, MaxCount=1,
        TagSpecifications=[{"ResourceType": "instance", "Tags": tags}])["Instances"]
    return instance["InstanceId"]


def make_function(aws: Account, name: str) -> str:
    role = aws.client("iam").create_role(RoleName="any", AssumeRolePolicyDocument="{}")["Role"]["Arn"]
    functions = aws.client("lambda")
    functions.create_function(FunctionName=name, Role=role, PackageType="Image", MemorySize=2048, Publish=True,
                              Code={"ImageUri": "123456789012.dkr.ecr.us-east-1.amazonaws.com/a:b"})
    functions.create_alias(FunctionName=name, Name="live", FunctionVersion="1")
    functions.put_provisioned_concurrency_config(FunctionName=name, Qualifier="live",
                                                 ProvisionedConcurrentExecutions=4)
    return f"{name}:live"


def test_tags_name_the_stack_before_the_experiment_does() -> None:
    stacks = Stacks([{"StackName": "Nitro-hopper", "StackId": "new", "StackStatus": "CREATE_COMPLETE"},
                     {"StackName": "Nitro-gone", "StackId": "gone", "StackStatus": "DELETE_COMPLETE"}])
    assert stacks.have({}, "hopper") and not stacks.have({}, "gone") and not stacks.have({}, "hop")
    assert stacks.have({"aws:cloudformation:stack-id": "new"}, "gone")
    assert not stacks.have({"aws:cloudformation:stack-id": "old"}, "hopper")


# The stacks as they are


def test_the_real_stacks_have_what_is_looked_for(aws: Account) -> None:
    file = aws.tmp_path / "hopper.yaml"
    file.write_text(SMALL_EXPERIMENT)
    settings = json.loads((ROOT / "cdk.json").read_text())["context"]
    folder = Path(make_app({**settings, "run": "first", "experiment": str(file)}).synth().directory)
    for name in ("NitroResults", "NitroNetwork", "NitroGuard", "Nitro-hopper"):
        upload_assets(aws, folder / f"{name}.assets.json")
        deploy(aws.client, folder / f"{name}.template.json", name)
    # moto heeds no conditions: the rule that the bucket is reached over TLS only would refuse everything.
    (bucket,) = [one["Name"] for one in aws.client("s3").list_buckets()["Buckets"] if "results" in one["Name"]]
    aws.client("s3").delete_bucket_policy(Bucket=bucket)
    guard = aws.survey()["guard"]
    assert (guard["rule_state"], guard["problem"], guard["last_tick_s"]) == ("ENABLED", "", None)
    document = aws.survey("hopper")
    (found,) = document["deployments"]
    assert (found["run"], found["budget_usd"], found["unreadable"]) == ("hopper/first", 1.0, "")
    assert [one["state"] for one in found["instances"]] == ["running"]
    assert found["results"] == f"s3://{bucket}/hopper/first/" and "Nitro-hopper" in found["dashboard_url"]
    assert document["orphans"] == [] and document["left_logs"] == []
    logical = {one["LogicalResourceId"] for one in aws.client("cloudformation").list_stack_resources(
        StackName="Nitro-hopper")["StackResourceSummaries"] if one["ResourceType"] == "AWS::Logs::LogGroup"}
    assert sorted(name[:-8] for name in logical) == ["ActorLogs", "LearnerLogs"]
    assert "no events in" in aws.run("logs", "hopper")


def upload_assets(aws: Account, manifest: Path) -> None:
    """Empty ones: only that they are there matters to a stack."""
    with io.BytesIO() as data:
        zipfile.ZipFile(data, "w").close()
        empty = data.getvalue()
    for asset in json.loads(manifest.read_text())["files"].values():
        for place in asset["destinations"].values():
            bucket = place["bucketName"].replace("${AWS::AccountId}", ACCOUNT).replace("${AWS::Region}", REGION)
            aws.client("s3").create_bucket(Bucket=bucket)
            aws.client("s3").put_object(Bucket=bucket, Key=place["objectKey"], Body=empty)


# logs


def test_logs_in_the_order_of_time_with_the_names_of_their_streams(aws: Account) -> None:
    aws.deploy()
    group, now_s = aws.group_of("Nitro-hopper", "Learner"), time.time()
    aws.log(group, "i-1/learner", "round 1", "round 2\x1b[2J", at_s=now_s - 50)
    aws.log(group, "i-1/boot", "requirements", at_s=now_s - 100)
    aws.log(group, "i-1/boot", "long ago", at_s=now_s - 7200)
    lines = aws.run("logs", "hopper").splitlines()
    assert [line[15:] for line in lines] == ["i-1/boot  requirements", "i-1/learner  round 1",
                                            "i-1/learner  round 2?[2J"]
    assert "long ago" in aws.run("logs", "experiments/hopper.yaml", "--since", "180")
    assert "no events" in aws.run("logs", "hopper", "--actors")
    aws.log(aws.group_of("Nitro-hopper", "Actor"), "2026/01/01/[1]a", "START")
    assert aws.run("logs", "hopper", "--actors").rstrip().endswith("2026/01/01/[1]a  START")


def test_a_stack_that_has_no_outputs_yet_has_logs_all_the_same(aws: Account) -> None:
    aws.make_stack("Nitro-hopper", {"Resources": {"LearnerLogs1A2B": {"Type": "AWS::Logs::LogGroup"}}})
    (group,) = aws.client("logs").describe_log_groups()["logGroups"]
    aws.log(group["logGroupName"], "i-1/boot", "tools")
    assert "i-1/boot  tools" in aws.run("logs", "hopper")


def test_following_tells_each_event_once_and_ends_with_the_stack(aws: Account) -> None:
    bucket = aws.make_bucket()
    aws.upload(bucket, "hopper/first/", {"ended.json": b'{"stop_reason": "budget"}'})
    stack = aws.deploy()
    group, now_s = aws.group_of("Nitro-hopper", "Learner"), time.time()
    aws.log(group, "i-1/learner", "one", at_s=now_s - 30)
    # The second one is late: it is older than what was shown before.
    happenings = iter([lambda: aws.log(group, "i-1/boot", "two", at_s=now_s - 31),
                       lambda: aws.log(group, "i-1/learner", "three", at_s=now_s - 5), lambda: None,
                       lambda: aws.client("cloudformation").delete_stack(StackName=stack)])
    said: list[str] = []
    operations.show_logs(aws.client, "hopper", said.append, of_actors=False, since_s=3600, is_following=True,
                         now=time.time, sleep=lambda _: next(happenings)())
    assert [line[15:] for line in said[:3]] == ["i-1/learner  one", "i-1/boot  two", "i-1/learner  three"]
    assert said[3] == "Nitro-hopper is gone; what the bucket kept:"
    assert '  {"stop_reason": "budget"}' in said


def test_ctrl_c_ends_following(aws: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    aws.deploy()

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupt)
    assert aws.run("logs", "hopper", "--follow", code=130) == ""


def test_without_a_stack_the_bucket_tells_why_it_failed(aws: Account) -> None:
    bucket = aws.make_bucket()
    aws.upload(bucket, "hopper/old/", {"events.jsonl": b'{"event": "of an old run"}\n'})
    report = {"step": "tools", "message": "step 'tools' failed", "log": "\n".join(f"line {n}" for n in range(90))}
    aws.upload(bucket, "hopper/new/", {
        "boot/i-1-tools.json": json.dumps(report).encode(), "refused.json": b'{"error": "another experiment"}',
        "events.jsonl": b"".join(b'{"event": "number %d"}\n' % n for n in range(50)), "rounds.jsonl": b""})
    text = aws.run("logs", "hopper")
    assert text.startswith("Nitro-hopper is not deployed; what the bucket kept:\n")
    assert "boot/i-1-tools.json" in text and "step 'tools' failed" in text
    assert "line 89" in text and "line 60" not in text
    assert "another experiment" in text and "number 49" in text and "number 29" not in text
    assert "of an old run" not in text
    assert "no run of walker" in aws.run("logs", "walker", code=2)


def test_without_stack_and_bucket_there_is_nothing_to_log(aws: Account) -> None:
    assert "no stack NitroResults" in aws.run("logs", "hopper", code=2)


# results


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three rounds, as a deployed learner leaves it."""
    folder = tmp_path_factory.mktemp("trained")
    file = folder / "hopper.yaml"
    file.write_text(SMALL_EXPERIMENT)
    done = helpers.train(file, folder / "run", "--set", "stop.max_rounds=3")
    assert done.returncode == 0, done.stderr
    out = folder / "run"
    # A deployed learner's own: how its actors ran, and when it was billed last.
    config = out / "config.yaml"
    config.write_text(config.read_text().replace("kind: local", "kind: lambda"))
    ledger = json.loads((out / "ledger.json").read_text()) | {"billed_until_s": 1.8e9}
    (out / "ledger.json").write_text(json.dumps(ledger))
    return out


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*"))
            if path.is_file() and not path.name.startswith(".")}


def keep(aws: Account, trained: Path, run: str = "first") -> str:
    """Puts the run into the bucket; returns the bucket's name."""
    bucket = aws.make_bucket()
    aws.upload(bucket, f"hopper/{run}/", {
        **files_of(trained), "cache-credential.json": b'{"password": "secret"}', "launches/1/i-1": b"now",
        "ended.json": b'{"stop_reason": "max_rounds", "error": null, "ended_at": "2026-01-02T03:04:05Z"}'})
    return bucket


def test_a_downloaded_run_can_be_evaluated_and_gone_on_with(aws: Account, trained: Path) -> None:
    bucket = keep(aws, trained)
    text = aws.run("results", "hopper")
    assert re.search(r"first +3 +[\d.,-]+ +\$0\.\d{4} +\d{4}-\d\d-\d\d \d\d:\d\d +max_rounds", text)
    out = aws.tmp_path / "runs" / "hopper-first"
    assert files_of(out) == {**files_of(trained), "ended.json": keep_bytes(aws, bucket, "ended.json")}
    assert "secret" not in text
    evaluated = run_command("evaluate", str(out))
    assert evaluated.returncode == 0, evaluated.stderr
    (line,) = [line for line in text.splitlines() if "--resume" in line]
    arguments = line.partition("python -m runtime ")[2].split()
    resumed = run_command(*arguments, "--set", "stop.max_rounds=4", "--set", "fleet.processes=2", cwd=aws.tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert [row["round_index"] for row in helpers.rounds(out)] == [1, 2, 3, 4]
    assert helpers.summary(out)["budget_usd"] == 2.0
    # What was spent in AWS counts.
    assert helpers.summary(out)["spent_usd"] > helpers.summary(trained)["spent_usd"]
    assert "was changed since it was downloaded" in aws.run("results", "hopper", code=2)


def keep_bytes(aws: Account, bucket: str, name: str) -> bytes:
    return aws.client("s3").get_object(Bucket=bucket, Key=f"hopper/first/{name}")["Body"].read()


def test_the_experiment_file_is_named_where_it_would_go_on_with_the_run(aws: Account, trained: Path) -> None:
    keep(aws, trained)
    file = aws.tmp_path / "hopper.yaml"
    file.write_text(SMALL_EXPERIMENT)
    assert "python -m runtime train hopper.yaml --out x --resume --set budget.usd=2" in aws.run(
        "results", "hopper.yaml", "--out", "x")
    file.write_text(SMALL_EXPERIMENT.replace("seed: 3", "seed: 4"))
    assert "python -m runtime train x/config.yaml --out x --resume --set fleet.kind=local" in aws.run(
        "results", "hopper.yaml", "--out", "x")


def test_a_download_fetches_only_what_is_not_there(aws: Account, trained: Path) -> None:
    keep(aws, trained)
    assert "policy.safetensors" in aws.run("results", "hopper", "--out", "x")
    (aws.tmp_path / "x" / "policy.safetensors").unlink()
    fetched = [line for line in aws.run("results", "hopper", "--out", "x").splitlines() if " bytes " in line]
    assert len(fetched) == 1 and fetched[0].endswith("policy.safetensors")
    assert files_of(aws.tmp_path / "x").keys() == files_of(trained).keys() | {"ended.json"}


def test_what_the_learner_deleted_since_goes_here_too(aws: Account, trained: Path) -> None:
    bucket = keep(aws, trained)
    aws.upload(bucket, "hopper/first/", {"checkpoints/round_000001.json": b"{}"})
    aws.run("results", "hopper", "--out", "x")
    aws.client("s3").delete_object(Bucket=bucket, Key="hopper/first/checkpoints/round_000001.json")
    aws.run("results", "hopper", "--out", "x")
    assert not (aws.tmp_path / "x" / "checkpoints" / "round_000001.json").exists()


def test_a_directory_of_another_run_is_left_alone(aws: Account, trained: Path) -> None:
    keep(aws, trained)
    shutil.copytree(trained, aws.tmp_path / "mine")
    before = files_of(aws.tmp_path / "mine")
    assert "holds another run" in aws.run("results", "hopper", "--out", "mine", code=2)
    assert files_of(aws.tmp_path / "mine") == before
    aws.run("results", "hopper", "--out", "x")
    bucket = aws.client("s3").list_buckets()["Buckets"][0]["Name"]
    aws.upload(bucket, "hopper/second/", files_of(trained))
    assert "holds another run" in aws.run("results", "hopper", "--run", "second", "--out", "x", code=2)


def test_names_that_lead_out_of_the_directory_are_passed_over(aws: Account, trained: Path) -> None:
    bucket = keep(aws, trained)
    aws.upload(bucket, "hopper/first/", {"../../escaped": b"x", "a/../../b": b"x", ".lock": b"x"})
    text = aws.run("results", "hopper", "--out", "inner/x")
    assert "passed over '../../escaped'" in text and "passed over '.lock'" in text
    assert not (aws.tmp_path / "escaped").exists() and not (aws.tmp_path / "inner" / "b").exists()


def test_a_run_whose_files_change_while_they_come_is_downloaded_as_it_is_in_the_end(
    aws: Account, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from runtime.operations.kept_runs import KeptRun

    bucket = keep(aws, trained)
    read, newer = KeptRun.read, [b"newer\n", b"newest\n"]

    def read_late(self: KeptRun, file: Any) -> bytes | None:
        if file.name == "actors.log" and newer:
            aws.upload(bucket, "hopper/first/", {"actors.log": newer.pop(0)})
        return read(self, file)

    monkeypatch.setattr(KeptRun, "read", read_late)
    aws.run("results", "hopper", "--out", "x")
    assert (aws.tmp_path / "x" / "actors.log").read_bytes() == b"newest\n"


def test_several_runs_are_listed_and_one_is_to_be_named(aws: Account, trained: Path) -> None:
    bucket = keep(aws, trained)
    aws.upload(bucket, "hopper/zeroth/", {"boot/i-1-tools.json": b"{}"})
    text = aws.run("results", "hopper")
    assert "zeroth" in text and "first" in text and "--run RUN" in text
    assert not (aws.tmp_path / "runs").exists()
    assert "there are: first, zeroth" in aws.run("results", "hopper", "--run", "third", code=2)
    assert "it was never begun" in aws.run("results", "hopper", "--run", "zeroth")
    assert "no run of walker" in aws.run("results", "walker", code=2)


# reconcile


def answer_of_aws(aws: Account, *answers: dict[str, Any]) -> None:
    body = json.dumps({"account_id": "123456789012", "results": list(answers)}).encode()
    with urlopen(Request(f"{aws.server.url}/moto-api/static/ce/cost-and-usage-results", data=body, method="POST",
                         headers={"Content-Type": "application/json"})) as response:
        assert response.status == 201


def day(date: str, *groups: tuple[str, str, float, float, str], is_estimated: bool = False) -> dict[str, Any]:
    return {"TimePeriod": {"Start": date, "End": date}, "Total": {}, "Estimated": is_estimated, "Groups": [
        {"Keys": [service, usage_type], "Metrics": {
            "UnblendedCost": {"Amount": str(usd), "Unit": "USD"},
            "UsageQuantity": {"Amount": str(amount), "Unit": unit}}}
        for service, usage_type, usd, amount, unit in groups]}


COMPUTE = ("Amazon Elastic Compute Cloud - Compute", "BoxUsage:g4dn.xlarge", 0.2, 0.38, "Hrs")
FUNCTION = ("AWS Lambda", "Lambda-GB-Second", 0.03, 1800.0, "Lambda-GB-Second")


def keep_bill(aws: Account, *, ended_at: str | None = "2026-01-02T03:04:05Z") -> None:
    files = {"events.jsonl": b'{"time": "2026-01-01T23:50:00.000+00:00", "event": "run_started"}\n{"time": "x"}\n',
             "ledger.json": b'{"budget": {"units_per_usd": 1000, "spent": 500, "reserved": {}}}'}
    if ended_at:
        files["ended.json"] = json.dumps({"stop_reason": "budget", "ended_at": ended_at}).encode()
    aws.upload(aws.make_bucket(), "hopper/first/", files)


def test_the_bill_beside_what_the_run_counted(aws: Account) -> None:
    keep_bill(aws)
    ledger = aws.make_guard()
    start(ledger, DELETED_STACK, spent_usd=0.40)
    answer_of_aws(aws, {"ResultsByTime": [day("2026-01-01", COMPUTE), day("2026-01-02", COMPUTE)],
                        "NextPageToken": "more"}, {"ResultsByTime": [day("2026-01-03", FUNCTION)]})
    text = aws.run("reconcile", "hopper")
    assert "hopper/first, 2026-01-01 to 2026-01-03 (UTC); Cost Explorer was asked 2 times at $0.01" in text
    assert re.search(r"Amazon Elastic Compute Cloud - Compute +0\.4000 USD", text)
    assert re.search(r"BoxUsage:g4dn\.xlarge +0\.4000 USD +0\.7600 Hrs", text)
    assert re.search(r"AWS \(measured\) +0\.4300 USD", text)
    assert re.search(r"ours \(modelled\) +0\.4000 USD +the guard's ledger", text)
    assert re.search(r"difference +\+0\.0300 USD +\+7\.5 % of ours", text)
    assert "NOT COMPLETE" not in text and "ESTIMATED" not in text


def test_what_is_asked_of_cost_explorer(aws: Account) -> None:
    from runtime.operations.bill import ask_bill

    class Explorer:
        def get_cost_and_usage(self, **query: Any) -> dict[str, Any]:
            asked.append(json.loads(json.dumps(query)))
            return {"ResultsByTime": [], **({} if len(asked) > 1 else {"NextPageToken": "t"})}

    asked: list[dict[str, Any]] = []
    first = datetime.date(2026, 1, 31)
    assert ask_bill(Explorer(), "hopper", "first", first=first, last=first)["requests"] == 2
    assert asked[0] == {
        "TimePeriod": {"Start": "2026-01-31", "End": "2026-02-01"}, "Granularity": "DAILY",
        "Metrics": ["UnblendedCost", "UsageQuantity"],
        "GroupBy": [{"Type": "DIMENSION", "Key": "SERVICE"}, {"Type": "DIMENSION", "Key": "USAGE_TYPE"}],
        "Filter": {"And": [
            {"Tags": {"Key": "nitro:experiment", "Values": ["hopper"], "MatchOptions": ["EQUALS"]}},
            {"Tags": {"Key": "nitro:run", "Values": ["first"], "MatchOptions": ["EQUALS"]}}]}}
    assert asked[1] == {**asked[0], "NextPageToken": "t"}


def test_an_empty_bill_says_how_to_activate_the_tags(aws: Account) -> None:
    keep_bill(aws)
    answer_of_aws(aws, {"ResultsByTime": [day("2026-01-01")]})
    text = aws.run("reconcile", "hopper")
    assert "nothing that bears the tags of hopper/first; ours (modelled): $0.5000, ledger.json in the bucket" in text
    assert ("aws ce update-cost-allocation-tags-status --cost-allocation-tags-status "
            "TagKey=nitro:experiment,Status=Active TagKey=nitro:run,Status=Active") in text


@pytest.mark.parametrize(("ended_ago_s", "said"), [
    (None, "NOT COMPLETE: the run has not ended"), (3600, "NOT COMPLETE: the run ended less than a day ago")])
def test_a_bill_that_is_not_complete_is_said_to_be(aws: Account, ended_ago_s: float | None, said: str) -> None:
    def now() -> datetime.datetime:
        return datetime.datetime.now(datetime.UTC)

    before = now()
    ended = None if ended_ago_s is None else before - datetime.timedelta(seconds=ended_ago_s)
    keep_bill(aws, ended_at=None if ended is None else ended.strftime("%Y-%m-%dT%H:%M:%SZ"))
    answer_of_aws(aws, {"ResultsByTime": [day("2026-01-01", COMPUTE, is_estimated=True)]})
    text = aws.run("reconcile", "hopper")
    assert said in text and "ESTIMATED: AWS may still change" in text
    assert any(f"2026-01-01 to {today}" in text for today in {before.date(), now().date()})


def test_a_bill_of_long_ago_is_complete_but_may_be_estimated(aws: Account) -> None:
    keep_bill(aws, ended_at="2026-01-05T12:00:00Z")
    answer_of_aws(aws, {"ResultsByTime": [day("2026-01-01", COMPUTE, is_estimated=True)]})
    text = aws.run("reconcile", "hopper")
    assert "ESTIMATED: AWS may still change" in text and "NOT COMPLETE" not in text
    assert "2026-01-01 to 2026-01-06" in text, "a day more than the run: bills lag"


def test_of_several_runs_one_is_to_be_named_before_money_is_spent_on_asking(aws: Account) -> None:
    keep_bill(aws)
    (bucket,) = aws.client("s3").list_buckets()["Buckets"]
    aws.upload(bucket["Name"], "hopper/second/", {"events.jsonl": b"{}\n"})
    assert "name one with --run: first, second" in aws.run("reconcile", "hopper", code=2)
