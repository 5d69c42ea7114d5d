"""Estimates a deployment before it is made: its hourly cost from list prices, and its start in phases.

The durations are modelled. An instance profile takes 2 minutes by itself (hashicorp/terraform#15341), but since March
2024 CloudFormation continues while it checks one (AWS: "40 percent faster"). AWS documents one to two minutes for
provisioned concurrency. Users report 4 to 6 minutes for an ElastiCache user, its group and a cache. Images follow from
bytes: 0.6 GB pulled and 1.6 GB unpacked, with CUDA 3.3 and 7 GB.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from runtime.experiment.resolved import ResolvedExperiment
from runtime.experiment.schema import Experiment
from runtime.money.model import PROVISIONED_BLOCK_S, CostModel
from runtime.money.prices import PriceTable
from runtime.times import INTERVAL_S, LEG_S, MAKING_LIMIT_S

_STEPS = 1_000_000
"""Length of a run without a limit."""
CACHE_S = 300.0
"""Users, user group and cache."""
ROLES_S, FUNCTION_S, WARM_S = 30.0, 90.0, 120.0
"""The learner's role, log group and launch template, which everything waits for; roles, the function from its image,
and its version; its alias, if it is to be kept warm."""
MACHINE_S = 60.0
"""From the group to the first line of the boot script."""
ACTORS_S = 45.0
"""The container's start, torch's import, the cache, and the first actors' answers."""
FIRST_LEG_S = 30.0
"""The execution's start, and the cold start of a function whose image is loaded on demand."""
PULL_BYTES_PER_S, UNPACK_BYTES_PER_S = 50e6, 80e6
"""Speeds for an image's layers: from the registry, and onto a gp3 volume of 125 MiB/s that both share."""
IMAGE_BYTES = {False: (0.6e9, 1.6e9), True: (3.3e9, 7.0e9)}
"""Size of the learner image, pulled and unpacked; without CUDA, and with it."""
_LIMITS_S = {"machine": 300.0, "image": 450.0, "first actors": 300.0}
"""Limits of the phases on the instance."""


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

    After it must end, it still pays for the learner until its instance has ended, and for the cache until that is
    deleted afterwards. Provisioned concurrency is billed to the end of its five-minute block,
    CloudWatch's storage to the end of its hour. Actors in flight are not included, because each is reserved until its
    time limit when it starts.

    Args:
        ending: How long it is billed once it must end.

    Raises:
        ExperimentError: An instance type has no price.
    """
    model = CostModel(experiment, prices, is_deployed=True)
    dearest_usd, cheapest_usd = max(model.learner_usd_per_hour), min(model.learner_usd_per_hour)
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


@dataclass(frozen=True)
class Phase:
    """One phase of a start; phases are consecutive.

    Attributes:
        name: For people.
        expected_s: Modelled duration, in seconds.
        limit_s: Time after which it has failed, in seconds.
        usd: Cost of all existing parts during ``expected_s``, in US dollars.
    """

    name: str
    expected_s: float
    limit_s: float
    usd: float


@dataclass(frozen=True)
class Start:
    """A deployment's start, from the execution of its change set until training begins.

    Attributes:
        phases: In their order.
        usd_per_hour: Hourly cost of the whole deployment after the start, in US dollars.
    """

    phases: tuple[Phase, ...]
    usd_per_hour: float

    @property
    def expected_s(self) -> float:
        """Modelled duration, in seconds."""
        return sum(phase.expected_s for phase in self.phases)

    @property
    def usd(self) -> float:
        """Cost, in US dollars."""
        return sum(phase.usd for phase in self.phases)

    @property
    def counted_usd(self) -> float:
        """The most that is counted for it, in US dollars: the guard's times are exact to one interval."""
        return self.usd + INTERVAL_S * self.usd_per_hour / 3600

    def limit_s(self, name: str) -> float:
        """Returns the time limit of the phase of that name, in seconds."""
        return next(phase.limit_s for phase in self.phases if phase.name == name)

    @property
    def instance_limit_s(self) -> float:
        """How long CloudFormation waits for the first instance, in seconds."""
        return sum(phase.limit_s for phase in self.phases[1:])


def start_of_legs(estimate: Estimate) -> Start:
    """Returns the phases of a start without an instance: functions, then the first leg."""
    leg_s = FIRST_LEG_S + ACTORS_S
    return Start(
        (
            Phase("functions", FUNCTION_S, MAKING_LIMIT_S, 0.0),
            Phase("first leg", leg_s, LEG_S, leg_s * estimate.burn_usd_per_hour / 3600),
        ),
        estimate.burn_usd_per_hour,
    )


def start_of_pool(estimate: Estimate, *, is_warm: bool) -> Start:
    """Returns the one phase of a start with actors only, after which a pool opens.

    Args:
        is_warm: Whether actors are kept warm.
    """
    warm_s = WARM_S if is_warm else 0.0
    return Start(
        (
            Phase(
                "function",
                FUNCTION_S + warm_s,
                MAKING_LIMIT_S,
                warm_s * estimate.burn_usd_per_hour / 3600,
            ),
        ),
        estimate.burn_usd_per_hour,
    )


def start(
    estimate: Estimate, *, has_cache: bool, is_warm: bool, has_gpu: bool, has_function: bool = True
) -> Start:
    """Returns the phases of a deployment's start, with images already pushed.

    Args:
        estimate: The deployment's hourly cost.
        has_cache: Whether there is a cache in AWS.
        is_warm: Whether actors are kept warm.
        has_gpu: Whether the learner's types have GPUs.
        has_function: Whether actors are a function. Otherwise they are processes of the learner.
    """
    pulled_bytes, unpacked_bytes = IMAGE_BYTES[has_gpu]
    # CloudFormation makes cache and function at the same time, and the instance's group last.
    parts = ["cache"] * has_cache + ["function"] * has_function
    function_s = FUNCTION_S if has_function else ROLES_S
    making_s = max(CACHE_S if has_cache else 0.0, function_s + (WARM_S if is_warm else 0.0))
    making_usd = (
        making_s * estimate.cache_usd_per_hour
        + (making_s - function_s) * estimate.provisioned_usd_per_hour
    ) / 3600
    on_instance = {
        "machine": MACHINE_S,
        "image": pulled_bytes / PULL_BYTES_PER_S + unpacked_bytes / UNPACK_BYTES_PER_S,
        "first actors": ACTORS_S,
    }
    return Start(
        (
            Phase(
                " and ".join(parts) or "roles",
                making_s,
                MAKING_LIMIT_S,
                making_usd,
            ),
            *(
                Phase(name, seconds, _LIMITS_S[name], seconds * estimate.burn_usd_per_hour / 3600)
                for name, seconds in on_instance.items()
            ),
        ),
        estimate.burn_usd_per_hour,
    )
