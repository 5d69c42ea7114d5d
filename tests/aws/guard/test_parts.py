"""The parts of a deployment without an instance, and how its rounds are ended."""

from __future__ import annotations

import json

import boto3
import moto
import pytest

from runtime.aws.guard.parts import (
    Parts,
    end_concurrency,
    end_learner,
    find_executions,
)
from tests.helpers import wait_for
from tests.simulators.aws.moto_server import CREDENTIALS

DEFINITION = {"StartAt": "Wait", "States": {"Wait": {"Type": "Wait", "Seconds": 900, "End": True}}}
ROLE = "arn:aws:iam::123456789012:role/it"


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch):
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with moto.mock_aws():
        yield lambda service, **_: boto3.client(service)


def test_its_executions_are_stopped_and_no_other_follows(aws) -> None:
    machines = aws("stepfunctions")
    machine = machines.create_state_machine(
        name="Nitro-x-coordinator", definition=json.dumps(DEFINITION), roleArn=ROLE
    )["stateMachineArn"]
    assert end_learner(aws, Parts(machine=machine)) == ""
    for name in ("first", "second"):
        machines.start_execution(stateMachineArn=machine, name=name)
    # An execution takes a moment to stop.
    wait_for(lambda: end_learner(aws, Parts(machine=machine)) == "", "the executions' end")
    assert {one["status"] for one in find_executions(machines, machine)} == {"ABORTED"}


def test_a_machine_that_is_gone_has_nothing_to_end_and_nobody_can_tell_what_it_ran(aws) -> None:
    gone = "arn:aws:states:us-east-1:123456789012:stateMachine:Nitro-x-coordinator"
    assert end_learner(aws, Parts(machine=gone)) == ""
    assert find_executions(aws("stepfunctions"), gone) == []


def test_all_functions_are_barred(aws) -> None:
    assert Parts(function="a", others=("b", "c")).functions == ["a", "b", "c"]
    assert end_concurrency(aws, Parts(function="gone", others=("gone-too",))) == ""
