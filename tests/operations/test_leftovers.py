"""Resources that cost money but belong to no stack, with real boto3, against a moto server."""

from __future__ import annotations

import json
import time

import pytest

from runtime.names import EXPERIMENT_TAG
from runtime.operations.leftovers import LOGS_KEPT_S, Stacks, find_left_logs
from tests.operations.accounts import ACCOUNT_ID, DELETED_STACK, ZONE, Account
from tests.simulators.aws.moto_types import IMAGE_ID


def test_orphans_of_every_kind_with_their_price_and_the_command_that_removes_them(
    aws: Account,
) -> None:
    names = make_orphans(aws)
    document = aws.survey()
    found = {one["kind"]: one for one in document["orphans"]}
    assert {kind: one["name"] for kind, one in found.items()} == names
    assert all(one["experiment"] == "walker" for one in found.values())
    assert all(one["name"].partition(":")[0] in one["remove"] for one in found.values())
    prices = {kind: one["usd_per_hour"] for kind, one in found.items()}
    assert prices == {
        "instance": pytest.approx(0.526, abs=0.0051),
        "volume": pytest.approx(50 * 0.08 / 730),
        "Auto Scaling group": 0.0,
        "warm actors": pytest.approx(4 * 2 * 3600 * 4.1667e-6),
        "serverless cache": pytest.approx(0.0084),
        "cache node": 0.032,
        "execution": pytest.approx(2 * 3600 * 1.66667e-5),
    }
    assert document["totals"]["burn_usd_per_hour"] == pytest.approx(sum(prices.values()))
    assert not document["totals"]["is_at_least"]
    (logs,) = document["left_logs"]
    assert logs["name"] == "Nitro-walker-LearnerLogs1-x"
    text = aws.run("status")
    assert f"instance {names['instance']} of walker: g4dn.xlarge, running; $0.5" in text
    assert f"  aws ec2 terminate-instances --instance-ids {names['instance']}\n" in text
    assert "  aws logs delete-log-group --log-group-name Nitro-walker-LearnerLogs1-x\n" in text


def test_a_log_is_told_of_until_it_is_empty(aws: Account) -> None:
    for name in ("Nitro-walker-LearnerLogs1-x", "Nitro-walker-ActorLogs1-x"):
        aws.client("logs").create_log_group(logGroupName=name)
    aws.log("Nitro-walker-ActorLogs1-x", "stream", "something")
    now_s = time.time()

    def told(after_s: float) -> list[str]:
        return sorted(
            one["name"] for one in find_left_logs(aws.client, Stacks([]), now_s + after_s)
        )

    assert len(told(LOGS_KEPT_S - 60.0)) == 2, "AWS counts the bytes a day late"
    assert told(LOGS_KEPT_S + 60.0) == ["Nitro-walker-ActorLogs1-x"]


def test_what_a_stack_has_is_no_orphan(aws: Account) -> None:
    names = make_orphans(aws, needs_group=False)
    aws.deploy("walker")
    document = aws.survey()
    # A learner's disk is never detached while its stack exists.
    assert [one["name"] for one in document["orphans"]] == [names["volume"]]
    assert document["left_logs"] == []


def test_what_is_left_of_an_earlier_deployment_is_an_orphan_although_the_experiment_is_deployed(
    aws: Account,
) -> None:
    aws.deploy("hopper")
    aws.client("elasticache").create_serverless_cache(
        ServerlessCacheName="nitro-hopper",
        Engine="valkey",
        Tags=[
            {"Key": EXPERIMENT_TAG, "Value": "hopper"},
            {"Key": "aws:cloudformation:stack-id", "Value": DELETED_STACK},
        ],
    )
    assert [one["kind"] for one in aws.survey("hopper")["orphans"]] == ["serverless cache"]


def test_a_price_that_is_not_known_makes_the_total_a_lower_bound(aws: Account) -> None:
    run_instance(aws, "t3.nano", "walker")
    document = aws.survey()
    assert document["orphans"][0]["usd_per_hour"] is None and document["totals"]["is_at_least"]
    assert "price not known" in aws.run("status")


def test_others_resources_are_not_ours(aws: Account) -> None:
    run_instance(aws, "g4dn.xlarge", None)
    aws.client("logs").create_log_group(logGroupName="/aws/lambda/theirs")
    aws.client("elasticache").create_serverless_cache(ServerlessCacheName="theirs", Engine="valkey")
    document = aws.survey()
    assert document["orphans"] == [] and document["left_logs"] == []


