"""A Ray cluster as a backend: actors are its tasks, the loop runs on one node, and all nodes cost by the clock."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

from runtime.errors import ExperimentError, MissingExtraError
from runtime.experiment.resolved import ResolvedExperiment
from runtime.fleet.opening import Opening
from runtime.fleet.ray_cluster import node_count
from runtime.fleet.settings import RaySettings
from runtime.money.budget import Budget
from runtime.money.meter import BillingClock, Meter, steady_clock
from runtime.money.prices import PRICES
from runtime.training.backends.this_machine import open_here, open_learner
from runtime.training.costs import make_cost_model
from runtime.training.opening import Backend, Resources


class RayBackend(Backend):
    """A Ray cluster as a place for runs, billed by the hours that it is used.

    Attributes:
        prices: Prices of its nodes.
    """

    is_billed = True

    def __init__(self, experiment: ResolvedExperiment) -> None:
        """Checks whether the experiment can run there; starts nothing.

        Args:
            experiment: Resolved.

        Raises:
            ExperimentError: The nodes could not reach the cache, or the learner is a function.
            MissingExtraError: Ray is not installed.
        """
        if importlib.util.find_spec("ray") is None:
            raise MissingExtraError("fleet.kind = 'ray'", "Ray", "ray")
        ray, cache, learner = as_ray_cluster(experiment), experiment.cache, experiment.learner
        if (
            ray.address is not None
            and cache.kind != "none"
            and (cache.url or "unix://").startswith("unix://")
        ):
            raise ExperimentError(
                f"cache.url = {cache.url or 'null'}: the nodes of fleet.address = {ray.address} reach no server "
                "on a socket of this machine; allowed: a redis:// or rediss:// URL that all of them reach, or "
                "cache.kind = none"
            )
        if not learner.has_instance and learner.kind != "stellaris":
            raise ExperimentError(
                f"learner.kind = {learner.kind}: a bill of Lambda's; allowed with fleet.kind = ray: "
                "instance | stellaris"
            )

        self.prices = PRICES
        if ray.node_usd_per_hour is not None:
            self.prices = PRICES.model_copy(
                update={
                    "region": "your own",
                    "source": "fleet.node_usd_per_hour",
                    "instance_hour_usd": dict.fromkeys(
                        learner.instance_types, ray.node_usd_per_hour
                    ),
                }
            )

    def open(self, opening: Opening) -> Resources:
        """Joins or starts a cluster, which is billed from then on.

        Raises:
            ServerError: The cache does not answer.
            FleetError: The cluster does not answer, or has no room for a single actor.
        """
        experiment, now = opening.experiment, steady_clock()
        joined_s = now()

        def make_meter(concurrency: int) -> Meter:
            model = make_cost_model(
                experiment, opening.spaces, self.prices, nodes=node_count(), concurrency=concurrency
            )
            clock = BillingClock(joined_s, now=now)
            return Meter(model, Budget(experiment.budget.usd), clock=clock)

        opened = open_here(opening, make_meter)
        at_once, nodes = opened.fleet.concurrency, node_count()
        return replace(
            opened,
            facts={
                **opened.facts,
                "cluster": f"{as_ray_cluster(experiment).address or 'started here'}: {nodes} "
                f"{'node' if nodes == 1 else 'nodes'}, {at_once} actors at once",
                "bill": f"the hours of the nodes, ${opened.meter.burn_usd_per_hour:.4f} an hour together",
            },
            learner=open_learner(opening) if experiment.learner.kind == "stellaris" else None,
        )


def as_ray_cluster(experiment: ResolvedExperiment) -> RaySettings:
    """Returns the settings of a fleet that is known to be a cluster."""
    assert isinstance(experiment.fleet, RaySettings), f"{experiment.fleet.kind} is no cluster"
    return experiment.fleet
