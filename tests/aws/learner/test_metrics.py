"""The dashboard's metrics cover all rounds, are sent rarely, and never delay or fail the run."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from runtime.aws.learner.deployment import Deployment
from runtime.aws.learner.metrics import SEND_INTERVAL_S, Metrics
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


class World:
    """A run whose rounds are sent to CloudWatch."""

    def __init__(self) -> None:
        self.cloudwatch, self.clock, self.reports = CloudWatch(), ManualClock(0.0), list[str]()
        self.metrics = Metrics(self.cloudwatch, DEPLOYMENT, self.reports.append, self.clock)

    def round(self, at_s: float, **values: Any) -> None:
        self.clock.now_s = at_s
        self.metrics.round_finished(a_row(1, **ROW | values))


def test_the_first_round_is_sent_at_once_and_all_others_once_a_minute() -> None:
    world = World()
    for second in range(0, 241, 10):
        evaluation = second if second % 50 == 0 else None
        world.round(second, spent_usd=second, evaluation_return_mean=evaluation)
    assert world.cloudwatch.values("SpentUsd") == [
        [0.0],
        *([float(s) for s in range(end - 50, end + 1, 10)] for end in (60, 120, 180, 240)),
    ]
    assert world.cloudwatch.values("EvaluationReturn") == [[0.0], [50.0], [100.0], [150.0], [200.0]]
    dimensions = [{"Name": "Experiment", "Value": "hopper"}, {"Name": "Run", "Value": "abc"}]
    call = world.cloudwatch.calls[0]
    assert call["Namespace"] == "Nitro"
    assert all(one["Dimensions"] == dimensions for one in call["MetricData"])
    assert {one["MetricName"]: one["Values"] for one in call["MetricData"]} == {
        "EvaluationReturn": [0.0],
        "Actors": [8.0],
        "ActorsFailed": [0.0],
        "SpentUsd": [0.0],
        "RoundReservedUsd": [0.25],
        "EnvSteps": [2048.0],
        "RoundSeconds": [1.5],
    }
    world.round(241.0)
    for _ in range(2):
        world.metrics.flush()
    assert len(world.cloudwatch.calls) == 2 + 240 / SEND_INTERVAL_S, "the rest, once"


def test_no_call_has_more_values_than_cloudwatch_takes() -> None:
    world = World()
    for index in range(1 + 400):
        world.round(0.0, spent_usd=index)
    world.metrics.flush()
    assert [len(values) for values in world.cloudwatch.values("SpentUsd")] == [1, 150, 150, 100]
    assert sum(world.cloudwatch.values("SpentUsd"), []) == [float(index) for index in range(401)]


def test_failures_are_told_once_and_stop_nothing() -> None:
    world = World()
    world.cloudwatch.error = ClientError({"Error": {"Code": "Throttling"}}, "PutMetricData")
    for index in range(3):
        world.round(index * SEND_INTERVAL_S)
    assert world.reports == [str(world.cloudwatch.error)]
    world.cloudwatch.error = TypeError("ours is not taken for one of AWS")
    with pytest.raises(TypeError):
        world.round(3 * SEND_INTERVAL_S)
    assert [len(call["MetricData"][0]["Values"]) for call in world.cloudwatch.calls] == [1] * 4
