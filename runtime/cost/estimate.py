"""What a deployment may cost, told before it is made; modelled from list prices."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.config.resolved import ResolvedLearner
from runtime.config.schema import ActorSection
from runtime.cost.model import PROVISIONED_BLOCK_S, CostModel
from runtime.ports.money import PriceTable

HOUR_S = 3600.0


@dataclass(frozen=True)
class Ending:
    """How long the parts of a deployment are billed after the moment from which it must not go on.

    Attributes:
        learner_s: Longest until the learner's instance has ended, in seconds.
        cache_s: Longest that deleting the cache takes after that, in seconds.
    """

    learner_s: float
    cache_s: float


@dataclass(frozen=True)
class Estimate:
    """What a deployment costs, in US dollars at list price.

    Attributes:
        learner_usd_per_hour: The instance, of the dearest type that may be launched, with its disk and its address;
            without one the coordinator with its legs. To both come requests to the bucket, what CloudWatch keeps, and
            the images.
        cache_usd_per_hour: The cache's capacity.
        provisioned_usd_per_hour: The actors' provisioned concurrency.
        floor_usd_per_hour: All that exists, with the cheapest type that may be launched.
        tail_usd: Part of the budget that is kept for taking the deployment down; see `tail_usd`.
    """

    learner_usd_per_hour: float
    cache_usd_per_hour: float
    provisioned_usd_per_hour: float
    floor_usd_per_hour: float
    tail_usd: float

    @property
    def burn_usd_per_hour(self) -> float:
        """What exists costs per hour, whether anything is trained or not."""
        return self.learner_usd_per_hour + self.cache_usd_per_hour + self.provisioned_usd_per_hour


def estimate(
    actor: ActorSection, learner: ResolvedLearner, prices: PriceTable, *, cache_kind: str, ending: Ending
) -> Estimate:
    """What these sections of an experiment, resolved, may cost in a deployment.

    Args:
        cache_kind: ``cache.kind``.
        ending: How long it is billed once it must not go on.

    Raises:
        ExperimentError: An instance type has no price.
    """
    models = [CostModel(actor, learner, prices, cache_kind=cache_kind, round_deadline_s=0.0, traffic_bytes_max=0,
                        instance_type=instance_type)
              for instance_type in (learner.instance_types if learner.has_instance else (None,))]
    dearest = max(models, key=lambda model: model.learner_usd(HOUR_S))
    cache_usd = dearest.cache_usd(HOUR_S)
    learner_usd = dearest.learner_usd(HOUR_S) + dearest.attached_usd(HOUR_S) + dearest.kept_usd(HOUR_S)
    provisioned_usd = dearest.provisioned_usd(round(HOUR_S / PROVISIONED_BLOCK_S))
    return Estimate(
        learner_usd, cache_usd, provisioned_usd, min(model.burn_usd_per_hour for model in models),
        tail_usd(learner_usd, cache_usd, provisioned_usd, watched_usd=dearest.watched_usd_per_hour,
                 is_node=cache_kind == "node", ending=ending))


def tail_usd(
    learner_usd: float, cache_usd: float, provisioned_usd: float, *, watched_usd: float, is_node: bool, ending: Ending
) -> float:
    """What can still be billed after the moment from which a deployment must not go on.

    The learner until its instance has ended, and the cache until it is deleted after that; of provisioned concurrency
    the block of five minutes that has begun, and of a cache node and of what CloudWatch keeps the hour. Actors in
    flight are not in it: each is reserved until its time limit when it starts.

    Args:
        learner_usd: What an hour of the learner costs.
        cache_usd: What an hour of the cache costs.
        provisioned_usd: What an hour of provisioned concurrency costs.
        watched_usd: What an hour of what CloudWatch keeps costs.
        is_node: Whether the cache is a node, billed by whole hours.
        ending: How long each of them is billed.
    """
    return (learner_usd * ending.learner_s + watched_usd * HOUR_S
            + provisioned_usd * (ending.learner_s + PROVISIONED_BLOCK_S)
            + cache_usd * (ending.learner_s + ending.cache_s + (HOUR_S if is_node else 0.0))) / HOUR_S
