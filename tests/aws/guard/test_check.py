"""The guard's answers to CloudFormation: whether it guards, and whether it may be replaced by another version."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from runtime.aws.guard.check import (
    ANSWER_S,
    CHECK_TYPE,
    ENDS_AT,
    FRESH_S,
    LIFETIME_PROPERTY,
    START_TYPE,
    VERSION,
    VERSION_TYPE,
    Check,
    is_request,
)
from runtime.aws.guard.needs import Needs, vcpu_quota
from runtime.errors import ExperimentError, RunError
from stacks.guard import TIMEOUT_S
from tests.aws.guard.pretended_account import refused
from tests.simulators.aws.loopback import LoopbackServer, QuietHandler

NOW_S, WAIT_S = 1_000_000.0, 80.0
CREATED = datetime.datetime.fromtimestamp(NOW_S - 20.0, datetime.UTC)
STACK = "arn:aws:cloudformation:us-east-1:123456789012:stack/Nitro-one/7f5c1c50"


class _Answers(QuietHandler):
    def do_PUT(self) -> None:
        assert self.headers["Content-Type"] == "", (
            "the address is signed for a request without a type"
        )
        self.server.owner.answer = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer(200)


class Limits:
    """The account's limits, and how often they were asked for."""

    def __init__(self) -> None:
        self.concurrency, self.vcpus, self.asked = 1000, {"L-DB2E81BA": 8.0, "L-1216C47A": 5.0}, 0
        self.started: list[tuple[str, str]] = []
        self.disk_key = "alias/aws/ebs"
        self.status = "UPDATE_IN_PROGRESS"

    def __call__(self, service: str, *, is_quick: bool = False) -> Limits:
        return self

    def describe_stacks(self, *, StackName: str) -> dict[str, Any]:
        return {
            "Stacks": [
                {"StackName": StackName, "StackStatus": self.status, "CreationTime": CREATED}
            ]
        }

    def start_execution(self, *, stateMachineArn: str, name: str) -> None:
        self.started.append((stateMachineArn, name))

    def get_account_settings(self) -> dict[str, Any]:
        self.asked += 1
        return {"AccountLimit": {"UnreservedConcurrentExecutions": self.concurrency}}

    def describe_instance_types(self, *, InstanceTypes: list[str]) -> dict[str, Any]:
        vcpus = {"g4dn.xlarge": 4, "c7i.large": 2, "c7i.4xlarge": 16}
        return {
            "InstanceTypes": [
                {"InstanceType": name, "VCpuInfo": {"DefaultVCpus": vcpus[name]}}
                for name in InstanceTypes
            ]
        }

    def get_ebs_default_kms_key_id(self) -> dict[str, Any]:
        return {"KmsKeyId": self.disk_key}

    def get_service_quota(self, *, ServiceCode: str, QuotaCode: str) -> dict[str, Any]:
        assert ServiceCode == "ec2"
        return {"Quota": {"Value": self.vcpus[QuotaCode]}}


class Formation:
    """CloudFormation as the caller, and a clock that only waiting moves."""

    def __init__(self, place: LoopbackServer) -> None:
        self.place, self.now_s, self.looks, self.account = place, NOW_S, 0, Limits()
        self.ticks_s: list[float] = [NOW_S - 30.0]
        self.problem: Exception | None = None
        self.needs: dict[str, str] = {}
        self.seen = {
            name: {"created_at_s": NOW_S - 20.0} for name in ("Nitro-another", "Nitro-one")
        }
        self.listed_at_s = 0.0

    def ask(
        self, kind: str = CHECK_TYPE, request: str = "Create", version: Any = VERSION, **more: Any
    ) -> str:
        """Returns the reason of a refusal; empty if there is none."""
        event = {
            "RequestType": request,
            "ResourceType": kind,
            "ResponseURL": f"{self.place.url}/place?signed=1",
            "StackId": STACK,
            "RequestId": "r",
            "LogicalResourceId": "l",
            "ResourceProperties": {"Version": str(version), **self.needs},
            **more,
        }
        assert is_request(event)
        check = Check(
            self.account,
            self._look,
            lambda: max((at_s for at_s in self.ticks_s if at_s <= self.now_s), default=None),
            now=lambda: self.now_s,
            wait_s=WAIT_S,
            pause_s=5.0,
            sleep=self._sleep,
        )
        check.answer(event)
        told = self.place.answer
        assert (told["StackId"], told["RequestId"], told["LogicalResourceId"]) == (STACK, "r", "l")
        assert told["PhysicalResourceId"] == more.get("PhysicalResourceId", "guard")
        assert {"SUCCESS": "", "FAILED": told["Reason"]}[told["Status"]] in told["Reason"]
        return told["Reason"] if told["Status"] == "FAILED" else ""

    def _look(self, stack: str) -> dict[str, dict[str, Any]]:
        assert stack == STACK
        self.looks += 1
        if self.problem:
            raise self.problem
        return self.seen if self.now_s >= self.listed_at_s else {}

    def _sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def formation() -> Iterator[Formation]:
    with LoopbackServer(_Answers) as place:
        yield Formation(place)


