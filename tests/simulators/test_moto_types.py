"""What `tests.simulators.aws.moto_types` adds to moto: today's templates, created, described and deleted."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from runtime.names import SHARED_STACKS
from tests.simulators.aws.moto_server import REGION
from tests.simulators.aws.moto_types import CACHE_TYPE, IMAGE_ID, deploy
from tests.stacks.conftest import STACK, Assembly, Synthesise, synthesise  # noqa: F401

Client = Callable[[str], Any]
LEARNER, ACTOR = f"{STACK}-learner", f"{STACK}-actor"


@pytest.fixture
def client() -> Iterator[Client]:
    with mock_aws():
        yield partial(boto3.client, region_name=REGION)


@pytest.fixture
def made(client: Client, synthesise: Synthesise) -> Assembly:  # noqa: F811
    """The stacks of an experiment with a cache and warm actors."""
    made = synthesise(actor__provisioned=2)
    create(client, made)
    return made


def create(client: Client, made: Assembly) -> None:
    for name in (*SHARED_STACKS, made.stack):
        deploy(client, made.directory / f"{name}.template.json", name)


def instances(client: Client) -> list[dict[str, Any]]:
    found = client("ec2").describe_instances(
        Filters=[{"Name": "instance-state-name", "Values": ["running"]}]
    )
    return [one for reservation in found["Reservations"] for one in reservation["Instances"]]


def warm(client: Client) -> list[int]:
    found = client("lambda").list_provisioned_concurrency_configs(FunctionName=ACTOR)
    return [
        one["RequestedProvisionedConcurrentExecutions"]
        for one in found["ProvisionedConcurrencyConfigs"]
    ]


def status(client: Client, stack: str) -> str:
    return str(
        client("cloudformation").describe_stacks(StackName=stack)["Stacks"][0]["StackStatus"]
    )


def test_a_group_launches_one_instance_and_replaces_it_as_long_as_it_wants_one(
    client: Client, made: Assembly
) -> None:
    machines = client("ec2")
    (first,) = instances(client)
    overrides = made.only("AWS::AutoScaling::AutoScalingGroup")["MixedInstancesPolicy"][
        "LaunchTemplate"
    ]["Overrides"]
    assert (first["InstanceType"], first["ImageId"]) == (overrides[0]["InstanceType"], IMAGE_ID)
    data = machines.describe_instance_attribute(
        InstanceId=first["InstanceId"], Attribute="userData"
    )
    assert base64.b64decode(data["UserData"]["Value"]).startswith(b"#!/bin/bash\n")
    (volume,) = machines.describe_volumes()["Volumes"]
    assert volume["Encrypted"]
    machines.terminate_instances(InstanceIds=[first["InstanceId"]])
    (second,) = instances(client)
    assert second["InstanceId"] != first["InstanceId"]
    client("autoscaling").set_desired_capacity(AutoScalingGroupName=LEARNER, DesiredCapacity=0)
    assert (instances(client), machines.describe_volumes()["Volumes"]) == ([], [])


def test_a_small_account_refuses_a_reservation(
    client: Client,
    synthesise: Synthesise,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MOTO_LAMBDA_CONCURRENCY_QUOTA", "10")
    made = synthesise(cache="none", context={"actor_concurrency": 1000})
    with pytest.raises(ClientError, match=r"below its minimum value of \[10\]"):
        create(client, made)


@pytest.fixture
def at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the clock, in seconds. Stacks wait for signals by it."""
    monkeypatch.setenv("MOTO_CLOCK", str(tmp_path / "clock"))
    monkeypatch.setenv("MOTO_FAULTS", str(tmp_path / "faults"))

    def set_clock(now_s: float) -> None:
        (tmp_path / "clock").write_text(f"0 {now_s} 0")

    set_clock(1.0)
    return set_clock


def tell(client: Client, status: str, resource: str) -> None:
    client("cloudformation").signal_resource(
        StackName=STACK, LogicalResourceId=resource, UniqueId="i-1-image", Status=status
    )


def test_a_stack_is_complete_with_its_signal(
    client: Client, at: Callable[[float], None], made: Assembly
) -> None:
    group = made.name("AWS::AutoScaling::AutoScalingGroup")
    assert status(client, STACK) == "CREATE_IN_PROGRESS"
    with pytest.raises(ClientError, match="Resource Nothing does not exist"):
        tell(client, "SUCCESS", "Nothing")
    with pytest.raises(ClientError, match="FAILED is neither"):
        tell(client, "FAILED", group)
    tell(client, "SUCCESS", group)
    assert status(client, STACK) == "CREATE_COMPLETE"
    with pytest.raises(ClientError, match="cannot be signaled"):
        tell(client, "FAILURE", group)
    assert (len(instances(client)), warm(client)) == (1, [2])


@pytest.mark.parametrize("is_told", [True, False])
def test_a_stack_is_rolled_back_when_an_instance_tells_its_failure_or_nothing(
    client: Client, at: Callable[[float], None], made: Assembly, is_told: bool
) -> None:
    if is_told:
        tell(client, "FAILURE", made.name("AWS::AutoScaling::AutoScalingGroup"))
    else:
        at(3600.0)
    assert (status(client, STACK), instances(client)) == ("ROLLBACK_IN_PROGRESS", [])
    with pytest.raises(ClientError, match="cannot be deleted while in status ROLLBACK_IN_PROGRESS"):
        client("cloudformation").delete_stack(StackName=STACK)
    for now_s in (7200.0, 10_800.0):
        # Its function's interfaces linger.
        at(now_s)
        found = status(client, STACK)
    assert found == "ROLLBACK_COMPLETE"
    assert client("lambda").list_functions()["Functions"][0]["FunctionName"] != ACTOR


def test_a_cache_in_creation_holds_back_what_needs_it_and_cannot_be_deleted(
    client: Client,
    at: Callable[[float], None],
    synthesise: Synthesise,  # noqa: F811
    tmp_path: Path,
) -> None:
    (tmp_path / "faults").write_text(json.dumps({CACHE_TYPE: [300.0, "no room"]}))
    create(client, synthesise())
    caches = client("elasticache")
    (cache,) = caches.describe_serverless_caches()["ServerlessCaches"]
    assert (cache["Status"], instances(client)) == ("creating", [])
    with pytest.raises(ClientError, match="InvalidServerlessCacheState"):
        caches.delete_serverless_cache(ServerlessCacheName=cache["ServerlessCacheName"])
    at(301.0)
    assert status(client, STACK) == "ROLLBACK_IN_PROGRESS"


@pytest.mark.parametrize(
    ("kind", "wrong", "words"),
    [
        ("ElastiCache::User", {"UserID": "test"}, "UserID"),
        (
            "AutoScaling::ScheduledAction",
            {"AutoScalingGroupName": "any", "MaxSize": 0, "StartTime": "2020-01-01T00:00:00Z"},
            "is in the past",
        ),
        (
            "AutoScaling::ScheduledAction",
            {"AutoScalingGroupName": "any", "MaxSize": 0, "StartTime": "2099-01-01 00:00:00"},
            "2099-01-01 00:00:00",
        ),
    ],
)
def test_what_a_service_does_not_know_is_refused(
    client: Client, tmp_path: Path, kind: str, wrong: dict[str, Any], words: str
) -> None:
    file = tmp_path / "wrong.template.json"
    resources = {"Wrong": {"Type": f"AWS::{kind}", "Properties": wrong}}
    file.write_text(json.dumps({"Resources": resources}))
    with pytest.raises(ValueError, match=words):
        deploy(client, file, "Wrong")
