"""The CloudWatch dashboard of all experiments, on which one is chosen."""

from __future__ import annotations

from aws_cdk import Duration
from aws_cdk import aws_cloudwatch as cloudwatch
from constructs import Construct

from runtime.names import METRIC_NAMESPACE, OURS

_WIDTH = 12


class Dashboard(Construct):
    """A page of graphs. Each variable is a dimension of the runs' metrics: an experiment, and one of its runs."""

    def __init__(self, scope: Construct, construct_id: str) -> None:
        super().__init__(scope, construct_id)
        page = cloudwatch.Dashboard(
            self,
            "Page",
            dashboard_name=OURS,
            variables=[_variable("Experiment"), _variable("Run")],
        )
        page.add_widgets(
            _graph("Return", "EpisodeReturn", "EvaluationReturn"),
            _graph("Actors", "Actors", "ActorsFailed", statistic="Maximum"),
            _graph("Convexity ratio and boosting score", "ConvexityRatio", "BoostingScore"),
            _graph("Dollars", "SpentUsd", "RoundReservedUsd", statistic="Maximum"),
            _graph("Seconds of a round", "RoundSeconds"),
        )


def _variable(dimension: str) -> cloudwatch.DashboardVariable:
    return cloudwatch.DashboardVariable(
        id=dimension.lower(),
        label=dimension,
        type=cloudwatch.VariableType.PROPERTY,
        input_type=cloudwatch.VariableInputType.SELECT,
        value=dimension,
        visible=True,
        default_value=cloudwatch.DefaultValue.FIRST,
        values=cloudwatch.Values.from_search_components(
            namespace=METRIC_NAMESPACE,
            dimensions=["Experiment", "Run"],
            metric_name="SpentUsd",
            populate_from=dimension,
        ),
    )


def _graph(title: str, *names: str, statistic: str = "Average") -> cloudwatch.GraphWidget:
    return cloudwatch.GraphWidget(
        title=title,
        width=_WIDTH,
        left=[
            cloudwatch.Metric(
                namespace=METRIC_NAMESPACE,
                metric_name=name,
                statistic=statistic,
                period=Duration.minutes(1),
                # The page's variables replace the values.
                dimensions_map={"Experiment": "-", "Run": "-"},
            )
            for name in names
        ],
    )
