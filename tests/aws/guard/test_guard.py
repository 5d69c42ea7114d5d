"""The guard's ticks and the teardown, on the real templates in moto: in the right order, once, and to the very end."""

from __future__ import annotations

import datetime
import functools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import moto
import pytest
from botocore.exceptions import ClientError, ReadTimeoutError

from runtime.aws.clients import PROMPT
from runtime.aws.guard import watch
from runtime.aws.guard.function import handler
from runtime.aws.guard.parts import ALIAS, CACHE, GROUP
from runtime.aws.guard.stacks import find_deployments
from runtime.aws.guard.teardown import TeardownError
from runtime.aws.guard.watch import Guard
from runtime.aws.ledger import (
    FINISHED,
    STARTING,
    TRAINING,
    Entry,
    Ledger,
    LedgerError,
)
from runtime.aws.operations.stop import take_down
from runtime.aws.stacks import find_stack
from runtime.times import (
    LATE_S,
    LEG_S,
    MISSING_S,
    STARTING_S,
    STOP_GRACE_S,
)
from stacks.assembly import make_app
from stacks.guard import TIMEOUT_S
from tests.simulators.aws.moto_types import deploy
from tests.stacks.conftest import RUN, SETTINGS, experiment_text

NAMES = ("hopper", "walker")
STEPS = [
    "results",
    "learner",
    "provisioned capacity",
    "concurrency",
    "cache",
    "bill",
    "stack",
    "gone",
]
client_of = functools.cache(boto3.client)
"""Clients are made only once: moto also answers those of earlier tests."""
HANG_S = PROMPT.retries["total_max_attempts"] * (PROMPT.connect_timeout + PROMPT.read_timeout) + 1.0
"""Longest duration of one of the guard's calls."""


