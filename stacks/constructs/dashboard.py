"""The CloudWatch dashboard of a run, and its alarms."""

from __future__ import annotations

from aws_cdk import Aws, Duration
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as cloudwatch_actions
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_sns as sns
from constructs import Construct

from runtime.fleet.failures import Patience
from runtime.names import METRIC_NAMESPACE
from stacks.plan import Plan

MINUTE = Duration.minutes(1)
FAILING = Duration.minutes(5)
SPENT_SHARE = 0.9
_WIDTH = 12


class Dashboard(Construct):
    """A page of graphs, and alarms that notify the subscribers of the guard's reports.

    An alarm is for what somebody should act on while the run goes on. The guard itself reports a run that is silent.

    Attributes:
        url: The dashboard's address.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        plan: Plan,
        reports: sns.ITopic,
        function: lambda_.IFunction | None,
    ) -> None:
        super().__init__(scope, construct_id)
        self._plan, self._action = plan, cloudwatch_actions.SnsAction(reports)
        page = cloudwatch.Dashboard(self, "Page", dashboard_name=plan.stack_name)
        page.add_widgets(
            self._graph("Return", "EpisodeReturn", "EvaluationReturn"),
            self._graph("Actors", "Actors", "ActorsFailed", statistic="Maximum"),
            self._graph("Convexity ratio and boosting score", "ConvexityRatio", "BoostingScore"),
            self._money_graph(),
            self._graph("Seconds of a round", "RoundSeconds"),
            *([self._function_graph(function)] if function else []),
        )
        self.url = (
            f"https://{Aws.REGION}.console.aws.amazon.com/cloudwatch/home?region={Aws.REGION}"
            f"#dashboards/dashboard/{plan.stack_name}"
        )
        self._add_alarms()

    def _metric(
        self, name: str, statistic: str = "Average", period: Duration = MINUTE
    ) -> cloudwatch.Metric:
        return cloudwatch.Metric(
            namespace=METRIC_NAMESPACE,
            metric_name=name,
            statistic=statistic,
            period=period,
            dimensions_map={"Experiment": self._plan.name, "Run": self._plan.run},
        )

    def _graph(self, title: str, *names: str, statistic: str = "Average") -> cloudwatch.GraphWidget:
        return cloudwatch.GraphWidget(
            title=title, width=_WIDTH, left=[self._metric(name, statistic) for name in names]
        )

    def _money_graph(self) -> cloudwatch.GraphWidget:
        return cloudwatch.GraphWidget(
            title="Dollars",
            width=_WIDTH,
            left=[self._metric(name, "Maximum") for name in ("SpentUsd", "RoundReservedUsd")],
            left_annotations=[
                cloudwatch.HorizontalAnnotation(
                    value=self._plan.experiment.budget.usd,
                    label="budget",
                    color=cloudwatch.Color.RED,
                )
            ],
        )

    def _function_graph(self, function: lambda_.IFunction) -> cloudwatch.GraphWidget:
        return cloudwatch.GraphWidget(
            title="Actor function",
            width=_WIDTH,
            left=[
                function.metric_errors(period=MINUTE),
                function.metric_throttles(period=MINUTE),
                function.metric(
                    "ProvisionedConcurrencySpilloverInvocations", statistic="Sum", period=MINUTE
                ),
            ],
            right=[function.metric("ConcurrentExecutions", statistic="Maximum", period=MINUTE)],
        )

    def _add_alarms(self) -> None:
        failures = cloudwatch.MathExpression(
            expression="100 * failed / actors",
            label="failed actors, %",
            period=FAILING,
            using_metrics={
                "failed": self._metric("ActorsFailed", "Sum", FAILING),
                "actors": self._metric("Actors", "Sum", FAILING),
            },
        )
        self._alarm(
            "ActorFailures",
            failures,
            round(100 * (1 - Patience.quorum), 6),
            "More actors fail than a round's quorum can bear",
        )
        self._alarm(
            "Spending",
            self._metric("SpentUsd", "Maximum"),
            SPENT_SHARE * self._plan.experiment.budget.usd,
            f"{SPENT_SHARE:.0%} of the budget is spent",
        )
        if self._plan.has_instance:
            self._alarm(
                "BootFailures", self._metric("BootFailures", "Sum"), 0, "A learner did not come up"
            )

    def _alarm(
        self, name: str, metric: cloudwatch.IMetric, threshold: float, description: str
    ) -> None:
        cloudwatch.Alarm(
            self,
            name,
            metric=metric,
            threshold=threshold,
            evaluation_periods=1,
            comparison_operator=cloudwatch.ComparisonOperator.GREATER_THAN_THRESHOLD,
            treat_missing_data=cloudwatch.TreatMissingData.NOT_BREACHING,
            alarm_description=description,
        ).add_alarm_action(self._action)