def make_orphans(aws: Account, *, needs_group: bool = True) -> dict[str, str]:
    """Creates walker's leftovers of every kind; returns their names."""
    tags = [{"Key": EXPERIMENT_TAG, "Value": "walker"}]
    names = {}
    names["volume"] = aws.client("ec2").create_volume(
        AvailabilityZone=ZONE, Size=50, TagSpecifications=[{"ResourceType": "volume", "Tags": tags}]
    )["VolumeId"]
    if needs_group:
        groups = aws.client("autoscaling")
        groups.create_launch_configuration(
            LaunchConfigurationName="g", ImageId=IMAGE_ID, InstanceType="g4dn.xlarge"
        )
        groups.create_auto_scaling_group(
            AutoScalingGroupName="Nitro-walker-learner",
            MinSize=0,
            MaxSize=1,
            DesiredCapacity=1,
            LaunchConfigurationName="g",
            AvailabilityZones=[ZONE],
        )
        (group,) = groups.describe_auto_scaling_groups(
            AutoScalingGroupNames=["Nitro-walker-learner"]
        )["AutoScalingGroups"]
        names |= {
            "Auto Scaling group": "Nitro-walker-learner",
            "instance": group["Instances"][0]["InstanceId"],
        }
    names["warm actors"] = make_warm(aws, "Nitro-walker-actor")
    names["execution"] = make_execution(aws, "Nitro-walker-coordinator")
    cache = aws.client("elasticache")
    cache.create_serverless_cache(ServerlessCacheName="nitro-walker", Engine="valkey", Tags=tags)
    cache.create_replication_group(
        ReplicationGroupId="nitro-walker",
        ReplicationGroupDescription="a cache",
        Tags=tags,
        CacheNodeType="cache.t4g.small",
        NumCacheClusters=1,
    )
    aws.client("logs").create_log_group(logGroupName="Nitro-walker-LearnerLogs1-x")
    return names | {"serverless cache": "nitro-walker", "cache node": "nitro-walker"}


def run_instance(aws: Account, instance_type: str, experiment: str | None) -> str:
    tags = (
        [{"Key": EXPERIMENT_TAG, "Value": experiment}]
        if experiment
        else [{"Key": "Name", "Value": "theirs"}]
    )
    (instance,) = aws.client("ec2").run_instances(
        ImageId=IMAGE_ID,
        InstanceType=instance_type,
        MinCount=1,
        MaxCount=1,
        TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
    )["Instances"]
    return instance["InstanceId"]


def make_execution(aws: Account, name: str) -> str:
    """Creates a waiting machine, and a function of the same name."""
    make_function(aws, name)
    machines, role = aws.client("stepfunctions"), f"arn:aws:iam::{ACCOUNT_ID}:role/{name}"
    machine = machines.create_state_machine(
        name=name,
        roleArn=role,
        definition=json.dumps(
            {"StartAt": "Wait", "States": {"Wait": {"Type": "Wait", "Seconds": 900, "End": True}}}
        ),
    )["stateMachineArn"]
    return machines.start_execution(stateMachineArn=machine)["executionArn"].rpartition(":")[2]


def make_function(aws: Account, name: str) -> None:
    role = aws.client("iam").create_role(RoleName=name, AssumeRolePolicyDocument="{}")["Role"][
        "Arn"
    ]
    aws.client("lambda").create_function(
        FunctionName=name,
        Role=role,
        PackageType="Image",
        MemorySize=2048,
        Publish=True,
        Code={"ImageUri": f"{ACCOUNT_ID}.dkr.ecr.us-east-1.amazonaws.com/a:b"},
    )


def make_warm(aws: Account, name: str) -> str:
    make_function(aws, name)
    functions = aws.client("lambda")
    functions.create_alias(FunctionName=name, Name="live", FunctionVersion="1")
    functions.put_provisioned_concurrency_config(
        FunctionName=name, Qualifier="live", ProvisionedConcurrentExecutions=4
    )
    return f"{name}:live"


def test_tags_name_the_stack_before_the_experiment_does() -> None:
    stacks = Stacks(
        [
            {"StackName": "Nitro-hopper", "StackId": "new", "StackStatus": "CREATE_COMPLETE"},
            {"StackName": "Nitro-gone", "StackId": "gone", "StackStatus": "DELETE_COMPLETE"},
        ]
    )
    assert stacks.have({}, "hopper") and not stacks.have({}, "gone") and not stacks.have({}, "hop")
    assert stacks.have({"aws:cloudformation:stack-id": "new"}, "gone")
    assert not stacks.have({"aws:cloudformation:stack-id": "old"}, "hopper")
