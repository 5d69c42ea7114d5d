"""The prices of an experiment, and the times of its rounds: what its reservations and its bill are made from."""

from __future__ import annotations

from dataclasses import replace

from lambda_actor.spaces import Spaces
from runtime.config.resolved import FittedExperiment
from runtime.cost.limits import PhaseTimes
from runtime.cost.model import CostModel, FunctionPrices
from runtime.cost.prices import LambdaPrices, PriceTable
from runtime.cost.rates import WorkTimes
from runtime.cost.sizes import traffic_bytes_max
from runtime.interfaces import ACTOR, Limits


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
        instance_type=instance_type, waves=waves,
        roles={ACTOR: _free(experiment, prices)} if experiment.fleet.is_on_learner else None)


def make_phase_times(experiment: FittedExperiment, configured: Limits, times: WorkTimes) -> PhaseTimes:
    """Makes the account of how long a round's phases take.

    Args:
        experiment: Fitted to its environment.
        configured: Its limits.
        times: For how long the learner's work counts in the bill.
    """
    return PhaseTimes(
        configured, samples_max=experiment.scaler.most_actors * experiment.actor.fragment_steps,
        expected=times.expected_s())


def _free(experiment: FittedExperiment, prices: PriceTable) -> FunctionPrices:
    """Prices of actors that are the learner's own processes: nothing beside its instance."""
    actor = experiment.actor
    free = replace(prices, functions={actor.architecture: LambdaPrices(0.0, 0.0, 0.0)}, request_usd=0.0)
    return FunctionPrices(free, cache_kind="none", memory_mib=actor.memory_mib, architecture=actor.architecture,
                          timeout_s=actor.timeout_s, traffic_bytes_max=0)
