"""The prices of an experiment: what its reservations and its bill are made from."""

from __future__ import annotations

from lambda_actor.spaces import Spaces
from runtime.config.resolved import FittedExperiment
from runtime.cost.model import CostModel
from runtime.cost.prices import PriceTable
from runtime.cost.sizes import traffic_bytes_max


def make_cost_model(
    experiment: FittedExperiment, spaces: Spaces, prices: PriceTable, *,
    instance_type: str | None = None, waves: int = 1,
) -> CostModel:
    """Makes the cost model of an experiment.

    Args:
        experiment: Fitted to its environment.
        spaces: Of that environment.
        prices: Of the region.
        instance_type: Of the learner; None for the first of ``learner.instance_types``.
        waves: How many times longer a round's deadline is, because not all its actors can run at once.

    Raises:
        ExperimentError: The instance type has no price.
    """
    return CostModel(
        experiment.actor, experiment.learner, prices, cache_kind=experiment.cache.kind,
        round_deadline_s=experiment.fleet.round_deadline_s,
        traffic_bytes_max=traffic_bytes_max(
            spaces, fragment_steps=experiment.actor.fragment_steps, network=experiment.network.kind),
        instance_type=instance_type, waves=waves)
