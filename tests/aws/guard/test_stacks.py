"""Which deployments the guard ends, and its upper bound of a deployment's cost."""

from __future__ import annotations

import datetime
from dataclasses import replace
from typing import Any

import pytest

from runtime.aws.guard.stacks import (
    GuardedStack,
    read_deployment,
    silent_s,
    tags_of_limits,
)
from runtime.aws.ledger import FINISHED, STARTING, TRAINING, Entry
from runtime.times import LATE_S, MAKING_LIMIT_S, MISSING_S, STARTING_S

CREATED_S = 1_700_000_000.0
STACK = "arn:aws:cloudformation:us-east-1:1:stack/Nitro-hopper/one"
DEPLOYED = GuardedStack(
    run="hopper/first",
    stack=STACK,
    name="Nitro-hopper",
    status="CREATE_COMPLETE",
    created_at_s=CREATED_S,
    budget_usd=10.0,
    tail_usd=1.0,
    burn_usd_per_hour=3.6,
    floor_usd_per_hour=0.4,
    cache_usd_per_hour=0.1,
    provisioned_usd_per_hour=0.2,
    lifetime_s=36_000.0,
)
ENTRY = Entry(
    "hopper/first",
    stack=STACK,
    state=TRAINING,
    spent_usd=2.0,
    reserved_usd=1.0,
    burn_usd_per_hour=1.8,
    covered_until_s=CREATED_S + 1000,
    heartbeat_at_s=CREATED_S + 900,
    seen_heartbeat_s=CREATED_S + 900,
    seen_at_s=CREATED_S + 910,
)


def tags(**changes: str) -> list[dict[str, str]]:
    made = tags_of_limits(
        experiment="hopper",
        run="first",
        budget_usd=10.0,
        tail_usd=1.0,
        burn_usd_per_hour=3.6,
        floor_usd_per_hour=0.4,
        cache_usd_per_hour=0.1,
        provisioned_usd_per_hour=0.2,
        lifetime_hours=10.0,
    )
    made |= {f"nitro:{name.replace('_', '-')}": value for name, value in changes.items()}
    return [{"Key": key, "Value": value} for key, value in made.items() if value is not None]


def stack(status: str = "CREATE_COMPLETE", **changes: Any) -> dict[str, Any]:
    return {
        "StackName": "Nitro-hopper",
        "StackId": STACK,
        "StackStatus": status,
        "Tags": tags(**changes),
        "CreationTime": datetime.datetime.fromtimestamp(CREATED_S, datetime.UTC),
    }


# Content of the tags


def test_a_deployment_is_what_its_tags_say() -> None:
    assert read_deployment(stack()) == DEPLOYED


def test_other_stacks_and_those_without_resources_are_none() -> None:
    assert read_deployment(stack() | {"Tags": [{"Key": "team", "Value": "rl"}]}) is None
    assert read_deployment(stack() | {"StackName": "Copy"}) is None
    assert read_deployment(stack("REVIEW_IN_PROGRESS")) is None
    assert read_deployment(stack("DELETE_COMPLETE")).stack == STACK


@pytest.mark.parametrize(
    "status", ["CREATE_IN_PROGRESS", "ROLLBACK_FAILED", "ROLLBACK_COMPLETE", "DELETE_FAILED"]
)
def test_a_stack_in_any_other_state_is_one(status: str) -> None:
    assert read_deployment(stack(status)).status == status


@pytest.mark.parametrize("value", [None, "", "much", "nan", "inf", "-1", "1e308"])
@pytest.mark.parametrize("name", ["budget_usd", "tail_usd", "burn_usd_per_hour", "lifetime_hours"])
def test_one_that_does_not_say_its_limits_is_ended(name: str, value: str | None) -> None:
    deployed = read_deployment(stack(**{name: value}))
    reason = deployed.reason_to_end(ENTRY, CREATED_S)
    assert (
        reason
        == f"its possible cost is unknown: its tag nitro:{name.replace('_', '-')} is {value!r}"
    )


# Highest possible cost


def test_without_a_ledger_all_that_exists_is_counted_from_the_beginning() -> None:
    assert DEPLOYED.projected_usd(None, CREATED_S + 1800) == pytest.approx(1.8)
    assert DEPLOYED.projected_usd(None, CREATED_S - 100) == 0.0


def test_what_the_ledger_covers_is_not_counted_twice_and_what_it_does_not_at_the_burn_rate() -> (
    None
):
    assert DEPLOYED.projected_usd(ENTRY, CREATED_S + 1000) == pytest.approx(3.0)
    assert DEPLOYED.projected_usd(ENTRY, CREATED_S + 500) == pytest.approx(3.0)
    # The tag's rate is the higher one here. The entry's may belong to an instance that is gone.
    assert DEPLOYED.projected_usd(ENTRY, CREATED_S + 1000 + 7200) == pytest.approx(3.0 + 7.2)
    dearer = replace(ENTRY, burn_usd_per_hour=7.2)
    assert DEPLOYED.projected_usd(dearer, CREATED_S + 1000 + 7200) == pytest.approx(3.0 + 14.4)


