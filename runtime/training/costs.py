"""The prices of an experiment, and the times of its rounds: what its reservations and its bill are made from."""

from __future__ import annotations

from lambda_actor.spaces import Spaces
from runtime.config.resolved import FittedExperiment
from runtime.cost.limits import PhaseTimes
from runtime.cost.model import CostModel, cluster_cost_model, free_prices
from runtime.cost.sizes import traffic_bytes_max
from runtime.ports.money import ACTOR, Limits, PriceTable, WorkTimes


def make_cost_model(
    experiment: FittedExperiment, spaces: Spaces, prices: PriceTable, *,
    instance_type: str | None = None, waves: int = 1, nodes: int = 1,
) -> CostModel:
    """Makes the cost model of an experiment.

    Args:
        experiment: Fitted to its environment.
        spaces: Of that environment.
        prices: Of the region.
        instance_type: Of the learner; None for the first of ``learner.instance_types``.
        waves: How many times longer a round's deadline is, because not all its actors can run at once.
        nodes: Of a Ray cluster, if that is where actors run.

    Raises:
        ExperimentError: The instance type has no price.
    """
    if experiment.fleet.kind == "ray":
        return cluster_cost_model(
            experiment.actor, experiment.learner, prices, nodes=experiment.fleet.ray.nodes or nodes,
            round_deadline_s=experiment.fleet.round_deadline_s, waves=waves)
    return CostModel(
        experiment.actor, experiment.learner, prices, cache_kind=experiment.cache.kind,
        round_deadline_s=experiment.fleet.round_deadline_s,
        traffic_bytes_max=traffic_bytes_max(
            spaces, fragment_steps=experiment.actor.fragment_steps, network=experiment.network.architecture),
        instance_type=instance_type, waves=waves,
        roles={ACTOR: free_prices(prices, experiment.actor)} if experiment.fleet.is_on_learner else None)


def make_phase_times(experiment: FittedExperiment, configured: Limits, times: WorkTimes) -> PhaseTimes:
    """Makes the account of how long a round's phases take.

    Args:
        experiment: Fitted to its environment.
        configured: Its limits.
        times: For how long the learner's work counts in the bill.
    """
    return PhaseTimes(
        configured, samples_max=experiment.scaler.most_actors * experiment.actor.fragment_steps,
        expected=times.expected_s(),
        growth=1.0 + experiment.environment.replay_steps_max / experiment.actor.fragment_steps)
