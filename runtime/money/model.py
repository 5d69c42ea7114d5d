"""Prices of an experiment's parts: each role's functions, and everything billed by the hour.

On one machine nothing is billed. Its seconds are counted at list prices: an actor its CPU seconds, divided by the share
of a vCPU that its memory buys, and its waits; the learner the time of a round. docs/guides/cost.md lists what is left
out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lambda_actor.inline import text_bytes
from runtime.errors import ExperimentError
from runtime.experiment.instance_types import has_gpu
from runtime.experiment.learner import (
    COORDINATOR_MEMORY_MIB,
    UpdaterSettings,
    as_learner_functions,
)
from runtime.experiment.resolved import ResolvedExperiment
from runtime.experiment.schema import ActorSection
from runtime.money.prices import (
    HOURS_PER_MONTH,
    ITEM_KIB_SHARE,
    OUT_BYTE_USD,
    OUT_ELSEWHERE_BYTE_USD,
    OUT_REGIONS,
    POOL_USD_PER_HOUR,
    READ_SHARE,
    TRANSITION_USD,
    WATCHED_USD_PER_HOUR,
    PriceTable,
)
from runtime.money.work import ACTOR, LEARNER, Limits
from runtime.times import LEG_BEGINNING_S

MIB_PER_VCPU = 1769
"""Memory in MiB that gives a function one vCPU."""
INIT_SECONDS_MAX = 10.0
"""Lambda ends a start-up that takes longer."""
PROVISIONED_BLOCK_S = 300
"""Provisioned capacity is billed in blocks of this many seconds."""
VOLUME_GIB, GPU_VOLUME_GIB = 30, 100
"""Size of a learner's gp3 volume. Amazon's machine images for containers need 30, most of which is empty; that for
GPUs has drivers, and an image with CUDA takes 7 more."""
UPLOAD_INTERVAL_S = 10.0
"""Shortest time between two uploads of a deployed learner's files."""
REQUESTS_PER_UPLOAD = 12
"""Requests to the bucket that one upload takes at most."""
ITEM_KIB, WORK_BYTES = 3, 40
"""A run's item in the guard's table: its size without reservations, rounded up, and most bytes of one reservation."""
WRITES_PER_UPDATE, READS_PER_UPDATE = 3, 4
"""Most requests to the bucket for one update by a function: for state, batch and result."""
WRITES_PER_GRADIENT, READS_PER_GRADIENT = 4, 2
"""Requests for one gradient of Stellaris, at most: writes of samples, two policies and the gradient, and reads of
samples and gradient. Reads of policies are extra: at most one for each learner."""
LEG_TRANSITIONS = 2
"""Transitions of each coordinator leg: its invocation, and the check whether it was the last one."""


def vcpu_share(memory_mib: int) -> float:
    """Returns the share of one vCPU that a single-threaded function of this memory gets."""
    return min(1.0, memory_mib / MIB_PER_VCPU)


@dataclass(frozen=True, kw_only=True)
class FunctionPrices:
    """Prices of one role's work. Each piece of work is one function invocation.

    Attributes:
        memory_mib: Memory of the function in MiB.
        timeout_s: Longest that one invocation may run, without its start-up.
        traffic_bytes_max: Most bytes that one invocation moves through the cache.
        provisioned: Number of slots, from the first, with provisioned capacity.
        on_demand_usd: A GiB-second on demand.
        provisioned_usd: A GiB-second of an invocation with provisioned capacity.
        capacity_usd: A GiB-second of provisioned capacity.
        request_usd: An invocation.
        cache_kib_usd: A KiB through ElastiCache Serverless. Its endpoints are in all zones, so no bytes between zones
            are billed.
        out_byte_usd: A byte of an answer to a machine outside AWS.
    """

    memory_mib: int
    timeout_s: float
    traffic_bytes_max: int = 0
    provisioned: int = 0
    on_demand_usd: float = 0.0
    provisioned_usd: float = 0.0
    capacity_usd: float = 0.0
    request_usd: float = 0.0
    cache_kib_usd: float = 0.0
    out_byte_usd: float = 0.0

    def usd(
        self, *, is_provisioned: bool, billed_s: float, traffic_bytes: int, answer_bytes: int = 0
    ) -> float:
        """Returns the price of one invocation: its duration, rounded up to milliseconds, request, traffic and answer.

        The answer's bytes are text on the wire.
        """
        rate_usd = self.provisioned_usd if is_provisioned else self.on_demand_usd
        milliseconds = math.ceil(round(billed_s * 1000, 6))
        return (
            milliseconds / 1000 * (self.memory_mib / 1024) * rate_usd
            + self.request_usd
            + math.ceil(traffic_bytes / 1024) * self.cache_kib_usd
            + text_bytes(answer_bytes) * self.out_byte_usd
        )

    def worst_case_usd(
        self, limit_s: float = math.inf, *, init_s: float = INIT_SECONDS_MAX
    ) -> float:
        """Returns the price until its time-out after the longest cold start, since provisioned capacity may be late.

        Args:
            limit_s: A shorter time-out.
            init_s: The longest cold start.
        """
        return self.usd(
            is_provisioned=False,
            billed_s=min(self.timeout_s, limit_s) + init_s,
            traffic_bytes=self.traffic_bytes_max,
            answer_bytes=self.traffic_bytes_max,
        )

    def ran_usd(self, cpu_s: float) -> float:
        """Returns the price of an invocation on demand that took this many CPU seconds."""
        return self.usd(
            is_provisioned=False, billed_s=cpu_s / vcpu_share(self.memory_mib), traffic_bytes=0
        )

    def capacity_block_usd(self) -> float:
        """Returns the price of provisioned capacity for a block of five minutes."""
        return PROVISIONED_BLOCK_S * self.provisioned * self.memory_mib / 1024 * self.capacity_usd


