"""What a deployment may cost, told before it is made; modelled from list prices."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.config import Experiment
from runtime.cost.meter import PROVISIONED_BLOCK_S, CostModel
from runtime.cost.prices import PRICES

START_S = 600.0
"""What a start is taken to last: an instance, its image, CUDA's gigabytes."""
START_S_MAX = 1500.0
"""A deployment whose learner is not up by then is undone by CloudFormation."""
HOUR_S = 3600.0


@dataclass(frozen=True)
class Estimate:
    """US dollars at list price.

    Attributes:
        learner_usd_per_hour: The instance, of the dearest type that may be launched, with its disk and address.
        cache_usd_per_hour: The cache's capacity.
        provisioned_usd_per_hour: The actors' provisioned concurrency.
        start_usd: All of them until the learner has to be up.
    """

    learner_usd_per_hour: float
    cache_usd_per_hour: float
    provisioned_usd_per_hour: float
    start_usd: float

    @property
    def burn_usd_per_hour(self) -> float:
        """What exists costs so much, whether anything is trained or not."""
        return self.learner_usd_per_hour + self.cache_usd_per_hour + self.provisioned_usd_per_hour

    @property
    def idle_usd_per_hour(self) -> float:
        """What is left to pay when the learner has ended and let the warm actors go, until the stack is destroyed."""
        return self.cache_usd_per_hour


def estimate(experiment: Experiment) -> Estimate:
    """Args:
        experiment: Resolved.

    Raises:
        ExperimentError: An instance type has no price.
    """
    models = [CostModel(experiment, PRICES, traffic_bytes_max=0, instance_type=instance_type)
              for instance_type in experiment.learner.instance_types]
    dearest = max(models, key=lambda model: model.learner_usd(HOUR_S))
    cache_usd = dearest.cache_usd(HOUR_S)
    learner_usd = dearest.learner_usd(HOUR_S) + dearest.infrastructure_usd(HOUR_S) - cache_usd
    provisioned_usd = dearest.provisioned_usd(round(HOUR_S / PROVISIONED_BLOCK_S))
    return Estimate(learner_usd, cache_usd, provisioned_usd,
                    (learner_usd + cache_usd + provisioned_usd) * START_S_MAX / HOUR_S)