def test_earlier_deployments_count_and_the_time_between_them_does_not() -> None:
    earlier = replace(ENTRY, stack="arn:another", covered_until_s=CREATED_S - 500_000)
    assert DEPLOYED.projected_usd(earlier, CREATED_S + 1800) == pytest.approx(3.0 + 1.8)
    late = replace(earlier, covered_until_s=CREATED_S + 900)
    assert DEPLOYED.projected_usd(late, CREATED_S + 1800) == pytest.approx(3.0 + 1.8)
    taken_over = replace(earlier, stack=STACK, burn_usd_per_hour=0.0)
    assert DEPLOYED.projected_usd(taken_over, CREATED_S + 1800) == pytest.approx(3.0 + 1.8)


def test_a_start_whose_first_phase_does_not_end_is_ended_and_the_phase_named() -> None:
    slow = replace(
        DEPLOYED,
        status="CREATE_IN_PROGRESS",
        from_s={"learner": DEPLOYED.created_at_s + MAKING_LIMIT_S},
    )
    assert slow.reason_to_end(None, CREATED_S) == ""
    late = replace(slow, from_s={"learner": slow.from_s["learner"] + 1.0})
    assert late.reason_to_end(None, CREATED_S).startswith(
        "the first phase of its start, all but the learner, was not over after 20 "
    )
    assert replace(late, status="CREATE_COMPLETE").reason_to_end(None, CREATED_S) == ""


@pytest.mark.parametrize(
    "lie",
    [
        {"covered_until_s": CREATED_S + 10**9},
        {"spent_usd": 0.0},
        {"spent_usd": 0.0, "covered_until_s": CREATED_S + 10**9},
        {"burn_usd_per_hour": 0.0, "reserved_usd": 0.0, "covered_until_s": CREATED_S + 10**9},
    ],
)
def test_a_learner_that_lies_is_not_believed_below_what_the_guard_knows(
    lie: dict[str, float],
) -> None:
    lied = replace(ENTRY, before_usd=1.0, **lie)
    # 1 dollar before, and 20 hours at the lowest price of all resources.
    assert DEPLOYED.projected_usd(lied, CREATED_S + 72_000) >= 1.0 + 20 * 0.4
    assert (
        replace(DEPLOYED, lifetime_s=10**9)
        .reason_to_end(replace(lied, seen_at_s=CREATED_S + 72_000), CREATED_S + 73_000)
        .startswith("its budget is used up")
    )


# Reasons to end


def test_one_that_works_goes_on() -> None:
    assert DEPLOYED.reason_to_end(ENTRY, CREATED_S + 920) == ""


def test_the_budget_is_over_when_only_the_tail_is_left() -> None:
    # 6 of the 9 dollars are left at 1000 s, at 3.6 an hour.
    over_s = CREATED_S + 1000 + 6000
    beating = replace(ENTRY, heartbeat_at_s=over_s, seen_heartbeat_s=over_s, seen_at_s=over_s)
    assert DEPLOYED.reason_to_end(beating, over_s - 1) == ""
    assert DEPLOYED.reason_to_end(beating, over_s + 1).startswith(
        "its budget is used up: it can have cost $9.0010, and $1.0000 of $10.0000 are kept"
    )


def test_one_that_has_finished_is_ended_with_its_reason_and_one_of_an_earlier_deployment_is_not() -> (
    None
):
    finished = replace(ENTRY, state=FINISHED, reason="target_return")
    assert DEPLOYED.reason_to_end(finished, CREATED_S + 920) == "it has finished: target_return"
    assert DEPLOYED.reason_to_end(replace(finished, stack="arn:another"), CREATED_S + 920) == ""


def test_a_lifetime_ends() -> None:
    beating = replace(ENTRY, covered_until_s=CREATED_S + 40_000, seen_at_s=CREATED_S + 36_000)
    assert DEPLOYED.reason_to_end(beating, CREATED_S + 36_000) == ""
    assert DEPLOYED.reason_to_end(beating, CREATED_S + 36_001) == "its lifetime of 10 hours is over"


def test_one_that_was_never_heard_of() -> None:
    for entry in (
        None,
        replace(ENTRY, stack="arn:another", spent_usd=0.0, reserved_usd=0.0),
        Entry("hopper/first"),
    ):
        assert DEPLOYED.reason_to_end(entry, CREATED_S + MISSING_S) == ""
        assert DEPLOYED.reason_to_end(entry, CREATED_S + MISSING_S + 1) == (
            "its learner or pool never reported, in 45 minutes"
        )


@pytest.mark.parametrize(
    ("state", "limit_s", "text"),
    [
        (TRAINING, LATE_S, "its learner or pool (training) has not reported for 10 minutes"),
        (STARTING, STARTING_S, "its learner or pool (starting) has not reported for 25 minutes"),
    ],
)
def test_one_that_has_become_silent(state: str, limit_s: float, text: str) -> None:
    entry = replace(ENTRY, state=state)
    assert DEPLOYED.reason_to_end(entry, entry.seen_at_s + limit_s) == ""
    assert DEPLOYED.reason_to_end(entry, entry.seen_at_s + limit_s + 1) == text
    # A heartbeat that the guard has not seen yet is a sign of life, whatever the learner's clock says.
    for at_s in (0.5, CREATED_S + 10**9):
        assert (
            DEPLOYED.reason_to_end(
                replace(entry, heartbeat_at_s=at_s), entry.seen_at_s + limit_s + 1
            )
            == ""
        )


def test_silence_is_counted_by_the_guards_clock() -> None:
    assert silent_s(ENTRY, CREATED_S + 1000) == 90.0
    assert silent_s(replace(ENTRY, heartbeat_at_s=CREATED_S + 901), CREATED_S + 1000) == 0.0
