"""A Ray cluster as a backend: actors are its tasks, the loop runs on one of its nodes, all paid by the clock."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

from runtime.backends.this_machine import NotKept, actors_here
from runtime.config.resolved import ResolvedExperiment
from runtime.cost.budget import Budget
from runtime.cost.meter import WallClockMeter, steady_clock
from runtime.cost.prices import PRICES, PriceTable
from runtime.errors import ExperimentError
from runtime.fleet.ray_cluster import REQUIREMENTS, node_count
from runtime.interfaces import RunContext, Supplies
from runtime.records.run_directory import RunDirectory
from runtime.training.costs import make_cost_model


class RayBackend:
    """Supplies runs on a Ray cluster.

    Attributes:
        cost_basis: Hours are those that the cluster stood.
        prices: Those of its nodes.
    """

    cost_basis = "metered"

    def __init__(self, experiment: ResolvedExperiment, prices: PriceTable = PRICES) -> None:
        """Looks whether the experiment may run there; starts nothing.

        Args:
            experiment: Resolved.
            prices: List prices, for what the experiment leaves open.

        Raises:
            ExperimentError: Ray is not installed, the nodes would not reach the cache, or the learner is a function.
        """
        if importlib.util.find_spec("ray") is None:
            raise ExperimentError(
                f"fleet.kind = 'ray' needs Ray, which is not installed: pip install -r {REQUIREMENTS}")
        ray, cache, learner = experiment.fleet.ray, experiment.cache, experiment.learner
        if ray.address is not None and cache.kind != "none" and (cache.url or "unix://").startswith("unix://"):
            raise ExperimentError(
                f"cache.url = {cache.url or 'null'}: the nodes of fleet.ray.address = {ray.address} reach no server "
                "on a socket of this machine; allowed: a redis:// or rediss:// URL that all of them reach, or "
                "cache.kind = none")
        if not learner.has_instance:
            raise ExperimentError(f"learner.kind = {learner.kind}: on a Ray cluster the policy is trained where the "
                                  "loop runs; allowed with fleet.kind = ray: instance")

        self.prices = prices
        if ray.node_usd_per_hour is not None:
            self.prices = replace(prices, region="your own", source="fleet.ray.node_usd_per_hour",
                                  instance_hour_usd=dict.fromkeys(learner.instance_types, ray.node_usd_per_hour))

    def fetch(self, directory: RunDirectory) -> None:
        """Does nothing: the directory is all that there is of the run."""

    def supply(self, run: RunContext) -> Supplies:
        """Joins the cluster, or starts one, which is paid for from then on.

        Raises:
            ServerError: The cache does not answer.
            FleetError: The cluster does not answer, or has no room for a single actor.
        """
        experiment, now = run.experiment, steady_clock()
        joined_s = now()
        actors = actors_here(run)
        fleet, nodes = actors.fleet, node_count()
        model = make_cost_model(experiment, run.spaces, self.prices, nodes=nodes,
                                waves=experiment.scaler.waves(fleet.concurrency))
        meter = WallClockMeter(model, Budget(experiment.budget.usd), billed_since_s=joined_s, now=now)
        return Supplies(
            actors.cache, fleet, meter, NotKept(), actor_event=actors.event,
            facts={"server": actors.server,
                   "cluster": f"{experiment.fleet.ray.address or 'started here'}: {nodes} "
                              f"{'node' if nodes == 1 else 'nodes'}, {fleet.concurrency} actors at once",
                   "bill": f"the hours of the nodes, ${model.learner_usd(3600):.4f} an hour together"},
            prewarmed_actors=min(fleet.concurrency, experiment.scaler.most_actors))
