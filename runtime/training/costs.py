"""An experiment's prices and its rounds' durations, the basis of reservations and bills."""

from __future__ import annotations

from typing import Any

from lambda_actor.spaces import Spaces
from runtime.config.resolved import FittedExperiment
from runtime.cost.limits import PhaseTimes
from runtime.cost.model import CostModel, cluster_cost_model, free_prices
from runtime.cost.sizes import traffic_bytes_max
from runtime.ports.money import ACTOR, Limits, PriceTable, WorkTimes


def make_cost_model(
    experiment: FittedExperiment,
    spaces: Spaces,
    prices: PriceTable,
    *,
    instance_type: str | None = None,
    waves: int = 1,
    nodes: int = 1,
) -> CostModel:
    """Makes the cost model of an experiment.

    Args:
        experiment: Fitted to its environment.
        spaces: The environment's.
        prices: The region's.
        instance_type: The learner's; None for the first of ``learner.instance_types``.
        waves: Factor for a round's deadline if its actors cannot all run at once.
        nodes: Nodes of a Ray cluster, if actors run there.

    Raises:
        ExperimentError: The instance type has no price.
    """
    if experiment.fleet.kind == "ray":
        ray: Any = experiment.fleet
        return cluster_cost_model(
            experiment.actor,
            experiment.learner,
            prices,
            nodes=ray.nodes or nodes,
            round_deadline_s=experiment.fleet.round_deadline_s,
            waves=waves,
        )
    return CostModel(
        experiment.actor,
        experiment.learner,
        prices,
        has_cache=experiment.has_elasticache,
        round_deadline_s=experiment.fleet.round_deadline_s,
        traffic_bytes_max=traffic_bytes_max(
            spaces,
            fragment_steps=experiment.actor.fragment_steps,
            network=experiment.network.architecture,
        ),
        instance_type=instance_type,
        waves=waves,
        roles={ACTOR: free_prices(prices, experiment.actor)} if experiment.is_on_learner else None,
    )


def make_phase_times(
    experiment: FittedExperiment, configured: Limits, times: WorkTimes
) -> PhaseTimes:
    """Makes the record of how long a round's phases take.

    Args:
        experiment: Fitted to its environment.
        configured: Its limits.
        times: Billed seconds of the learner's work.
    """
    return PhaseTimes(
        configured,
        samples_max=experiment.scaler.most_actors * experiment.actor.fragment_steps,
        expected=times.expected_s(),
        growth=1.0 + experiment.environment.replay_steps_max / experiment.actor.fragment_steps,
    )