def actor_prices(
    prices: PriceTable,
    actor: ActorSection,
    *,
    has_cache: bool,
    leaves_aws: bool,
    traffic_bytes_max: int,
) -> FunctionPrices:
    """Returns the actor function's prices.

    Args:
        has_cache: Whether ElastiCache Serverless carries the messages, and bills their bytes.
        leaves_aws: Whether its answers go to a machine outside AWS.
        traffic_bytes_max: Most bytes that one actor moves through the cache.
    """
    function = prices.functions[actor.architecture]
    out_usd = OUT_BYTE_USD if prices.region.startswith(OUT_REGIONS) else OUT_ELSEWHERE_BYTE_USD
    return FunctionPrices(
        memory_mib=actor.memory_mib,
        timeout_s=actor.timeout_s,
        traffic_bytes_max=traffic_bytes_max,
        provisioned=actor.provisioned,
        on_demand_usd=function.on_demand_usd,
        provisioned_usd=function.provisioned_duration_usd,
        capacity_usd=function.provisioned_capacity_usd,
        request_usd=prices.request_usd,
        cache_kib_usd=prices.serverless_cache_ecpu_usd * has_cache,
        out_byte_usd=out_usd * leaves_aws,
    )


def learner_function_prices(
    prices: PriceTable, learner: UpdaterSettings, *, architecture: str
) -> FunctionPrices:
    """Returns the learner function's prices; a request includes an update's or gradient's bucket requests.

    Args:
        learner: ``learner`` of the experiment.
        architecture: A key of `PriceTable.functions`.
    """
    requests = WRITES_PER_UPDATE + READS_PER_UPDATE * READ_SHARE
    if learner.has_gradients:
        reads = READS_PER_GRADIENT + learner.functions_at_once
        requests = WRITES_PER_GRADIENT + reads * READ_SHARE
    function = as_learner_functions(learner)
    return FunctionPrices(
        memory_mib=function.function_memory_mib,
        timeout_s=function.function_timeout_s,
        on_demand_usd=prices.functions[architecture].on_demand_usd,
        request_usd=prices.request_usd + requests * prices.put_usd,
    )


@dataclass(frozen=True)
class Standing:
    """Cost of the parts that exist whether or not work runs, in US dollars."""

    provisioned_usd: float
    learner_usd: float
    infrastructure_usd: float

    @property
    def usd(self) -> float:
        """Cost of all of them."""
        return self.provisioned_usd + self.learner_usd + self.infrastructure_usd


