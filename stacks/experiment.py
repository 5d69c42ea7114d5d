"""One experiment: made by one command, and gone with one, but for its results."""

from __future__ import annotations

from aws_cdk import CfnOutput, Stack, Tags
from constructs import Construct

from runtime.cost.estimate import estimate
from stacks.components.actor_function import ActorFunction
from stacks.components.cache import make_cache
from stacks.components.dashboard import Dashboard
from stacks.components.learner import Learner
from stacks.network import NetworkStack
from stacks.plan import Plan
from stacks.results import ResultsStack


class ExperimentStack(Stack):
    """Actors, cache, learner and dashboard of one experiment. Nothing in it outlives it."""

    def __init__(
        self, scope: Construct, construct_id: str, *, plan: Plan, network: NetworkStack, results: ResultsStack
    ) -> None:
        super().__init__(scope, construct_id, description=f"Nitro: experiment {plan.name}, run {plan.run}")
        cache = make_cache(self, plan=plan, network=network, results_bucket=results.bucket)
        actor = ActorFunction(self, "Actor", plan=plan, network=network)
        cache.grant_connect(actor.role)
        learner = Learner(self, "Learner", plan=plan, network=network, results=results, actor=actor,
                          cache=cache)
        dashboard = Dashboard(self, "Dashboard", plan=plan, function=actor.function)
        for name, value in {
            "ResultsBucket": results.bucket.bucket_name,
            "ResultsPrefix": plan.prefix,
            "DashboardUrl": dashboard.url,
            "LearnerLogs": learner.log_group.log_group_name,
            "ActorLogs": actor.log_group.log_group_name,
            "LearnerImage": learner.image_id,
            "LearnerGroupName": learner.group_name,
            "ActorFunction": actor.alias.function_arn,
        }.items():
            CfnOutput(self, name, value=value)
        self._tag(plan)

    def _tag(self, plan: Plan) -> None:
        """Tags all that can be tagged, so that a bill can be told apart, and leftovers found."""
        budget = plan.experiment.budget
        for name, value in {
            "experiment": plan.name,
            "run": plan.run,
            "budget-usd": f"{budget.usd:g}",
            "lifetime-hours": f"{budget.lifetime_hours:g}",
            "burn-usd-per-hour": f"{estimate(plan.experiment).burn_usd_per_hour:.4f}",
        }.items():
            Tags.of(self).add(f"nitro:{name}", value)
