"""What a deployment may cost, told before it is made; modelled from list prices."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.config.schema import Experiment
from runtime.cost.model import PROVISIONED_BLOCK_S, CostModel
from runtime.cost.prices import PRICES, PriceTable
from runtime.guard.guard import INTERVAL_S
from runtime.guard.teardown import CACHE_DELETION_S, STOP_GRACE_S, TERMINATION_S

START_S = 600.0
"""What a start is taken to last: an instance, its image, CUDA's gigabytes."""
HOUR_S = 3600.0


@dataclass(frozen=True)
class Estimate:
    """US dollars at list price.

    Attributes:
        learner_usd_per_hour: The instance, of the dearest type that may be launched, with its disk, its address, and
            its requests to the bucket.
        cache_usd_per_hour: The cache's capacity.
        provisioned_usd_per_hour: The actors' provisioned concurrency.
        tail_usd: Part of the budget that is kept for taking the deployment down; see `tail_usd`.
    """

    learner_usd_per_hour: float
    cache_usd_per_hour: float
    provisioned_usd_per_hour: float
    tail_usd: float

    @property
    def burn_usd_per_hour(self) -> float:
        """What exists costs so much, whether anything is trained or not."""
        return self.learner_usd_per_hour + self.cache_usd_per_hour + self.provisioned_usd_per_hour


def estimate(experiment: Experiment, prices: PriceTable = PRICES) -> Estimate:
    """Args:
        experiment: Resolved.

    Raises:
        ExperimentError: An instance type has no price.
    """
    models = [CostModel(experiment, prices, traffic_bytes_max=0, instance_type=instance_type)
              for instance_type in experiment.learner.instance_types]
    dearest = max(models, key=lambda model: model.learner_usd(HOUR_S))
    cache_usd = dearest.cache_usd(HOUR_S)
    learner_usd = (dearest.learner_usd(HOUR_S) + dearest.infrastructure_usd(HOUR_S) - cache_usd
                   + dearest.upload_usd(HOUR_S))
    provisioned_usd = dearest.provisioned_usd(round(HOUR_S / PROVISIONED_BLOCK_S))
    return Estimate(
        learner_usd, cache_usd, provisioned_usd,
        tail_usd(learner_usd, cache_usd, provisioned_usd, is_node=experiment.cache.kind == "node"))


def tail_usd(learner_usd: float, cache_usd: float, provisioned_usd: float, *, is_node: bool) -> float:
    """What can still be billed after the moment from which a deployment must not go on.

    Until the guard looks (one tick may be lost), until the learner has put its results away, until its instance has
    ended (another tick may be lost), and the cache's deletion after that; of provisioned concurrency the block of five
    minutes that has begun, and of a cache node the hour. Actors in flight are not in it: each is reserved until its
    time limit when it starts.

    Args:
        learner_usd, cache_usd, provisioned_usd: An hour of each.
        is_node: Whether the cache is a node, billed by whole hours.
    """
    ending_s = 3 * INTERVAL_S + STOP_GRACE_S + TERMINATION_S
    return (learner_usd * ending_s
            + provisioned_usd * (ending_s + PROVISIONED_BLOCK_S)
            + cache_usd * (ending_s + CACHE_DELETION_S + (HOUR_S if is_node else 0.0))) / HOUR_S
