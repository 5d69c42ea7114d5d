"""The stack of one experiment: one command creates it, and one deletes all of it but its results."""

from __future__ import annotations

from dataclasses import replace

from aws_cdk import CfnOutput, Stack, Tags
from constructs import Construct

from runtime.aws.guard.stacks import tags_of_limits
from stacks.constructs.actor_function import ActorFunction
from stacks.constructs.cache import CacheConstruct
from stacks.constructs.coordinator import Coordinator
from stacks.constructs.learner import LearnerInstance
from stacks.constructs.pool import Pool
from stacks.guard import GuardStack
from stacks.network import NetworkStack
from stacks.plan import Plan
from stacks.results import ResultsStack


class ExperimentStack(Stack):
    """Actors, cache and learner of one experiment. Its resources are deleted with it.

    With ``fleet.kind: local`` actors are processes of the learner, so there is no function and no cache. With
    ``learner.kind: function`` there is no instance: everything is a function. With ``learner.kind: external`` there are
    only actors, and the role of the pool that samples with them.
    """

    def __init__(
        self,
        scope: Construct,
        construct_id: str,
        *,
        plan: Plan,
        network: NetworkStack,
        results: ResultsStack,
        guard: GuardStack,
        disk_key: str | None = None,
    ) -> None:
        description = f"Nitro: experiment {plan.name}, run {plan.run}"
        super().__init__(scope, construct_id, description=description)
        cache = actor = None
        if plan.experiment.has_elasticache:
            cache = CacheConstruct(self, plan=plan, network=network)
        if plan.has_function:
            actor = ActorFunction(self, "Actor", plan=plan, network=network, cache=cache)
        if plan.has_instance:
            LearnerInstance(
                self,
                "Learner",
                plan=plan,
                network=network,
                results=results,
                guard=guard,
                actor=actor,
                cache=cache,
                disk_key=disk_key,
            )
        elif plan.is_external:
            assert actor is not None, "the plan was checked"
            pool = Pool(self, "Pool", plan=plan, guard=guard, actor=actor)
            for name, value in pool.outputs.items():
                CfnOutput(self, name, value=value)
        else:
            assert actor is not None, "the plan was checked"
            coordinator = Coordinator(
                self, "Learner", plan=plan, results=results, guard=guard, actor=actor
            )
            guard.add_start(self, coordinator.machine, plan.run)
        guard.add_check(
            self,
            replace(plan.needs, disk_key=disk_key or ""),
            lifetime_s=plan.lifetime_hours * 3600,
        )
        # The guard finds the stack by these tags. They identify the experiment on the bill, and its leftovers.
        for name, value in _tags(plan).items():
            Tags.of(self).add(name, value)


def _tags(plan: Plan) -> dict[str, str]:
    expected, budget = plan.estimate, plan.experiment.budget
    return tags_of_limits(
        experiment=plan.name,
        run=plan.run,
        budget_usd=budget.usd,
        tail_usd=expected.tail_usd,
        burn_usd_per_hour=expected.burn_usd_per_hour,
        floor_usd_per_hour=expected.floor_usd_per_hour,
        cache_usd_per_hour=expected.cache_usd_per_hour,
        provisioned_usd_per_hour=expected.provisioned_usd_per_hour,
        lifetime_hours=budget.lifetime_hours,
    )
