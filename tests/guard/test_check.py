"""The guard's answers to CloudFormation: whether it guards, and whether it may be replaced by another version."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from runtime.errors import RunError
from runtime.guard.check import CHECK_TYPE, FRESH_S, VERSION, VERSION_TYPE, answer, is_request
from tests.simulators.aws.loopback import LoopbackServer, QuietHandler

NOW_S, WAIT_S = 1_000_000.0, 80.0
STACK = "arn:aws:cloudformation:us-east-1:123456789012:stack/Nitro-one/7f5c1c50"


class _Answers(QuietHandler):
    def do_PUT(self) -> None:
        assert self.headers["Content-Type"] == "", "the address is signed for a request without a type"
        self.server.owner.answer = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer(200)


class Formation:
    """CloudFormation as the caller, and a clock that only waiting moves."""

    def __init__(self, place: LoopbackServer) -> None:
        self.place, self.now_s, self.looks = place, NOW_S, 0
        self.ticks_s: list[float] = [NOW_S - 30.0]
        self.problem: Exception | None = None
        self.seen = ["Nitro-another", "Nitro-one"]

    def ask(self, kind: str = CHECK_TYPE, request: str = "Create", version: Any = VERSION, **more: Any) -> str:
        """Returns the reason of a refusal; empty if there is none."""
        event = {"RequestType": request, "ResourceType": kind, "ResponseURL": f"{self.place.url}/place?signed=1",
                 "StackId": STACK, "RequestId": "r", "LogicalResourceId": "l",
                 "ResourceProperties": {"Version": str(version)}, **more}
        assert is_request(event)
        answer(event, self._look, lambda: max((at_s for at_s in self.ticks_s if at_s <= self.now_s), default=None),
               now=lambda: self.now_s, wait_s=WAIT_S, pause_s=5.0, sleep=self._sleep)
        told = self.place.answer
        assert (told["StackId"], told["RequestId"], told["LogicalResourceId"]) == (STACK, "r", "l")
        assert told["PhysicalResourceId"] == more.get("PhysicalResourceId", "guard")
        assert {"SUCCESS": "", "FAILED": told["Reason"]}[told["Status"]] in told["Reason"]
        return told["Reason"] if told["Status"] == "FAILED" else ""

    def _look(self) -> list[str]:
        self.looks += 1
        if self.problem:
            raise self.problem
        return self.seen

    def _sleep(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.fixture
def formation() -> Iterator[Formation]:
    with LoopbackServer(_Answers) as place:
        yield Formation(place)


def test_a_guard_that_looks_lets_an_experiment_be_made(formation: Formation) -> None:
    assert formation.ask() == ""
    assert (formation.looks, formation.now_s) == (1, NOW_S)
    assert not is_request({"rehearse": True})


def test_one_that_does_not_see_the_stack_is_none(formation: Formation) -> None:
    """`cdk deploy --tags` replaces a stack's own tags, by which the guard finds it."""
    formation.seen = ["Nitro-another", "Nitro-one-more"]
    assert formation.ask().startswith("the guard does not see Nitro-one, so nothing would end it, and nothing was made")


def test_one_that_was_just_made_is_waited_for(formation: Formation) -> None:
    formation.ticks_s = [NOW_S + 59.0]
    assert formation.ask() == ""
    assert 59.0 <= formation.now_s - NOW_S < WAIT_S


@pytest.mark.parametrize(("ticks_s", "words"), [
    ([], "it has never looked"), ([NOW_S - 3600.0], "it looked last 61 minutes ago"),
    ([NOW_S - FRESH_S - WAIT_S - 10.0], "it looked last 5 minutes ago")])
def test_one_that_is_not_armed_is_none(formation: Formation, ticks_s: list[float], words: str) -> None:
    formation.ticks_s = ticks_s
    reason = formation.ask()
    assert reason.startswith(f"the guard is not armed: {words}, ")
    assert "enable-rule" in reason


def test_one_that_is_too_old_is_none(formation: Formation) -> None:
    reason = formation.ask(version=VERSION + 1)
    assert reason.startswith(f"the guard is too old: it has version {VERSION}, and this experiment needs {VERSION + 1}")
    assert formation.ask(version=VERSION - 1) == "", "it guards what older checkouts deploy"


@pytest.mark.parametrize("problem", [RuntimeError("Nitro-one: KeyError"), RunError("the ledger cannot be read")])
def test_one_that_cannot_look_is_none(formation: Formation, problem: Exception) -> None:
    formation.problem = problem
    assert formation.ask() == str(problem)


def test_an_older_checkout_does_not_replace_a_newer_guard(formation: Formation) -> None:
    old = {"OldResourceProperties": {"Version": "3"}, "PhysicalResourceId": "known"}
    reason = formation.ask(VERSION_TYPE, "Update", 2, **old)
    assert reason.startswith("the stack NitroGuard has version 3, and this checkout has version 2: an older checkout ")
    assert [formation.ask(VERSION_TYPE, "Update", version, **old) for version in (3, 4)] == ["", ""]
    assert formation.ask(VERSION_TYPE, version=1) == ""
    assert formation.looks == 0


def test_a_deletion_is_never_held_up(formation: Formation) -> None:
    formation.problem, formation.ticks_s = RuntimeError("no"), []
    for kind in (CHECK_TYPE, VERSION_TYPE):
        assert formation.ask(kind, "Delete", 99, PhysicalResourceId="known") == ""
    assert formation.looks == 0
