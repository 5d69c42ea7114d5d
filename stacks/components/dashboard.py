"""The CloudWatch dashboard of a run, and its alarms."""

from __future__ import annotations

from aws_cdk import Aws, Duration
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_lambda as lambda_
from constructs import Construct

from runtime.names import METRIC_NAMESPACE
from runtime.sampling.failures import Patience
from stacks.plan import Plan

MINUTE = Duration.minutes(1)
SILENCE = Duration.minutes(5)
SILENT_PERIODS = 6
"""Half an hour without a round."""
SPENT_SHARE = 0.9
_WIDTH = 12


class Dashboard(Construct):
    """A page of graphs, and alarms. Their names contain the experiment and the run.

    Attributes:
        url: The dashboard's address.
    """

    def __init__(self, scope: Construct, construct_id: str, *, plan: Plan, function: lambda_.IFunction | None) -> None:
        super().__init__(scope, construct_id)
        self._plan = plan
        page = cloudwatch.Dashboard(self, "Page", dashboard_name=plan.stack_name)
        page.add_widgets(
            self._graph("Return", "EpisodeReturn", "EvaluationReturn"),
            self._graph("Actors", "Actors", "ActorsFailed", statistic="Maximum"),
            self._graph("Convexity ratio and boosting score", "ConvexityRatio", "BoostingScore"),
            self._money_graph(),
            self._graph("Seconds of a round", "RoundSeconds"),
            *([self._function_graph(function)] if function else []),
        )
        self.url = (f"https://{Aws.REGION}.console.aws.amazon.com/cloudwatch/home?region={Aws.REGION}"
                    f"#dashboards/dashboard/{plan.stack_name}")
        self._add_alarms(function)

    def _metric(self, name: str, statistic: str = "Average", period: Duration = MINUTE) -> cloudwatch.Metric:
        return cloudwatch.Metric(
            namespace=METRIC_NAMESPACE, metric_name=name, statistic=statistic, period=period,
            dimensions_map={"Experiment": self._plan.name, "Run": self._plan.run})

    def _graph(self, title: str, *names: str, statistic: str = "Average") -> cloudwatch.GraphWidget:
        return cloudwatch.GraphWidget(title=title, width=_WIDTH, left=[self._metric(name, statistic) for name in names])

    def _money_graph(self) -> cloudwatch.GraphWidget:
        return cloudwatch.GraphWidget(
            title="Dollars", width=_WIDTH,
            left=[self._metric(name, "Maximum") for name in ("SpentUsd", "RoundReservedUsd")],
            left_annotations=[cloudwatch.HorizontalAnnotation(value=self._plan.experiment.budget.usd, label="budget",
                                                              color=cloudwatch.Color.RED)])

    def _function_graph(self, function: lambda_.IFunction) -> cloudwatch.GraphWidget:
        return cloudwatch.GraphWidget(
            title="Actor function", width=_WIDTH,
            left=[function.metric_errors(period=MINUTE), function.metric_throttles(period=MINUTE),
                  function.metric("ProvisionedConcurrencySpilloverInvocations", statistic="Sum", period=MINUTE)],
            right=[function.metric("ConcurrentExecutions", statistic="Maximum", period=MINUTE)])

    def _add_alarms(self, function: lambda_.IFunction | None) -> None:
        experiment = self._plan.experiment
        if function is not None:
            self._alarm("Throttles", function.metric_throttles(period=MINUTE), 0,
                        "Actors were refused: the account's concurrency is too small, or others use it")
        failures = cloudwatch.MathExpression(
            expression="100 * failed / actors", label="failed actors, %", period=SILENCE,
            using_metrics={"failed": self._metric("ActorsFailed", "Sum", SILENCE),
                           "actors": self._metric("Actors", "Sum", SILENCE)})
        self._alarm("ActorFailures", failures, round(100 * (1 - Patience.quorum), 6),
                    "More actors fail than a round's quorum can bear")
        self._alarm("Spending", self._metric("SpentUsd", "Maximum"), SPENT_SHARE * experiment.budget.usd,
                    f"{SPENT_SHARE:.0%} of the budget is spent")
        self._alarm("BootFailures", self._metric("BootFailures", "Sum"), 0, "A learner did not come up")
        cloudwatch.Alarm(
            self, "Silence", metric=self._metric("RoundSeconds", "SampleCount", SILENCE), threshold=1,
            evaluation_periods=SILENT_PERIODS, comparison_operator=cloudwatch.ComparisonOperator.LESS_THAN_THRESHOLD,
            treat_missing_data=cloudwatch.TreatMissingData.BREACHING,
            alarm_description="No round was finished for half an hour: the run has ended, or hangs")

    def _alarm(self, name: str, metric: cloudwatch.IMetric, threshold: float, description: str) -> None:
        cloudwatch.Alarm(
            self, name, metric=metric, threshold=threshold, evaluation_periods=1,
            comparison_operator=cloudwatch.ComparisonOperator.GREATER_THAN_THRESHOLD,
            treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING, alarm_description=description)
