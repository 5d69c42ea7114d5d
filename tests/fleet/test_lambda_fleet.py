"""The Lambda fleet beyond the contract of tests/fleet/test_fleets.py."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.stub import Stubber

import runtime.fleet.aws_lambda
from runtime.errors import FleetError
from runtime.fleet.aws_lambda import LambdaFleet, available_concurrency, lambda_client, parse_report
from runtime.fleet.interfaces import Invocation
from runtime.money.work import Outcome
from tests.fleet.fleet_actors import GENEROUS_S, marks, outcomes_of
from tests.fleet.lambda_fleets import LambdaFleets, client
from tests.fleet_environments import DIRECTORY_VARIABLE
from tests.helpers import wait_for

SAMPLE = "tests.simulators.aws.sample_functions.handler"
ARN = "arn:aws:lambda:us-east-1:123456789012:function:actors:live"


@pytest.fixture
def fleets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LambdaFleets]:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    with LambdaFleets() as made:
        yield made


def run_sample(fleet: LambdaFleet, *events: dict[str, Any]) -> list[Outcome]:
    ids = [f"s{index}" for index in range(len(events))]
    fleet.start(list(map(Invocation, ids, events)))
    return outcomes_of(fleet, ids)


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "lambda-fleet"}


# Bills


def test_the_bill_is_lambdas_own(fleets: LambdaFleets, actors_of):
    actors = actors_of(fleets.make(1))
    (cold,) = actors.run("steady")
    warm, _ = actors.run("napping", "napping")
    assert fleets.throttles == 0, "no more run at once than were asked for"
    assert 0.0 < cold.init_s < cold.billed_s
    assert warm.init_s == 0.0
    # Napping takes no CPU time, but is billed here.
    assert warm.billed_s >= 0.3


REPORT = (
    "REPORT RequestId: r1\tDuration: 12.34 ms\tBilled Duration: {} ms\tMemory Size: 1024 MB\t"
    "Max Memory Used: 80 MB\t"
)


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (REPORT.format(163) + "Init Duration: 150 ms\t\n", (0.163, 0.15)),
        (REPORT.format(13) + "\nXRAY TraceId: 1-5 SegmentId: 7 Sampled: true\n", (0.013, 0.0)),
        # Output that an environment printed earlier.
        (REPORT.format(999_999) + "\nEND RequestId: r1\n" + REPORT.format(13), (0.013, 0.0)),
        (REPORT.format(13) + "\n" + REPORT.format(999_999).replace("r1", "r2"), (0.013, 0.0)),
        ("", None),
        (REPORT.format("many"), None),
        (REPORT.format(13).replace("r1", "r2"), None),
    ],
)
def test_report_lines(log: str, expected: tuple[float, float] | None):
    report = parse_report(log, "r1")
    assert (report and (report.billed_s, pytest.approx(report.init_s))) == expected


def answering(payload: bytes, **fields: Any) -> SimpleNamespace:
    """A client that always returns this answer."""

    def invoke(**_: Any) -> dict[str, Any]:
        return {
            "ResponseMetadata": {"RequestId": "r1"},
            "Payload": SimpleNamespace(read=lambda: payload),
            **fields,
        }

    return SimpleNamespace(invoke=invoke, close=lambda: None)


@pytest.mark.parametrize(
    ("payload", "is_error", "status", "error"),
    [
        ({"invocation_id": "s0", "status": "accepted"}, False, "ok", ""),
        ({"invocation_id": "other", "status": "accepted"}, False, "error", "what no actor does"),
        ({"errorType": "ValueError", "errorMessage": "a\nb"}, True, "error", "ValueError: a b"),
        ({"errorMessage": "Task timed out after 3.07 s"}, True, "timeout", "after 3.07"),
        ({"errorType": "Runtime.OutOfMemory", "errorMessage": "k"}, True, "crashed", "k"),
        ({"errorType": "A", "errorMessage": "Task timed out after 9 s"}, True, "error", "A: Task"),
    ],
)
def test_whatever_the_function_answers_is_an_outcome(
    payload: Any, is_error: bool, status: str, error: str
):
    fields = {"FunctionError": "Unhandled"} if is_error else {}
    made = answering(json.dumps(payload).encode(), **fields)
    fleet = LambdaFleet(ARN, timeout_s=9.0, concurrency=1, client=made)
    (outcome,) = run_sample(fleet, {})
    fleet.close()
    assert outcome.status == status
    assert error in outcome.error
    assert (outcome.billed_s, outcome.is_metered) == (9.0, False)
    assert (outcome.response is None) == (status != "ok")


# Failures of the service


def test_throttled_actors_are_tried_again_and_all_come_back_once(fleets: LambdaFleets, actors_of):
    fleet = fleets.make(6, reserved=2, name="actors")
    fleets.endpoint.fail_next("actors", "broken", "throttled", "broken")
    actors = actors_of(fleet)
    assert {outcome.status for outcome in actors.run(*["napping"] * 6)} == {"ok"}
    assert len(actors.trajectories()) == 6 and fleets.throttles > 0
    assert fleet.wait(0.0) == []


@pytest.mark.parametrize("fault", ["dropped", "gateway"])
def test_one_that_may_have_run_is_counted_in_full_and_not_tried_again(
    fleets: LambdaFleets, actors_of, fault: Any
):
    fleet = fleets.make(1, name="actors", timeout_s=50)
    actors = actors_of(fleet)
    fleets.endpoint.fail_next("actors", fault)
    (lost,) = actors.run("steady")
    assert lost.status == "crashed"
    assert "may have run" in lost.error
    assert (lost.billed_s, lost.is_metered, lost.was_started) == (50, False, True)
    # It did run once.
    assert list(actors.trajectories()) == [lost.invocation_id]
    assert actors.run("steady")[0].status == "ok"


def test_an_endpoint_that_cannot_be_reached_is_tried_again(fleets: LambdaFleets):
    before = threads()
    with LambdaFleets() as others:
        url = others.endpoint.url
    fleet = LambdaFleet(ARN, timeout_s=5, concurrency=2, client=client(url))
    fleet.start([Invocation("s0", {})])
    assert fleet.wait(0.5) == []
    fleet.abandon(["s0"])
    (outcome,) = outcomes_of(fleet, ["s0"])
    assert (outcome.status, outcome.was_started, outcome.billed_s) == ("abandoned", False, 0.0)
    wait_for(lambda: threads() <= before, "the end of the attempts")
    fleet.close()


def test_a_refusal_ends_the_run_in_words(fleets: LambdaFleets):
    fleet = fleets.make(1, name="actors", handler=SAMPLE)
    fleets.endpoint.fail_next("actors", "denied")
    fleet.start([Invocation("s0", {"do": "echo"}), Invocation("s1", {"do": "echo"})])
    for _ in range(2):
        with pytest.raises(FleetError, match="AWS Lambda refuses .*AccessDeniedException"):
            outcomes_of(fleet, ["s0", "s1"])


# Giving up, closing


def test_one_that_hangs_is_counted_in_full_and_its_late_answer_is_dropped(
    fleets: LambdaFleets, actors_of, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(runtime.fleet.aws_lambda, "ABANDON_GRACE_S", 0.1)
    fleet = fleets.make(2, name="actors")
    actors = actors_of(fleet)
    hanging = actors.start("hanging", "hanging_in_c")
    wait_for(lambda: marks("hanging") and marks("hanging_in_c"), "two hanging actors")
    actors.give_up(hanging)
    for outcome in outcomes_of(fleet, hanging):
        assert (outcome.status, outcome.was_started) == ("abandoned", True)
        assert (outcome.billed_s, outcome.is_metered) == (GENEROUS_S, False)
    # They occupy their slots until Lambda ends them, and never report an outcome.
    (waiting,) = actors.start("steady")
    assert fleet.wait(0.1) == []
    for process_id in fleets.endpoint.process_ids("actors"):
        os.kill(process_id, signal.SIGKILL)
    assert outcomes_of(fleet, [waiting])[0].status == "ok"
    assert fleet.wait(0.1) == []


def test_close_while_running_waits_for_nothing_and_leaves_no_thread(fleets: LambdaFleets):
    before = threads()
    fleet = fleets.make(3, name="actors", reserved=2, handler=SAMPLE)
    fleet.start([Invocation(f"s{index}", {"do": "sleep", "seconds": 9000}) for index in range(6)])
    wait_for(
        lambda: len(fleets.endpoint.process_ids("actors")) == 2 and fleets.throttles, "two that run"
    )
    started_s = time.monotonic()
    fleet.close()
    fleet.close()
    assert time.monotonic() - started_s < GENEROUS_S / 2
    assert fleet.wait(0.0) == []
    for process_id in fleets.endpoint.process_ids("actors"):
        os.kill(process_id, signal.SIGKILL)
    wait_for(lambda: threads() <= before, "the fleet's threads to end")


# Quotas and clients


def test_the_concurrency_is_the_reserve_or_what_the_account_has_left(fleets: LambdaFleets):
    for reserved, wanted, available in ((400, 1000, 400), (400, 7, 7), (None, 1000, 599)):
        assert available_concurrency(with_concurrency(reserved), ARN, wanted) == available
    with pytest.raises(FleetError, match="reserved for .*function:actors is 0"):
        available_concurrency(with_concurrency(0), ARN, 7)
    with pytest.raises(FleetError, match="ResourceNotFoundException"):
        available_concurrency(client(fleets.endpoint.url), ARN, 7)


def with_concurrency(reserved: int | None) -> Any:
    """Returns a client of an account that has 600 left, and reserves this for the function."""
    made = client("http://127.0.0.1:9")
    answers = Stubber(made)
    own = {} if reserved is None else {"ReservedConcurrentExecutions": reserved}
    left = {"AccountLimit": {"UnreservedConcurrentExecutions": 600}}
    answers.add_response("get_function_concurrency", own)
    answers.add_response("get_account_settings", left)
    answers.activate()
    return made


def test_a_client_waits_long_enough_and_never_repeats(monkeypatch: pytest.MonkeyPatch):
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    made = lambda_client(ARN.replace("us-east-1", "eu-west-3"), timeout_s=900, concurrency=1000)
    config = made.meta.config
    assert made.meta.region_name == "eu-west-3"
    assert config.read_timeout > 900 + 10
    assert config.retries["total_max_attempts"] == 1
    assert config.max_pool_connections == 1000
    assert config.tcp_keepalive
    made.close()