def test_a_guard_that_looks_lets_an_experiment_be_made(formation: Formation) -> None:
    assert formation.ask() == ""
    assert (formation.looks, formation.now_s) == (1, NOW_S)
    assert not is_request({"time": "2026-11-21T00:00:00Z"})


def test_one_that_does_not_see_the_stack_is_none(formation: Formation) -> None:
    """`cdk deploy --tags` replaces a stack's own tags, by which the guard finds it."""
    formation.seen = {"Nitro-another": {}, "Nitro-one-more": {}}
    assert formation.ask().startswith(
        "the guard does not see Nitro-one, so nothing would end it, and nothing was made"
    )


def test_a_stack_that_is_listed_late_is_waited_for(formation: Formation) -> None:
    """Its creation began seconds ago: the list may still say REVIEW_IN_PROGRESS."""
    formation.listed_at_s = NOW_S + WAIT_S - 10.0
    formation.ticks_s = [NOW_S, NOW_S + 60.0]
    assert formation.ask() == ""
    formation.listed_at_s = formation.now_s + 2 * WAIT_S
    assert formation.ask().startswith("the guard does not see Nitro-one")
    assert formation.now_s - NOW_S < 2 * WAIT_S + 10.0


def test_only_its_own_trouble_stops_a_stack(formation: Formation) -> None:
    formation.seen["Nitro-another"]["error"] = "ClientError: no"
    assert formation.ask() == ""
    formation.seen["Nitro-one"]["error"] = "ClientError: no"
    assert formation.ask() == "Nitro-one: ClientError: no"


def test_a_stack_is_told_when_its_lifetime_is_over(formation: Formation) -> None:
    """From its creation, however long the answer takes, in the form that CloudFormation's documentation asks for."""
    formation.ticks_s = [NOW_S + 59.0]
    formation.needs = {LIFETIME_PROPERTY: "7200"}
    assert formation.ask() == ""
    assert formation.place.answer["Data"] == {ENDS_AT: "1970-01-12T15:46:20Z"}
    formation.needs = {}
    assert formation.ask() == ""
    assert formation.place.answer["Data"] == {}, "an older checkout's stack does not ask"


def test_one_that_was_just_made_is_waited_for(formation: Formation) -> None:
    formation.ticks_s = [NOW_S + 59.0]
    assert formation.ask() == ""
    assert 59.0 <= formation.now_s - NOW_S < WAIT_S


@pytest.mark.parametrize("ticks_s", [[], [NOW_S - 3600.0], [NOW_S - FRESH_S - 1.0]])
def test_one_that_is_not_armed_is_none(formation: Formation, ticks_s: list[float]) -> None:
    formation.ticks_s = ticks_s
    reason = formation.ask()
    assert reason.startswith("the guard is not armed: it has not looked for minutes, ")
    assert "enable-rule" in reason


def test_one_that_is_too_old_is_none(formation: Formation) -> None:
    reason = formation.ask(version=VERSION + 1)
    assert reason.startswith(
        f"the guard is too old: it has version {VERSION}, and this experiment needs {VERSION + 1}"
    )
    assert formation.ask(version=VERSION - 1) == "", "it guards what older checkouts deploy"


@pytest.mark.parametrize("problem", [refused("Throttling"), RunError("the ledger cannot be read")])
def test_one_that_cannot_look_is_none(formation: Formation, problem: Exception) -> None:
    formation.problem = problem
    assert formation.ask() == str(problem)


