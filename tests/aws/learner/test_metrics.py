"""The dashboard's metrics cover all rounds, are sent rarely, and never delay or fail the run."""

from __future__ import annotations

from typing import Any

import botocore.exceptions
import pytest

from runtime.aws.learner.deployment import Deployment
from runtime.aws.learner.metrics import SEND_INTERVAL_S, Metrics
from runtime.records.rows import RoundRow
from tests.fakes import ManualClock
from tests.records.rows import a_row

DEPLOYMENT = Deployment(
    **{name: name for name in Deployment.__dataclass_fields__}
    | {"experiment": "hopper", "run": "abc"}
)
ROW = dict(
    episode_return_mean=None,
    evaluation_return_mean=None,
    actor_count=8,
    actors_failed=0,
    convexity_ratio=None,
    boosting_score=None,
    spent_usd=0.5,
    round_reserved_usd=0.25,
    env_steps=2048,
    round_s=1.5,
)


def row(**values: Any) -> RoundRow:
    return a_row(1, **ROW | values)


class CloudWatch:
    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.error: Exception | None = None

    def put_metric_data(self, **arguments: Any) -> None:
        self.calls.append(arguments)
        if self.error:
            raise self.error

    def values(self, name: str) -> list[list[float]]:
        return [
            one["Values"]
            for call in self.calls
            for one in call["MetricData"]
            if one["MetricName"] == name
        ]


@pytest.fixture
def cloudwatch() -> CloudWatch:
    return CloudWatch()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(0.0)


@pytest.fixture
def reports() -> list[str]:
    return []


@pytest.fixture
def metrics(cloudwatch: CloudWatch, clock: ManualClock, reports: list[str]) -> Metrics:
    return Metrics(cloudwatch, DEPLOYMENT, reports.append, clock)


def test_the_first_round_is_sent_at_once(metrics: Metrics, cloudwatch: CloudWatch):
    metrics.round_finished(row(episode_return_mean=-3, boosting_score=0.75))
    dimensions = [{"Name": "Experiment", "Value": "hopper"}, {"Name": "Run", "Value": "abc"}]
    (call,) = cloudwatch.calls
    assert call["Namespace"] == "Nitro"
    assert all(one["Dimensions"] == dimensions for one in call["MetricData"])
    assert {one["MetricName"]: one["Values"] for one in call["MetricData"]} == {
        "EpisodeReturn": [-3.0],
        "Actors": [8.0],
        "ActorsFailed": [0.0],
        "BoostingScore": [0.75],
        "SpentUsd": [0.5],
        "RoundReservedUsd": [0.25],
        "EnvSteps": [2048.0],
        "RoundSeconds": [1.5],
    }


def test_one_call_a_minute_with_all_rounds_since(
    metrics: Metrics, cloudwatch: CloudWatch, clock: ManualClock
):
    for second in range(0, 241, 10):
        clock.now_s = float(second)
        evaluation = second if second % 50 == 0 else None
        metrics.round_finished(row(spent_usd=second, evaluation_return_mean=evaluation))
    assert len(cloudwatch.calls) == 1 + 240 / SEND_INTERVAL_S
    assert cloudwatch.values("SpentUsd") == [
        [0.0],
        *([float(s) for s in range(end - 50, end + 1, 10)] for end in (60, 120, 180, 240)),
    ]
    assert cloudwatch.values("EvaluationReturn") == [[0.0], [50.0], [100.0], [150.0], [200.0]]
    metrics.flush()
    assert len(cloudwatch.calls) == 5


def test_what_is_left_is_sent_at_the_end(metrics: Metrics, cloudwatch: CloudWatch):
    metrics.round_finished(row())
    metrics.round_finished(row(spent_usd=0.75))
    assert len(cloudwatch.calls) == 1
    metrics.flush()
    metrics.flush()
    assert cloudwatch.values("SpentUsd") == [[0.5], [0.75]]


def test_no_call_has_more_values_than_cloudwatch_takes(metrics: Metrics, cloudwatch: CloudWatch):
    for index in range(1 + 400):
        metrics.round_finished(row(spent_usd=index))
    metrics.flush()
    assert [len(values) for values in cloudwatch.values("SpentUsd")] == [1, 150, 150, 100]
    assert sum(cloudwatch.values("SpentUsd"), []) == [float(index) for index in range(401)]


@pytest.mark.parametrize(
    "error",
    [
        botocore.exceptions.ClientError(
            {"Error": {"Code": "Throttling", "Message": "slow down"}}, "PutMetricData"
        ),
        botocore.exceptions.EndpointConnectionError(endpoint_url="https://monitoring"),
    ],
    ids=["refused", "no connection"],
)
def test_failures_are_told_once_and_stop_nothing(
    metrics: Metrics,
    cloudwatch: CloudWatch,
    clock: ManualClock,
    reports: list[str],
    error: Exception,
):
    cloudwatch.error = error
    for _ in range(3):
        metrics.round_finished(row())
        clock.advance(SEND_INTERVAL_S)
    assert reports == [str(error)]
    cloudwatch.error = None
    metrics.round_finished(row())
    assert [len(call["MetricData"][0]["Values"]) for call in cloudwatch.calls] == [1, 1, 1, 1]


def test_a_defect_is_not_taken_for_a_failure_of_aws(metrics: Metrics, cloudwatch: CloudWatch):
    cloudwatch.error = TypeError("ours")
    with pytest.raises(TypeError):
        metrics.round_finished(row())
