"""Estimates a deployment's cost before it is made, from list prices."""

from __future__ import annotations

import math
from dataclasses import dataclass

from runtime.experiment.resolved import ResolvedExperiment
from runtime.experiment.schema import Experiment
from runtime.money.model import PROVISIONED_BLOCK_S, CostModel
from runtime.money.prices import PriceTable

_STEPS = 1_000_000
"""Length of a run without a limit."""


@dataclass(frozen=True)
class Ending:
    """How long a deployment's parts are billed after it must end.

    Attributes:
        learner_s: Longest until the learner's instance has ended, in seconds.
        cache_s: Longest that deleting the cache takes after that, in seconds.
    """

    learner_s: float
    cache_s: float


@dataclass(frozen=True)
class Estimate:
    """A deployment's cost, in US dollars at list price.

    Attributes:
        learner_usd_per_hour: The most expensive instance type that may be launched, with its disk and address, or the
            coordinator with its legs. Also requests to the bucket, CloudWatch's storage, and the images.
        cache_usd_per_hour: The cache's capacity.
        provisioned_usd_per_hour: The actors' provisioned concurrency.
        floor_usd_per_hour: All parts, with the cheapest instance type that may be launched.
        tail_usd: Part of the budget that is kept for taking the deployment down; see `estimate`.
    """

    learner_usd_per_hour: float
    cache_usd_per_hour: float
    provisioned_usd_per_hour: float
    floor_usd_per_hour: float
    tail_usd: float

    @property
    def burn_usd_per_hour(self) -> float:
        """Hourly cost of all parts, even if idle."""
        return self.learner_usd_per_hour + self.cache_usd_per_hour + self.provisioned_usd_per_hour


def estimate(experiment: ResolvedExperiment, prices: PriceTable, ending: Ending) -> Estimate:
    """Estimates the deployment cost of a resolved experiment.

    The cost that can still arise after it must end is that of the learner until its instance has ended, and of the
    cache until it is deleted after that. Provisioned concurrency is billed to the end of its five-minute block,
    CloudWatch's storage to the end of its hour. Actors in flight are not included, because each is reserved until its
    time limit when it starts.

    Args:
        ending: How long it is billed once it must end.

    Raises:
        ExperimentError: An instance type has no price.
    """
    model = CostModel(experiment, prices, is_deployed=True)
    dearest_usd = max(model.learner_usd_per_hour)
    cheapest_usd = min(model.learner_usd_per_hour)
    learner_usd = dearest_usd + model.attached_usd_per_hour
    provisioned_usd = model.standing(0.0, blocks=round(3600 / PROVISIONED_BLOCK_S)).usd
    return Estimate(
        learner_usd,
        model.cache_usd_per_hour,
        provisioned_usd,
        cheapest_usd + model.attached_usd_per_hour + model.cache_usd_per_hour + provisioned_usd,
        tail_usd=(
            learner_usd * ending.learner_s
            + model.watched_usd_per_hour * 3600
            + provisioned_usd * (ending.learner_s + PROVISIONED_BLOCK_S)
            + model.cache_usd_per_hour * (ending.learner_s + ending.cache_s)
        )
        / 3600,
    )


def rounds_of(experiment: Experiment) -> tuple[int, float]:
    """Returns the number of rounds until the first limit of ``stop``, and the mean of their actors.

    Without a limit, the run has a million steps.
    """
    stop = experiment.stop
    actors = experiment.scaler.mean_actors
    limit = stop.max_rounds or math.inf
    if stop.max_steps or not stop.max_rounds:
        # Only whole fragments; the last round may have fewer actors.
        fragments = (stop.max_steps or _STEPS) // experiment.actor.fragment_steps
        limit = min(limit, fragments / actors)
    rounds = math.ceil(limit)
    return rounds, actors * limit / rounds