def test_an_older_checkout_does_not_replace_a_newer_guard(formation: Formation) -> None:
    old = {"OldResourceProperties": {"Version": "3"}, "PhysicalResourceId": "known"}
    reason = formation.ask(VERSION_TYPE, "Update", 2, **old)
    assert reason.startswith(
        "the stack NitroGuard has version 3, and this checkout has version 2: an older checkout "
    )
    assert [formation.ask(VERSION_TYPE, "Update", version, **old) for version in (3, 4)] == ["", ""]
    assert formation.ask(VERSION_TYPE, version=1) == ""
    assert formation.looks == 0


def test_a_deletion_is_never_held_up(formation: Formation) -> None:
    formation.problem, formation.ticks_s = RunError("no"), []
    for kind in (CHECK_TYPE, VERSION_TYPE):
        assert formation.ask(kind, "Delete", 99, PhysicalResourceId="known") == ""
    assert formation.looks == 0


@pytest.mark.parametrize(
    ("code", "types"),
    [
        ("L-DB2E81BA", "g4dn.xlarge g5g.xlarge gr6.4xlarge vt1.3xlarge"),
        ("L-417A185B", "p2.xlarge p3dn.24xlarge p6-b200.48xlarge"),
        (
            "L-1216C47A",
            "a1.large c7gn.large d3en.xlarge h1.2xlarge im4gn.large m7i-flex.large t4g.small",
        ),
        (
            None,
            "x1e.xlarge inf2.xlarge trn1n.32xlarge dl1.24xlarge hpc7g.4xlarge u7i-12tb.224xlarge vtx1.large huge",
        ),
    ],
)
def test_every_family_has_its_quota_or_is_refused(code: str | None, types: str) -> None:
    for name in types.split():
        if code is not None:
            assert vcpu_quota(name, "on_demand") == code, name
            continue
        with pytest.raises(ExperimentError, match=f"the quota of {name!r} is not known"):
            vcpu_quota(name, "on_demand")


NEEDS = Needs(
    region="us-east-1",
    actors_min="1",
    others="1",
    held="0",
    instance_types="c7i.large",
    market="on_demand",
)


@pytest.mark.parametrize(
    ("changes", "concurrency"),
    [
        ({}, 10),
        ({"actors_min": "1"}, 2),
        ({"held": "64"}, 164),
        ({"instance_types": "c7i.4xlarge,g4dn.xlarge"}, 10),
        ({"actors_min": "0", "others": "1"}, 0),
        ({"instance_types": ""}, 10),
    ],
)
def test_what_fits_into_the_account_is_made(
    formation: Formation, changes: dict[str, str], concurrency: int
) -> None:
    """Also a round of more actors than run at once, in a new account: it runs in waves."""
    formation.needs, formation.account.concurrency = (
        replace(NEEDS, **changes).properties(),
        concurrency,
    )
    assert formation.ask() == ""


@pytest.mark.parametrize(
    ("changes", "concurrency", "reason"),
    [
        (
            {"instance_types": "g4dn.xlarge"},
            1000,
            "learner.instance_types: none may be launched in region us-east-1: "
            "g4dn.xlarge has 4 vCPUs, the quota L-DB2E81BA allows 0. Ask for more under Service Quotas, Amazon EC2",
        ),
        (
            {"actors_min": "4", "others": "3"},
            6,
            "this account runs 6 functions at once, and the experiment needs 7: 4 for "
            "actors, and 3 for the guard and others; ask for more under Service "
            "Quotas, AWS Lambda, Concurrent executions "
            "(L-B99A9384)",
        ),
        (
            {"held": "64"},
            110,
            "actor.provisioned: 64 functions are to be kept warm or reserved, and Lambda leaves 100 of "
            "this account's 110 concurrent executions unreserved; allowed: "
            "actor.provisioned up to 10; or ask for more under "
            "Service Quotas, AWS Lambda, Concurrent executions (L-B99A9384)",
        ),
        (
            {"region": "eu-west-1"},
            1000,
            "the template has the prices of eu-west-1, and this is us-east-1; set "
            "AWS_REGION=us-east-1 and deploy again",
        ),
        (
            {"instance_types": "inf1.xlarge"},
            1000,
            "learner.instance_types: the quota of 'inf1.xlarge' is not known",
        ),
    ],
)
def test_what_does_not_fit_into_the_account_is_refused_in_one_line_before_anything_is_made(
    formation: Formation, changes: dict[str, str], concurrency: int, reason: str
) -> None:
    formation.needs, formation.account.concurrency = (
        replace(NEEDS, **changes).properties(),
        concurrency,
    )
    formation.account.vcpus["L-DB2E81BA"] = 0.0
    refusal = formation.ask()
    assert refusal.startswith(reason)
    assert "\n" not in refusal
    assert formation.looks == 0, "before it waits for anything"


