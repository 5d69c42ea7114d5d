"""Training metrics for the deployment's dashboard and alarms."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from runtime.aws.failures import AWS_ERRORS
from runtime.aws.learner.deployment import Deployment
from runtime.names import METRIC_NAMESPACE
from runtime.records.rows import RoundRow

SEND_INTERVAL_S = 60.0
METRICS = {
    "EpisodeReturn": "episode_return_mean",
    "EvaluationReturn": "evaluation_return_mean",
    "Actors": "actor_count",
    "ActorsFailed": "actors_failed",
    "ConvexityRatio": "convexity_ratio",
    "BoostingScore": "boosting_score",
    "SpentUsd": "spent_usd",
    "RoundReservedUsd": "round_reserved_usd",
    "EnvSteps": "env_steps",
    "RoundSeconds": "round_s",
}
"""Names in CloudWatch, and their keys in a round's row."""
_VALUES_MAX = 150


class Metrics:
    """Sends the rounds' figures once a minute, or after 150 rounds if that is sooner.

    Failures do not affect the run.
    """

    def __init__(
        self,
        client: Any,
        deployment: Deployment,
        report: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepares a run's metrics; sends nothing yet.

        Args:
            client: CloudWatch client.
            report: Called with the reason, the first time that metrics are lost.
            clock: Monotonic seconds.
        """
        self._client = client
        self._report = report
        self._clock = clock
        self._dimensions = [
            {"Name": "Experiment", "Value": deployment.experiment},
            {"Name": "Run", "Value": deployment.run},
        ]
        self._values: dict[str, list[float]] = {}
        self._sent_at_s = -SEND_INTERVAL_S
        self._has_reported = False

    def round_finished(self, row: RoundRow) -> None:
        columns = vars(row)
        for name, key in METRICS.items():
            if columns[key] is not None:
                self._values.setdefault(name, []).append(float(columns[key]))
        if self._clock() - self._sent_at_s >= SEND_INTERVAL_S or any(
            len(values) >= _VALUES_MAX for values in self._values.values()
        ):
            self.flush()

    def flush(self) -> None:
        """Sends the figures gathered since the last time."""
        if not self._values:
            return
        data = [
            {"MetricName": name, "Dimensions": self._dimensions, "Values": values}
            for name, values in self._values.items()
        ]
        self._values = {}
        self._sent_at_s = self._clock()
        try:
            self._client.put_metric_data(Namespace=METRIC_NAMESPACE, MetricData=data)
        except AWS_ERRORS as error:
            if not self._has_reported:
                self._report(str(error))
            self._has_reported = True