class CostModel:
    """Prices of an experiment's parts, in US dollars.

    Attributes:
        limits: The experiment's time limits for the phases of a round.
        roles: Prices of each role's work.
        functions_promised: Learner function invocations that are reserved with each round. Stellaris has one for each
            learner and one more, so the cost of the first ones does not stop the update.
        learner_usd_per_hour: Cost of the instance alone, or of the function that runs the loop; then, if it may be
            replaced by other types, of each of them.
        attached_usd_per_hour: Cost of parts that exist together with the learner: the instance's volume and public
            address or, without an instance, starts of legs. A deployment adds CloudWatch, the images, and the requests
            that keep the run's files in the bucket (`runtime.aws.learner.results_bucket`).
        watched_usd_per_hour: The part of CloudWatch and the images.
        cache_usd_per_hour: Cost of the cache's capacity.
        ledger_usd: Cost of writing new reservations into the guard's table.
    """

    def __init__(
        self,
        experiment: ResolvedExperiment,
        prices: PriceTable,
        *,
        traffic_bytes_max: int = 0,
        instance_type: str | None = None,
        waves: int = 1,
        is_deployed: bool = False,
        nodes: int = 0,
    ) -> None:
        """Takes the prices of an experiment's parts.

        Args:
            experiment: Resolved.
            prices: List prices.
            traffic_bytes_max: Most bytes that one actor moves through the cache.
            instance_type: The learner's; None for the first of ``learner.instance_types``.
            waves: Factor for a round's deadline if its actors cannot all run at once.
            is_deployed: Whether it is a deployment in AWS, which is watched and whose run is kept there.
            nodes: Nodes of an existing cluster, which costs them alone, by the hour of the first of
                ``learner.instance_types``: all work runs on them, and the run is stored in its directory.

        Raises:
            ExperimentError: The instance type has no price.
        """
        actor, learner = experiment.actor, experiment.learner
        self.limits = Limits(
            actor.timeout_s, experiment.fleet.round_deadline_s * waves, learner.update_timeout_s
        )
        self.functions_promised = learner.functions_at_once + learner.has_gradients
        self.watched_usd_per_hour = (
            POOL_USD_PER_HOUR if learner.is_external else WATCHED_USD_PER_HOUR
        )
        self.cache_usd_per_hour = 0.0
        self.ledger_usd = 0.0
        self.learner_usd_per_hour, self.attached_usd_per_hour = _loop_usd_per_hour(
            prices, experiment, instance_type, nodes
        )
        free = FunctionPrices(memory_mib=actor.memory_mib, timeout_s=actor.timeout_s)
        self.roles = {ACTOR: free, LEARNER: free}
        if nodes:
            return
        if not (learner.has_instance or learner.is_external):
            self.roles[LEARNER] = learner_function_prices(
                prices, learner, architecture=actor.architecture
            )
        if not experiment.is_on_learner:
            self.roles[ACTOR] = actor_prices(
                prices,
                actor,
                has_cache=experiment.has_elasticache,
                leaves_aws=learner.is_external,
                traffic_bytes_max=traffic_bytes_max,
            )
        if experiment.has_elasticache:
            self.cache_usd_per_hour = (
                prices.serverless_cache_gib_hour_usd * prices.serverless_cache_gib_min
            )
        if is_deployed:
            uploads = 0.0 if learner.is_external else 3600 / UPLOAD_INTERVAL_S
            self.attached_usd_per_hour += (
                uploads * REQUESTS_PER_UPLOAD * prices.put_usd + self.watched_usd_per_hour
            )
            works = experiment.scaler.most_actors + learner.functions_at_once
            item_kib = ITEM_KIB + math.ceil(works * WORK_BYTES / 1024)
            self.ledger_usd = item_kib * ITEM_KIB_SHARE * prices.put_usd

    def standing(
        self,
        seconds: float,
        *,
        blocks: int,
        cache_s: float | None = None,
        predecessor_s: float = 0.0,
    ) -> Standing:
        """Returns the cost of all parts for this many seconds of the learner.

        Args:
            seconds: Seconds of the learner, with its volume and address and what keeps its files.
            blocks: Blocks of provisioned capacity.
            cache_s: Seconds of the cache; None if it exists together with the learner.
            predecessor_s: The first of ``seconds`` in which the instance was of unknown type: the most expensive that
                may be launched.
        """
        cache_s = seconds if cache_s is None else cache_s
        own_usd, dearest_usd = self.learner_usd_per_hour[0], max(self.learner_usd_per_hour)
        return Standing(
            blocks * self.roles[ACTOR].capacity_block_usd(),
            ((seconds - predecessor_s) * own_usd + predecessor_s * dearest_usd) / 3600,
            (seconds * self.attached_usd_per_hour + cache_s * self.cache_usd_per_hour) / 3600,
        )

    @property
    def burn_usd_per_hour(self) -> float:
        """Hourly cost of an idle deployment."""
        return self.standing(3600, blocks=3600 // PROVISIONED_BLOCK_S).usd


def volume_gib(instance_types: Sequence[str]) -> int:
    """Returns the size in GiB of the volume of a learner of one of these types."""
    return GPU_VOLUME_GIB if has_gpu(instance_types[0]) else VOLUME_GIB


def _loop_usd_per_hour(
    prices: PriceTable, experiment: ResolvedExperiment, instance_type: str | None, nodes: int
) -> tuple[list[float], float]:
    """Returns the hourly cost of what runs the loop, and of what is attached to it; see `CostModel`.

    Raises:
        ExperimentError: The instance type has no price.
    """
    learner = experiment.learner
    if nodes:
        return [nodes * _hourly_usd(prices, learner.instance_types[:1])[0]], 0.0
    if learner.is_external:
        return [0.0], 0.0
    if learner.has_instance:
        own = instance_type or learner.instance_types[0]
        volume_usd = (
            prices.volume_gib_month_usd * volume_gib(learner.instance_types) / HOURS_PER_MONTH
        )
        types_usd = _hourly_usd(prices, (own, *learner.instance_types))
        return types_usd, volume_usd + prices.public_ipv4_hour_usd
    function_usd = prices.functions[experiment.actor.architecture].on_demand_usd
    leg_usd = LEG_TRANSITIONS * TRANSITION_USD + prices.request_usd
    return [3600 * COORDINATOR_MEMORY_MIB / 1024 * function_usd], 3600 / LEG_BEGINNING_S * leg_usd


def _hourly_usd(prices: PriceTable, instance_types: Sequence[str]) -> list[float]:
    """Returns the prices of instance types.

    Raises:
        ExperimentError: One has no price.
    """
    known = prices.instance_hour_usd
    if unknown := [name for name in instance_types if name not in known]:
        raise ExperimentError(
            f"learner.instance_types: {unknown[0]!r} has no price; allowed: "
            f"{', '.join(sorted(known))} ({prices.region}, {prices.as_of})"
        )
    return [known[name] for name in instance_types]