@pytest.fixture(scope="module")
def assembly(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Templates of an experiment, synthesized once."""
    made: dict[str, Path] = {}

    def synthesise(name: str) -> Path:
        if name not in made:
            path = tmp_path_factory.mktemp(name) / f"{name}.yaml"
            types = ["g4dn.xlarge", "g5.xlarge"]
            warm = {"actor__provisioned": 2}
            kinds: dict[str, Any] = {
                "pool": {"cache__kind": "none", "learner": {"kind": "external"}, **warm},
                "legs": {
                    "cache__kind": "none",
                    "learner__kind": "function",
                    "budget__lifetime_hours": 2,
                },
            }.get(name, {"cache__kind": "redis", "learner__instance_types": types, **warm})
            path.write_text(experiment_text(**kinds))
            made[name] = Path(
                make_app({**SETTINGS, "run": RUN, "experiment": str(path)}).synth().directory
            )
        return made[name]

    return synthesise


@dataclass
class Account:
    """An account with the shared stacks, a clock, and a list of sent reports.

    Attributes:
        calls: Calls to AWS except reads: service and operation, in order.
        fail: Called before each call; may raise.
        untagged: Names of stacks that the list of tags does not have yet.
        listed_too: Deleted stacks that the list of tags still has.
        unmade: Types of resources that CloudFormation has not begun yet.
        hanging: Calls that name one of these get no answer.
        ignored: Calls that AWS accepts without doing anything.
    """

    assembly: Callable[[str], Path]
    outputs: dict[str, str] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    fail: Callable[[str], None] = lambda call: None
    now_s: float = 0.0
    fail_reading: set[str] = field(default_factory=set)
    unmade: set[str] = field(default_factory=set)
    hanging: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    untagged: set[str] = field(default_factory=set)
    listed_too: list[dict[str, Any]] = field(default_factory=list)

    def client(self, service: str, *, is_quick: bool = False) -> Any:
        return _Spy(self, service, client_of(service, region_name="us-east-1"))

    @property
    def ledger(self) -> Ledger:
        return Ledger(client_of("dynamodb", region_name="us-east-1"), self.outputs["LedgerTable"])

    def deploy(self, name: str, *, is_asking: bool = True) -> str:
        """Deploys an experiment; returns its stack's id."""
        template = self.assembly(name) / f"Nitro-{name}.template.json"
        deploy(client_of, template, f"Nitro-{name}")
        (found,) = [one for one in find_deployments(client_of)[0] if one.experiment == name]
        self.now_s = max(self.now_s, found.created_at_s)
        if is_asking:
            # CloudFormation asks the guard before it makes anything.
            self.guard().tick(is_rehearsed=True, asking=found.stack)
        return found.stack

    def train(self, name: str, stack: str, **figures: Any) -> Entry:
        """Writes a learner's heartbeat of this moment."""
        self.ledger.take_over(
            f"{name}/{RUN}", stack=stack, writer="w", instance_id="i", now_s=self.now_s
        )
        return self.ledger.record(
            f"{name}/{RUN}",
            writer="w",
            **{
                "state": TRAINING,
                "heartbeat_at_s": self.now_s,
                "spent_usd": 0.01,
                "reserved_usd": 0.02,
                "covered_until_s": self.now_s + 60,
                "burn_usd_per_hour": 0.6,
                **figures,
            },
        )

    def guard(self) -> Guard:
        return Guard(
            self.client,
            self.ledger,
            lambda subject, text: self.told.append(subject),
            now=self.now,
            clock=self.now,
            sleep=self.sleep,
        )

    def tick(self, after_s: float = 60.0) -> dict[str, dict[str, Any]]:
        """Runs the guard; returns its reports by stack."""
        self.sleep(after_s)
        return {one["stack"]: one for one in self.guard().tick()["experiments"]}

    def now(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def left(self, name: str) -> list[str]:
        """Returns an experiment's resources, found with Describe."""
        client = client_of
        groups = client("autoscaling").describe_auto_scaling_groups()["AutoScalingGroups"]
        instances = [
            one["InstanceId"]
            for group in client("ec2").describe_instances(
                Filters=[
                    {"Name": "tag:nitro:experiment", "Values": [name]},
                    {
                        "Name": "instance-state-name",
                        "Values": ["pending", "running", "stopping", "stopped"],
                    },
                ]
            )["Reservations"]
            for one in group["Instances"]
        ]
        functions = client("lambda").list_functions()["Functions"]
        caches = client("elasticache")
        found = [
            *[one["AutoScalingGroupName"] for one in groups],
            *[one["FunctionName"] for one in functions],
            *[
                one["ServerlessCacheName"]
                for one in caches.describe_serverless_caches()["ServerlessCaches"]
            ],
            *[
                one["logGroupName"]
                for one in client("logs").describe_log_groups()["logGroups"]
                if "retentionInDays" not in one
            ],
            *[one["StackName"] for one in client("cloudformation").describe_stacks()["Stacks"]],
        ]
        return instances + [one for one in found if f"nitro-{name}" in one.lower()]


class _Spy:
    """A client that records its calls."""

    def __init__(self, account: Account, service: str, client: Any) -> None:
        self._account, self._service, self._client = account, service, client

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._client, name)
        if name == "get_paginator":
            return self._paginator
        if name == "describe_stacks":
            return self._describe_stacks
        if name in ("meta", "exceptions", "can_paginate"):
            return real

        def call(**arguments: Any) -> Any:
            what = f"{self._service}.{name}"
            self._hang(str(arguments))
            if name.startswith(("describe", "get_", "list")):
                return real(**arguments)
            self._account.fail(what)
            self._account.calls.append(what)
            if what in self._account.ignored:
                return {}
            return real(**arguments)

        return call

    def _hang(self, arguments: str) -> None:
        """Hangs as the guard's clients do: two failed connections, two calls without an answer."""
        if any(word in arguments for word in self._account.hanging):
            self._account.now_s += HANG_S
            raise ReadTimeoutError(endpoint_url=self._service)

    def _describe_stacks(self, *, StackName: str) -> Any:
        self._refuse("describe_stacks")
        return self._client.describe_stacks(StackName=StackName)

    def _refuse(self, operation: str) -> None:
        if operation in self._account.fail_reading:
            raise ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, operation)

    def _paginator(self, operation: str) -> Any:
        self._refuse(operation)
        return SimpleNamespace(
            paginate=lambda **arguments: (
                self._hang(str(arguments))
                or self._begun(self._client.get_paginator(operation).paginate(**arguments))
            )
        )

    def _begun(self, pages: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for page in pages:
            if "ResourceTagMappingList" in page:
                page = page | {
                    "ResourceTagMappingList": [
                        one
                        for one in (*page["ResourceTagMappingList"], *self._account.listed_too)
                        if one["ResourceARN"].split("/")[1] not in self._account.untagged
                    ]
                }
            listed = page.get("StackResourceSummaries", [])
            yield (
                page
                | {
                    "StackResourceSummaries": [
                        one for one in listed if one["ResourceType"] not in self._account.unmade
                    ]
                }
                if listed
                else page
            )


@pytest.fixture
def account(assembly: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with moto.mock_aws():
        made = Account(assembly)
        for name in ("NitroResults", "NitroNetwork", "NitroGuard"):
            made.outputs |= deploy(client_of, assembly("hopper") / f"{name}.template.json", name)
        yield made


def refused(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": code}}, "it")


# A tick


def test_a_deployment_that_works_is_left_alone_and_its_heartbeats_are_noted(
    account: Account,
) -> None:
    entry = account.train("hopper", account.deploy("hopper"))
    report = account.tick()["Nitro-hopper"]
    assert (report["decision"], report["waiting_for"], report["run"]) == ("", "", f"hopper/{RUN}")
    assert report["projected_usd"] == pytest.approx(0.03)
    assert account.told == account.calls == []
    seen = account.ledger.get(f"hopper/{RUN}")
    assert (seen.seen_heartbeat_s, seen.seen_at_s) == (entry.heartbeat_at_s, account.now_s)
    assert account.ledger.last_tick_s() == account.now_s


def test_one_that_has_finished_is_gone_after_one_tick_in_the_right_order(account: Account) -> None:
    stack = account.deploy("hopper")
    account.train("hopper", stack, state=FINISHED, reason="target_return", reserved_usd=0.0)
    assert account.left("hopper")
    report = account.tick()["Nitro-hopper"]
    assert (report["decision"], report["waiting_for"]) == ("it has finished: target_return", "")
    # In moto, a group that is set to 0 has no instance left to end.
    assert account.calls == [
        "autoscaling.set_desired_capacity",
        "lambda.delete_provisioned_concurrency_config",
        "lambda.put_function_concurrency",
        "elasticache.delete_serverless_cache",
        "cloudformation.delete_stack",
    ]
    assert account.left("hopper") == []
    assert find_stack(client_of("cloudformation"), stack)["StackStatus"] == "DELETE_COMPLETE"
    assert account.told == ["Nitro-hopper is being taken down", "Nitro-hopper is gone"]
    order = account.ledger.get(f"hopper/{RUN}").order_for(stack)
    assert sorted(order.steps, key=STEPS.index) == STEPS
    account.calls.clear()
    assert account.tick() == {}
    assert (account.calls, len(account.told)) == ([], 2)


@pytest.mark.parametrize(
    ("figures", "silent_s", "reason"),
    [
        (
            {"state": FINISHED, "reason": "the pool was closed"},
            0.0,
            "it has finished: the pool was closed",
        ),
        ({"reserved_usd": 2.0}, 0.0, "its budget is used up"),
        ({}, LATE_S, "its learner or pool (training) has not reported for 10 minutes"),
        (
            {"state": STARTING},
            STARTING_S,
            "its learner or pool (starting) has not reported for 25 minutes",
        ),
    ],
    ids=["closed", "budget", "killed", "killed early"],
)
def test_what_a_pool_sampled_with_is_gone_within_two_ticks_when_it_is_closed_silent_or_out_of_budget(
    account: Account, figures: dict[str, Any], silent_s: float, reason: str
) -> None:
    stack = account.deploy("pool")
    account.train("pool", stack, **{"burn_usd_per_hour": 0.001, **figures})
    decision, heard_s = account.tick()["Nitro-pool"]["decision"], account.now_s
    while not decision:
        decision = account.tick(30.0)["Nitro-pool"]["decision"]
    assert decision.startswith(reason)
    assert silent_s <= account.now_s - heard_s <= silent_s + 60.0
    if "reserved_usd" in figures:
        # It is alive, sees the order, and reports that it has ended.
        account.ledger.record(f"pool/{RUN}", writer="w", state=FINISHED)
        account.tick()
    assert account.left("pool") == []
    assert find_stack(client_of("cloudformation"), stack)["StackStatus"] == "DELETE_COMPLETE"
    entry = account.ledger.get(f"pool/{RUN}")
    # A reservation is spent once nothing can settle it any more.
    assert entry.closed_stack == stack
    assert entry.spent_usd >= 0.01 + figures.get("reserved_usd", 0.02) - 1e-9


def test_time_and_money_count_from_the_execution_of_a_stack_that_was_prepared_days_before(
    account: Account,
) -> None:
    account.now_s = time.time()
    account.tick()
    looked_s = account.now_s
    account.deploy("hopper", is_asking=False)
    backend = moto.backends.get_backend("cloudformation")["123456789012"]["us-east-1"]
    (stack,) = [one for one in backend.stacks.values() if one.name == "Nitro-hopper"]
    stack.creation_time = datetime.datetime.fromtimestamp(looked_s - 2 * 86_400, datetime.UTC)
    report = account.tick()["Nitro-hopper"]
    assert (report["decision"], report["projected_usd"] < 0.03) == ("", True)
    assert account.ledger.get(f"hopper/{RUN}").began_at_s == looked_s
    assert account.tick(MISSING_S - 120)["Nitro-hopper"]["decision"] == ""
    assert account.tick(61)["Nitro-hopper"]["decision"].startswith(
        "its learner or pool never reported"
    )


def in_creation(name: str) -> Any:
    """Sets moto's stack of that name to be in creation, and returns it."""
    backend = moto.backends.get_backend("cloudformation")["123456789012"]["us-east-1"]
    (stack,) = [one for one in backend.stacks.values() if one.name == f"Nitro-{name}"]
    stack.status = "CREATE_IN_PROGRESS"
    return stack


def test_nothing_is_counted_before_cloudformation_begins_to_make_it(account: Account) -> None:
    account.now_s = time.time()
    account.tick()
    account.deploy("hopper")
    stack = in_creation("hopper")
    account.unmade = {GROUP, CACHE, ALIAS}
    first = account.tick()["Nitro-hopper"]["projected_usd"]
    assert account.tick()["Nitro-hopper"]["projected_usd"] == pytest.approx(first), (
        "a minute of everything, no more"
    )
    looked_s = account.now_s
    account.unmade = {GROUP}
    account.tick(300)
    account.unmade = set()
    made_s = account.now_s
    account.fail_reading = {"list_stack_resources"}
    assert "error" not in account.tick()["Nitro-hopper"]
    account.fail_reading = set()
    account.tick()
    entry = account.ledger.get(f"hopper/{RUN}")
    assert entry.parts_from_s == {
        "learner": made_s,
        "cache": looked_s,
        "provisioned": looked_s,
    }
    stack.status = "CREATE_COMPLETE"
    deployed = find_deployments(client_of)[0][0].begun(entry, 0.0)
    assert account.tick()["Nitro-hopper"]["projected_usd"] == pytest.approx(
        (
            deployed.burn_usd_per_hour * 180
            + (deployed.cache_usd_per_hour + deployed.provisioned_usd_per_hour) * 300
        )
        / 3600,
        abs=1e-6,
    )


def test_a_creation_is_stopped_before_anything_of_it_is_ended(account: Account) -> None:
    """CloudFormation could launch an instance after the guard has ended all that it saw."""
    account.deploy("hopper")
    in_creation("hopper")
    account.tick()
    account.ledger.order(
        f"hopper/{RUN}",
        stack=account.ledger.get(f"hopper/{RUN}").stack,
        reason="stopped by hand",
        now_s=account.now_s,
    )
    account.calls.clear()
    account.tick()
    assert account.calls[0] == "cloudformation.delete_stack"
    assert account.left("hopper") == []
    account.tick()
    entry = account.ledger.get(f"hopper/{RUN}")
    assert "creation" in entry.order.steps
    assert not entry.is_open


def test_a_learner_that_is_there_may_put_its_results_away_first(account: Account) -> None:
    stack = account.deploy("hopper")
    account.train("hopper", stack)
    account.tick()
    account.ledger.order(
        f"hopper/{RUN}", stack=stack, reason="stopped by hand", now_s=account.now_s
    )
    account.ledger.record(f"hopper/{RUN}", writer="w", heartbeat_at_s=account.now_s)
    (deployed,) = find_deployments(client_of)[0]

    def advance() -> str:
        steps = account.guard().teardown.steps(deployed, account.ledger.get(deployed.run))
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return end.value

    assert advance() == "results: the learner, which puts them into the bucket, or the pool"
    assert account.calls == []
    account.ledger.finish(deployed.run, stack=stack, reason="taken down")
    assert advance() == ""
    assert account.left("hopper") == []


def test_one_that_lives_but_does_not_end_is_not_waited_for_longer_than_the_tail_allows(
    account: Account,
) -> None:
    stack = account.deploy("hopper")
    account.train("hopper", stack, covered_until_s=account.now_s + 10**6)
    account.tick()
    account.ledger.order(
        f"hopper/{RUN}", stack=stack, reason="stopped by hand", now_s=account.now_s
    )
    started_s = account.now_s
    while account.left("hopper"):
        account.ledger.record(f"hopper/{RUN}", writer="w", heartbeat_at_s=account.now_s)
        account.tick(1)
    assert STOP_GRACE_S <= account.now_s - started_s <= STOP_GRACE_S + 120


# Obstacles


def test_a_guard_that_dies_between_any_two_calls_is_continued_by_the_next(account: Account) -> None:
    class DeathError(BaseException):
        pass

    stack = account.deploy("hopper")
    account.train("hopper", stack, state=FINISHED, reason="max_rounds", spent_usd=0.05)
    ledger_calls = 0
    for lasts in range(1, 40):
        left = [lasts]

        def die(call: str, left: list[int] = left) -> None:
            left[0] -= 1
            if not left[0]:
                raise DeathError

        account.fail = die
        account.calls.clear()
        try:
            account.now_s += 60
            Guard(
                account.client,
                Ledger(account.client("dynamodb"), account.outputs["LedgerTable"]),
                lambda subject, text: account.told.append(subject),
                now=account.now,
                clock=account.now,
                sleep=account.sleep,
            ).tick()
            break
        except DeathError:
            ledger_calls += any(call.startswith("dynamodb") for call in account.calls)
    assert lasts > 4
    assert ledger_calls
    assert account.left("hopper") == []
    assert account.ledger.get(f"hopper/{RUN}").spent_usd >= 0.05
    assert sorted(account.ledger.get(f"hopper/{RUN}").order.steps, key=STEPS.index) == STEPS


@pytest.mark.parametrize(
    "call",
    [
        "autoscaling.set_desired_capacity",
        "lambda.delete_provisioned_concurrency_config",
        "lambda.put_function_concurrency",
        "elasticache.delete_serverless_cache",
    ],
)
def test_a_step_that_is_refused_for_good_does_not_keep_the_rest_alive(
    account: Account, call: str
) -> None:
    account.train("hopper", account.deploy("hopper"), state=FINISHED, reason="max_rounds")

    def refuse(what: str) -> None:
        if what == call:
            raise refused("AccessDeniedException")

    account.fail = refuse
    assert "AccessDenied" in account.tick()["Nitro-hopper"]["error"]
    assert "Nitro-hopper" in account.left("hopper")
    # The steps that can be done are done at once; CloudFormation does the rest five minutes later.
    assert len(account.ledger.get(f"hopper/{RUN}").order.steps) == 4
    for _ in range(7):
        account.tick()
    assert account.left("hopper") == []
    assert not account.ledger.get(f"hopper/{RUN}").is_open


@pytest.mark.parametrize(
    ("ignored", "words"),
    [
        (("autoscaling.set_desired_capacity", "ec2.terminate_instances"), "learner: i-"),
        (("lambda.delete_provisioned_concurrency_config",), "the warm actors to end"),
        (("lambda.put_function_concurrency",), "to be barred"),
        (("elasticache.delete_serverless_cache",), "it is being deleted"),
        (("cloudformation.delete_stack",), "CloudFormation (CREATE_COMPLETE)"),
    ],
)
def test_what_aws_accepts_but_does_not_do_is_not_done(
    account: Account, ignored: tuple[str, ...], words: str
) -> None:
    account.train("hopper", account.deploy("hopper"), state=FINISHED, reason="max_rounds")
    account.ignored = ignored
    assert words in account.tick()["Nitro-hopper"]["waiting_for"]
    account.ignored = ()
    account.tick()
    assert account.left("hopper") == []


def test_an_account_that_may_reserve_no_concurrency_is_torn_down_all_the_same(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    account.train("hopper", account.deploy("hopper"), state=FINISHED, reason="max_rounds")
    monkeypatch.setenv("MOTO_LAMBDA_CONCURRENCY_QUOTA", "10")
    report = account.tick()["Nitro-hopper"]
    assert ("error" in report, report["waiting_for"]) == (False, "")
    assert account.left("hopper") == []


def test_a_group_that_is_being_deleted_gets_no_orders(account: Account) -> None:
    account.train("hopper", account.deploy("hopper"), state=FINISHED, reason="max_rounds")
    (group,) = moto.backends.get_backend("autoscaling")["123456789012"][
        "us-east-1"
    ].autoscaling_groups.values()
    group.status = "Delete in progress"
    account.tick()
    assert "autoscaling.set_desired_capacity" not in account.calls
    assert "ec2.terminate_instances" in account.calls


def test_steps_that_cannot_be_noted_are_taken_all_the_same(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    account.train("hopper", account.deploy("hopper"), state=FINISHED, reason="max_rounds")
    with monkeypatch.context() as patched:
        patched.setattr(
            Ledger, "step_done", lambda *_, **__: (_ for _ in ()).throw(LedgerError("no room"))
        )
        assert "no room" in account.tick()["Nitro-hopper"]["error"]
        # Instances and caches are gone. A stack is not deleted yet while anything is wrong.
        assert [one for one in account.left("hopper") if one.startswith(("i-", "nitro-"))] == []
        assert "Nitro-hopper" in account.left("hopper")
    account.tick()
    assert account.left("hopper") == []


def test_one_deployments_trouble_does_not_keep_the_guard_from_the_others(account: Account) -> None:
    for name in NAMES:
        account.train(name, account.deploy(name), state=FINISHED, reason="max_rounds")
    refusals = [refused("AccessDenied")]

    def refuse(what: str) -> None:
        if refusals and "serverless" in what:
            raise refusals.pop()

    account.fail = refuse
    reports = account.tick()
    (other,) = (name for name in NAMES if "error" not in reports[f"Nitro-{name}"])
    assert account.left(other) == []


def test_a_run_whose_entry_cannot_be_written_keeps_the_guard_from_no_other(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NAMES:
        account.train(name, account.deploy(name), state=FINISHED, reason="max_rounds")
    saw = Ledger.saw

    def refuse(self: Ledger, run: str, **figures: Any) -> None:
        if run == f"hopper/{RUN}":
            raise LedgerError("no room")
        saw(self, run, **figures)

    monkeypatch.setattr(Ledger, "saw", refuse)
    assert "no room" in account.tick()["Nitro-hopper"]["error"]
    assert (account.left("walker"), account.left("hopper") == []) == ([], False)


@pytest.mark.parametrize("is_tagged", [False, True])
def test_a_new_stack_is_seen_once_it_has_asked_however_late_its_tags_are_listed(
    account: Account, is_tagged: bool
) -> None:
    stack = account.deploy("hopper", is_asking=False)
    if not is_tagged:
        account.untagged = {"Nitro-hopper"}
        assert account.tick() == {}
        (report,) = account.guard().tick(is_rehearsed=True, asking=stack)["experiments"]
        assert report["stack"] == "Nitro-hopper"
    report = account.tick(MISSING_S + 60)["Nitro-hopper"]
    assert report["decision"].startswith("its learner or pool never")
    assert account.left("hopper") == []


def test_a_list_of_tags_that_has_deleted_stacks_begins_nothing_anew(account: Account) -> None:
    stack = account.deploy("hopper")
    account.train("hopper", stack, state=FINISHED, reason="max_rounds")
    account.listed_too = [
        {"ResourceARN": stack, "Tags": find_stack(client_of("cloudformation"), stack)["Tags"]}
    ]
    account.tick()
    entry, told = account.ledger.get(f"hopper/{RUN}"), list(account.told)
    assert account.tick() == {}
    assert (account.ledger.get(f"hopper/{RUN}"), account.told) == (entry, told)


def test_without_a_list_of_tags_the_stacks_of_the_ledger_are_decided_about(
    account: Account,
) -> None:
    account.train("hopper", account.deploy("hopper"))
    account.tick()
    looked_s = account.now_s
    account.fail_reading = {"get_resources"}
    reports = account.tick(LATE_S + 60)
    assert "AccessDenied" in reports["the list of stacks"]["error"]
    assert reports["Nitro-hopper"]["decision"].endswith("has not reported for 10 minutes")
    assert (account.left("hopper"), account.ledger.last_tick_s()) == ([], looked_s), (
        "a new one may be missing"
    )


def test_a_stack_that_cannot_be_described_is_reported_and_ended_when_it_can(
    account: Account,
) -> None:
    account.train("hopper", account.deploy("hopper"))
    account.tick()
    account.fail_reading = {"describe_stacks"}
    assert "AccessDenied" in account.tick(LATE_S + 60)["Nitro-hopper"]["error"]
    assert (account.ledger.last_tick_s(), account.calls) == (account.now_s, []), (
        "the ledger knows it: none is missing"
    )
    account.fail_reading = set()
    assert "error" not in account.tick()["Nitro-hopper"]
    assert account.left("hopper") == []


@pytest.mark.parametrize("hanging", NAMES)
def test_an_api_that_hangs_for_one_deployment_does_not_hold_up_the_other(
    account: Account, hanging: str
) -> None:
    (other,) = set(NAMES) - {hanging}
    for name in NAMES:
        account.train(name, account.deploy(name), state=FINISHED, reason="max_rounds")
    account.hanging = (f"nitro-{hanging}", f"Nitro-{hanging}")
    began_s = account.now_s + 60
    reports = account.tick()
    assert account.now_s - began_s < TIMEOUT_S
    assert (reports[f"Nitro-{other}"]["waiting_for"], account.left(other)) == ("", [])
    assert account.ledger.last_tick_s() == began_s, "all were checked before anything could hang"
    assert account.ledger.get(f"{hanging}/{RUN}").order, "and its own learner gets the order to end"
    account.hanging = ()
    for _ in range(2):
        account.tick()
    assert account.left(hanging) == []


def test_each_tick_begins_with_another_deployment(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NAMES:
        account.train(name, account.deploy(name), state=FINISHED, reason="max_rounds")
    account.hanging = ("Nitro-",)
    # There is time for only one of them, and that one hangs.
    monkeypatch.setattr(watch, "ACT_S", 10.0)
    waited: list[str] = []
    for _ in range(4):
        waited += [name for name, one in account.tick().items() if "error" in one]
    assert set(waited) == {"Nitro-hopper", "Nitro-walker"}


def test_what_the_teardown_has_cost_is_in_the_ledger(account: Account) -> None:
    stack = account.deploy("hopper")
    # The instance was launched before that.
    account.now_s = time.time()
    account.train(
        "hopper",
        stack,
        state=FINISHED,
        reason="max_rounds",
        spent_usd=0.25,
        reserved_usd=0.0,
        covered_until_s=account.now_s,
        burn_usd_per_hour=0.6,
    )
    (deployed,) = find_deployments(client_of)[0]
    account.tick(60)
    entry = account.ledger.get(f"hopper/{RUN}")
    minute_usd, block_usd = deployed.burn_usd_per_hour / 60, deployed.provisioned_usd_per_hour / 12
    assert entry.spent_usd == pytest.approx(0.25 + minute_usd + block_usd, abs=0.0001)
    deployed_again = account.deploy("hopper")
    assert deployed_again != stack
    # The new deployment of the run starts with that sum, and is not taken down for an order that is done.
    assert account.tick(60)["Nitro-hopper"]["decision"] == ""
    assert account.tick(0)["Nitro-hopper"]["projected_usd"] >= entry.spent_usd


def test_a_leg_that_is_stopped_counts_until_it_ends_itself(account: Account) -> None:
    stack = account.deploy("legs")
    covered_s = account.now_s
    account.train(
        "legs",
        stack,
        spent_usd=0.25,
        reserved_usd=0.0,
        covered_until_s=covered_s,
        burn_usd_per_hour=0.6,
    )
    account.tick(0)
    account.tick(LATE_S + 60)
    entry = account.ledger.get(f"legs/{RUN}")
    assert not entry.is_open
    counted_s = account.now_s - covered_s + LEG_S
    # To a minute: the tick itself takes some seconds.
    assert entry.spent_usd == pytest.approx(0.25 + 0.6 * counted_s / 3600, abs=0.01)


def test_what_somebody_else_has_deleted_is_closed_and_its_successor_left_alone(
    account: Account,
) -> None:
    account.train("hopper", account.deploy("hopper"), spent_usd=0.2, covered_until_s=account.now_s)
    account.tick()
    client_of("cloudformation").delete_stack(StackName="Nitro-hopper")
    account.calls.clear()
    successor = account.deploy("hopper")
    before = account.left("hopper")
    account.sleep(200)
    decisions = [account.guard().tick()["experiments"] for _ in range(2)]
    # Stacks of one name are looked at in the order of their random ids.
    assert [sorted(one["decision"] for one in each) for each in decisions] == [
        ["", "its stack was deleted by someone else"],
        [""],
    ]
    assert (account.left("hopper"), account.calls) == (before, [])
    entry = account.ledger.get(f"hopper/{RUN}")
    assert (entry.stack, entry.is_open) == (successor, True)
    assert entry.spent_usd >= 0.2


def test_a_stack_that_cannot_say_what_it_has_is_left_to_cloudformation(account: Account) -> None:
    account.train("hopper", account.deploy("hopper"), state=FINISHED, reason="max_rounds")
    account.fail_reading = {"list_stack_resources"}
    assert "list_stack_resources" in account.tick()["Nitro-hopper"]["error"]
    for _ in range(6):
        account.tick()
    assert account.left("hopper") == []


def test_a_stack_that_is_protected_is_told(account: Account) -> None:
    account.train("hopper", account.deploy("hopper"), state=FINISHED, reason="max_rounds")
    account.fail = lambda what: (
        (_ for _ in ()).throw(refused("ValidationError")) if "delete_stack" in what else None
    )
    assert "ValidationError" in account.tick()["Nitro-hopper"]["waiting_for"]
    assert "Nitro-hopper could not be deleted (1 times)" in account.told
    assert [one for one in account.left("hopper") if one.startswith("i-") or "cache" in one] == []


# By hand


def stop(account: Account, stack: str, said: list[str], *, is_guarded: bool = True) -> None:
    """Stops it by hand while the guard looks, or does not."""
    take_down(
        account.client,
        find_stack(client_of("cloudformation"), stack),
        said.append,
        sleep=account.tick if is_guarded else account.sleep,
    )


def test_stopping_by_hand_is_the_guards_teardown(account: Account) -> None:
    stack = account.deploy("hopper")
    account.train("hopper", stack)
    account.tick()
    said: list[str] = []
    stop(account, stack, said)
    assert account.left("hopper") == []
    order = account.ledger.get(f"hopper/{RUN}").order
    assert (order.reason, sorted(order.steps, key=STEPS.index)) == ("stopped by hand", STEPS)
    assert said[0] == "the guard is told: stopped by hand"
    assert sorted(said[1:]) == sorted(f"done: {step}" for step in STEPS)


@pytest.mark.parametrize("has_looked", [False, True])
def test_stopping_where_no_guard_looks_is_left_to_cloudformation(
    account: Account, has_looked: bool
) -> None:
    stack = account.deploy("hopper")
    if has_looked:
        account.tick()
    said: list[str] = []
    stop(account, stack, said, is_guarded=False)
    assert "Nitro-hopper" not in account.left("hopper")
    assert said[-1:] == ["the guard does not look; CloudFormation deletes all of it"] * has_looked
    account.tick()
    assert account.left("hopper") == []


def test_whoever_stops_by_hand_need_not_stay(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOTO_FAILING_DELETIONS", "Nitro-hopper=25")
    stack = account.deploy("hopper")
    account.train("hopper", stack, state=FINISHED)
    account.tick()
    with pytest.raises(TeardownError, match="DELETE_FAILED"):
        stop(account, stack, [])
    monkeypatch.setenv("MOTO_FAILING_DELETIONS", "Nitro-hopper=0")
    account.tick()
    assert account.left("hopper") == []


def test_its_handler_reports_to_the_topic_and_fails_where_it_could_not_help(
    account: Account, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    queue = client_of("sqs").create_queue(QueueName="people")["QueueUrl"]
    arn = client_of("sqs").get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])[
        "Attributes"
    ]["QueueArn"]
    client_of("sns").subscribe(
        TopicArn=account.outputs["ReportsTopic"], Protocol="sqs", Endpoint=arn
    )
    for name, key in (
        ("NITRO_LEDGER_TABLE", "LedgerTable"),
        ("NITRO_REPORTS_TOPIC", "ReportsTopic"),
    ):
        monkeypatch.setenv(name, account.outputs[key])
    account.train("hopper", account.deploy("hopper"), state=FINISHED, reason="max_rounds")
    account.fail = lambda what: (
        (_ for _ in ()).throw(refused("AccessDenied")) if "serverless" in what else None
    )
    with pytest.raises(RuntimeError, match="Nitro-hopper: TeardownError: .*AccessDenied"):
        handler({}, None, client=account.client, now=account.now)
    account.fail = lambda what: (
        (_ for _ in ()).throw(refused("Unwell")) if what == "sns.publish" else None
    )
    with pytest.raises(RuntimeError, match="not reported: .*Unwell"):
        handler({"time": "2026-11-21T00:00:00Z"}, None, client=account.client, now=account.now)
    assert account.left("hopper") == [], "no report arrived, but it is done"
    message = json.loads(client_of("sqs").receive_message(QueueUrl=queue)["Messages"][0]["Body"])
    assert message["Subject"] == "Nitro-hopper is being taken down"
    assert "it has finished: max_rounds. So far it can have cost at most $" in message["Message"]
    assert "Nitro-hopper is gone" in caplog.text


def test_a_tick_ends_in_time(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOTO_FAILING_DELETIONS", "Nitro-hopper=1000000")
    account.train("hopper", account.deploy("hopper"), state=FINISHED, reason="max_rounds")
    began_s = account.now_s
    report = account.tick(0.0)["Nitro-hopper"]
    assert report["waiting_for"] == "stack: CloudFormation (DELETE_FAILED)"
    assert 0.0 < account.now_s - began_s < 60
    account.tick()
    assert account.told.count("Nitro-hopper is being taken down") == 1
    assert account.told.count("Nitro-hopper could not be deleted (1 times)") == 1


def test_a_stack_is_gone_only_when_describe_finds_nothing_of_it(account: Account) -> None:
    account.train("hopper", account.deploy("hopper"), state=FINISHED, reason="max_rounds")
    ec2 = client_of("ec2")
    tag = {"Key": "nitro:experiment", "Value": "hopper"}
    left = ec2.run_instances(
        ImageId="ami-12c6146b",
        MinCount=1,
        MaxCount=1,
        TagSpecifications=[{"ResourceType": "instance", "Tags": [tag]}],
    )["Instances"][0]["InstanceId"]
    assert account.tick()["Nitro-hopper"]["waiting_for"] == f"gone: {left}, which should be gone"
    ec2.terminate_instances(InstanceIds=[left])
    assert account.tick()["Nitro-hopper"]["waiting_for"] == ""


@pytest.mark.parametrize("limit", ["lifetime-hours", "budget-usd"])
def test_an_update_that_is_refused_leaves_the_run_alone(account: Account, limit: str) -> None:
    """CloudFormation shows another run and its limits until the update is rolled back."""
    stack = account.deploy("hopper")
    account.train("hopper", stack)
    backend = moto.backends.get_backend("cloudformation")["123456789012"]["us-east-1"]
    (made,) = [one for one in backend.stacks.values() if one.name == "Nitro-hopper"]
    before = dict(made.tags)
    made.tags |= {"nitro:run": "second", f"nitro:{limit}": "0.001"}
    made.status = "UPDATE_IN_PROGRESS"
    report = account.tick()["Nitro-hopper"]
    assert (report["run"], report["decision"], "error" in report) == (f"hopper/{RUN}", "", False)
    made.tags, made.status = before, "UPDATE_ROLLBACK_COMPLETE"
    account.train("hopper", stack)
    assert account.tick()["Nitro-hopper"]["decision"] == ""
    assert account.ledger.get("hopper/second") is None
    account.tick(LATE_S + 60)
    assert account.left("hopper") == []


def test_a_guard_that_replaces_an_older_one_ends_what_runs_under_it(account: Account) -> None:
    """The item is of version 3 before the run's ledger moved into it, with a teardown half done."""
    stack = account.deploy("hopper", is_asking=False)
    numbers = {
        "spent_usd": 0.2,
        "reserved_usd": 0.1,
        "burn_usd_per_hour": 0.6,
        "covered_until_s": account.now_s,
        "heartbeat_at_s": account.now_s,
        "budget_usd": 1.0,
        "seen_heartbeat_s": account.now_s - 30,
        "seen_at_s": account.now_s,
        "seen_spent_usd": 0.2,
        "before_usd": 0.05,
        "began_at_s": account.now_s - 60,
        "served_at_s": account.now_s,
    }
    texts = {"run": f"hopper/{RUN}", "stack": stack, "began_stack": stack, "closed_stack": "old"}
    texts |= {"writer": "w", "state": TRAINING, "instance_id": "i", "stop_event": "{}"}
    item = {name: {"S": text} for name, text in texts.items()}
    item |= {name: {"N": repr(number)} for name, number in numbers.items()}
    client_of("dynamodb").put_item(TableName=account.outputs["LedgerTable"], Item=item)
    assert account.tick()["Nitro-hopper"]["decision"] == ""
    # Its learner keeps its ledger in the bucket, and writes sums only.
    account.ledger.record(f"hopper/{RUN}", writer="w", spent_usd=0.25, heartbeat_at_s=account.now_s)
    assert account.tick()["Nitro-hopper"]["projected_usd"] >= 0.35
    assert account.tick(LATE_S + 60)["Nitro-hopper"]["decision"].endswith("for 10 minutes")
    assert account.left("hopper") == []
    entry = account.ledger.get(f"hopper/{RUN}")
    assert (entry.is_open, entry.writer) == (False, "")
    assert entry.before_usd == entry.spent_usd >= 0.35