def test_an_accounts_own_key_for_disks_is_refused_unless_one_was_chosen(
    formation: Formation,
) -> None:
    formation.account.disk_key = "arn:aws:kms:us-east-1:123456789012:key/mrk-1"
    formation.needs = NEEDS.properties()
    assert formation.ask().startswith(
        f"this account encrypts disks with its own key {formation.account.disk_key}, "
    )
    for chosen in ({"disk_key": "alias/aws/ebs"}, {"instance_types": ""}):
        formation.needs = replace(NEEDS, **chosen).properties()
        assert formation.ask() == ""


def test_an_experiment_of_an_older_checkout_tells_nothing_of_its_needs(
    formation: Formation,
) -> None:
    assert formation.ask() == ""
    assert formation.account.asked == 0


def test_the_rounds_of_a_stack_without_an_instance_are_started_once_for_each_request(
    formation: Formation,
) -> None:
    machine = {"ResourceProperties": {"Machine": "arn:of:it", "Run": "one"}}
    assert formation.ask(START_TYPE, **machine) == ""
    assert formation.account.started == [("arn:of:it", "r")]
    assert formation.ask(START_TYPE, "Delete", **machine, PhysicalResourceId="known") == ""
    assert len(formation.account.started) == 1


def test_rounds_that_cannot_be_started_fail_the_deployment(
    formation: Formation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: str) -> None:
        raise refused("AccessDeniedException", "not authorized to perform: states:StartExecution")

    monkeypatch.setattr(formation.account, "start_execution", refuse)
    assert "states:StartExecution" in formation.ask(
        START_TYPE, ResourceProperties={"Machine": "arn:of:it", "Run": "r"}
    )


OLD = {"OldResourceProperties": {"Run": "old"}, "PhysicalResourceId": "known"}


@pytest.mark.parametrize("kind", [CHECK_TYPE, START_TYPE])
def test_an_update_of_a_deployment_is_refused_and_its_run_goes_on(
    formation: Formation, kind: str
) -> None:
    formation.needs = NEEDS.properties()
    refusal = formation.ask(kind, "Update", **OLD)
    assert refusal.startswith(
        "one is deployed, and an update would not reach its run. End it first"
    )
    assert "python -m runtime stop one" in refusal
    assert (formation.account.started, formation.looks) == ([], 0)


def test_nothing_holds_up_the_rollback_of_an_update(formation: Formation) -> None:
    formation.account.status, formation.problem = "UPDATE_ROLLBACK_IN_PROGRESS", RuntimeError("no")
    formation.needs = {**NEEDS.properties(), LIFETIME_PROPERTY: "7200"}
    formation.account.concurrency = 0
    assert formation.ask(request="Update", **OLD) == ""
    # CloudFormation needs the attribute to restore the resources that have it.
    assert formation.place.answer["Data"] == {ENDS_AT: "1970-01-12T15:46:20Z"}
    assert formation.ask(START_TYPE, "Update", **OLD) == ""
    assert (formation.account.started, formation.looks) == ([], 0)


def test_a_quota_without_a_value_of_the_accounts_own_refuses_nothing(
    formation: Formation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no(**_: str) -> None:
        raise refused("NoSuchResourceException", "no applied value")

    monkeypatch.setattr(formation.account, "get_service_quota", no)
    formation.needs = NEEDS.properties()
    assert formation.ask() == ""


def test_slow_answers_end_before_lambda_ends_the_function(
    formation: Formation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call may take 14 s: two tries of 7 s. Then a new guard's first tick is waited for."""

    def slowly(call: Callable[..., Any]) -> Callable[..., Any]:
        def slow(**words: Any) -> Any:
            formation.now_s += 14.0
            return call(**words)

        return slow

    for name in (
        "get_account_settings",
        "describe_instance_types",
        "get_ebs_default_kms_key_id",
        "get_service_quota",
    ):
        monkeypatch.setattr(formation.account, name, slowly(getattr(formation.account, name)))
    formation.needs, formation.ticks_s = (
        replace(NEEDS, actors_min="1").properties(),
        [NOW_S + 500.0],
    )
    assert "not armed" in formation.ask()
    assert formation.now_s - NOW_S < TIMEOUT_S < ANSWER_S
