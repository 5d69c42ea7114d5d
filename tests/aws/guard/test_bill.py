"""The final bill of a deployment: nothing for parts that never existed."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from runtime.aws.guard.bill import final_usd
from runtime.aws.guard.ledger import FINISHED, TRAINING, Entry
from runtime.aws.guard.stacks import GuardedStack

BEGAN_S = 1_700_000_000.0
GONE_S = BEGAN_S + 3600
DEPLOYED = GuardedStack(
    experiment="hopper",
    run="hopper/first",
    stack="stack/one",
    name="Nitro-hopper",
    status="ROLLBACK_COMPLETE",
    created_at_s=BEGAN_S,
    budget_usd=10.0,
    tail_usd=1.0,
    burn_usd_per_hour=1.11,
    floor_usd_per_hour=0.61,
    cache_usd_per_hour=0.1,
    provisioned_usd_per_hour=0.01,
    lifetime_s=36_000.0,
)
NOTICED = Entry(
    "hopper/first",
    stack="stack/one",
    covered_until_s=BEGAN_S,
    spent_usd=2.0,
    before_usd=2.0,
    seen_spent_usd=2.0,
)
GROUP, CACHE, ALIAS = (
    "AWS::AutoScaling::AutoScalingGroup",
    "AWS::ElastiCache::ServerlessCache",
    "AWS::Lambda::Alias",
)
ALL = {GROUP: {}, CACHE: {}, ALIAS: {}}
REFUSED = ClientError({"Error": {"Code": "Throttling", "Message": "no"}}, "it")


def at(at_s: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(at_s, datetime.UTC)


class Aws:
    """Answers the bill's two questions, and refuses one without an answer.

    Attributes:
        resources: By type, the differences from a resource that exists.
        launches: Time and status of each launch of an instance.
    """

    def __init__(
        self,
        resources: Mapping[str, Mapping[str, Any]] | None,
        launches: list[tuple[float, str]] | None,
    ):
        self.resources, self.launches = resources, launches
        self.asked: dict[str, Any] = {}

    def __call__(self, service: str, *, is_quick: bool = False) -> Any:
        return self

    def get_paginator(self, operation: str) -> Any:
        self.operation = operation
        return self

    def paginate(self, **arguments: Any) -> list[dict[str, Any]]:
        self.asked[self.operation] = arguments
        if self.operation == "list_stack_resources" and self.resources is not None:
            return [
                {
                    "StackResourceSummaries": [
                        {
                            "ResourceType": kind,
                            "PhysicalResourceId": "it",
                            "ResourceStatus": "CREATE_COMPLETE",
                            "LastUpdatedTimestamp": at(BEGAN_S),
                            **more,
                        }
                        for kind, more in self.resources.items()
                    ]
                }
            ]
        if self.operation == "list_executions" and self.launches is not None:
            return [
                {
                    "executions": [
                        {
                            "startDate": at(at_s),
                            "status": status,
                            **({} if status == "RUNNING" else {"stopDate": at(at_s + 600)}),
                        }
                        for at_s, status in self.launches
                    ]
                }
            ]
        if self.operation == "describe_scaling_activities" and self.launches is not None:
            return [
                {
                    "Activities": [
                        {"StartTime": at(at_s), "StatusCode": code} for at_s, code in self.launches
                    ]
                }
            ]
        raise REFUSED


def bill(
    resources: Mapping[str, Mapping[str, Any]] | None,
    launches: list[tuple[float, str]] | None,
    entry: Entry = NOTICED,
) -> float:
    """Returns the bill beyond the two dollars of earlier deployments."""
    aws = Aws(resources, launches and [(BEGAN_S + after_s, code) for after_s, code in launches])
    return final_usd(aws, DEPLOYED, entry, learner_gone_s=GONE_S, cache_gone_s=GONE_S + 60) - 2.0


def ended(after_s: float) -> dict[str, Any]:
    return {"ResourceStatus": "DELETE_COMPLETE", "LastUpdatedTimestamp": at(BEGAN_S + after_s)}


MACHINE = {"AWS::StepFunctions::StateMachine": {}}
LEARNER_USD = 1.11 - 0.1 - 0.01


@pytest.mark.parametrize(
    ("executions", "state", "expected_s"),
    [
        ([(60, "SUCCEEDED")], FINISHED, 600),
        ([(60, "FAILED")], FINISHED, 600),
        # Nothing ends a leg: it may continue for 15 minutes.
        ([(60, "ABORTED")], TRAINING, 600 + 900),
        ([(60, "RUNNING")], TRAINING, 3600 - 60 + 900),
        ([(60, "ABORTED")], FINISHED, 600),
        ([(60, "FAILED"), (900, "SUCCEEDED")], TRAINING, 900 + 600 - 60),
        ([], TRAINING, 0),
        (None, TRAINING, 3600 + 900),
    ],
)
def test_legs_cost_from_the_first_one_until_the_last_can_have_ended(
    executions: list[tuple[float, str]] | None, state: str, expected_s: float
) -> None:
    found = bill(MACHINE, executions, replace(NOTICED, state=state))
    assert found == pytest.approx(LEARNER_USD * expected_s / 3600)


CACHE_USD, WARM_USD = 0.1 * 3660 / 3600, 0.01 * 3900 / 3600


@pytest.mark.parametrize(
    ("resources", "launches", "expected"),
    [
        pytest.param({}, [], 0.0, id="nothing was made"),
        pytest.param(
            {GROUP: {"PhysicalResourceId": ""}, CACHE: {"PhysicalResourceId": ""}},
            [],
            0.0,
            id="none came about",
        ),
        pytest.param({CACHE: {}}, [], CACHE_USD, id="only a cache"),
        pytest.param({ALIAS: {}}, [], WARM_USD, id="only warm actors"),
        pytest.param({GROUP: {}}, [], 0.0, id="a group without a launch"),
        pytest.param({GROUP: {}}, [(60, "Failed"), (120, "Cancelled")], 0.0, id="no capacity"),
        pytest.param(
            {GROUP: {}},
            [(1800, "Successful"), (60, "Failed"), (2000, "Successful")],
            0.5,
            id="a late launch",
        ),
        pytest.param(
            {GROUP: {}}, [(1800, "WaitingForInstanceId")], 0.5, id="a launch that may come yet"
        ),
        pytest.param({GROUP: {}}, [(-5, "Successful")], 1.0, id="at once"),
        pytest.param(
            {GROUP: ended(1800), CACHE: ended(3600), ALIAS: ended(900)},
            [(900, "Successful")],
            0.25 + 0.1 + 0.01 * 1200 / 3600,
            id="taken back by CloudFormation",
        ),
        pytest.param(ALL, [(0, "Successful")], 1.0 + CACHE_USD + WARM_USD, id="everything"),
        pytest.param(ALL, None, 1.0 + CACHE_USD + WARM_USD, id="launches cannot be told"),
        pytest.param(None, [], 1.0 + CACHE_USD + WARM_USD, id="nothing can be told"),
    ],
)
def test_what_stood_counts_for_as_long_as_it_stood(
    resources: Mapping[str, Any] | None, launches: list[tuple[float, str]] | None, expected: float
) -> None:
    assert bill(resources, launches) == pytest.approx(expected)


def test_what_cannot_be_told_counts_from_when_the_guard_saw_it_missing() -> None:
    noted = replace(
        DEPLOYED,
        learner_from_s=BEGAN_S + 1800,
        cache_from_s=BEGAN_S + 360,
        provisioned_from_s=BEGAN_S + 300,
    )
    cost = {
        aws: final_usd(aws, noted, NOTICED, learner_gone_s=GONE_S, cache_gone_s=GONE_S) - 2.0
        for aws in (
            Aws(ALL, None),
            Aws({CACHE: {}}, []),
            Aws(ALL, [(BEGAN_S + 2700, "Successful")]),
        )
    }
    assert list(cost.values()) == pytest.approx([0.5 + 0.09 + 0.01, 0.09, 0.25 + 0.09 + 0.01])
    gone = replace(
        noted, learner_from_s=GONE_S + 1, cache_from_s=GONE_S + 1, provisioned_from_s=GONE_S + 1
    )
    assert final_usd(
        Aws(ALL, None), gone, NOTICED, learner_gone_s=GONE_S, cache_gone_s=GONE_S
    ) - 2.0 == (pytest.approx(0.01 * 300 / 3600))


def test_launches_of_other_deployments_of_that_name_are_not_asked_for() -> None:
    aws = Aws(ALL, [])
    final_usd(aws, DEPLOYED, NOTICED, learner_gone_s=GONE_S, cache_gone_s=GONE_S)
    assert aws.asked["describe_scaling_activities"] == {
        "AutoScalingGroupName": "it",
        "IncludeDeletedGroups": True,
        "Filters": [{"Name": "StartTimeLowerBound", "Values": ["2023-11-14T22:13:20+00:00"]}],
    }


def test_what_a_learner_has_counted_is_not_counted_again() -> None:
    covered = replace(
        NOTICED, state=TRAINING, spent_usd=2.7, reserved_usd=0.1, covered_until_s=GONE_S - 1800
    )
    rest_usd = 0.5 + 0.1 * 1860 / 3600 + 0.01 * 2100 / 3600
    assert bill(ALL, [(0, "Successful")], covered) == pytest.approx(0.8 + rest_usd)
    lied = replace(covered, spent_usd=0.0, reserved_usd=0.0, covered_until_s=GONE_S + 10**9)
    assert bill(ALL, [(0, "Successful")], lied) == pytest.approx(0.5 + CACHE_USD + WARM_USD)
