"""Prices of an experiment's parts: each role's functions, and everything billed by the hour.

On one machine nothing is billed. Its seconds are counted at list prices: an actor its CPU seconds, divided by the share
of a vCPU that its memory buys, and its waits; the learner the time of a round. docs/guides/cost.md lists what is left
out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from lambda_actor.inline import text_bytes
from runtime.errors import ExperimentError
from runtime.experiment.learner import (
    COORDINATOR_MEMORY_MIB,
    UpdaterSettings,
    as_learner_functions,
)
from runtime.experiment.schema import ActorSection
from runtime.money.prices import HOURS_PER_MONTH
from runtime.money.work import ACTOR, LEARNER, LambdaPrices, Limits, PriceTable
from runtime.times import LEG_BEGINNING_S

MIB_PER_VCPU = 1769
"""Memory in MiB that gives a function one vCPU."""
INIT_SECONDS_MAX = 10.0
"""Lambda ends a start-up that takes longer."""
PROVISIONED_BLOCK_S = 300
"""Provisioned capacity is billed in blocks of this many seconds."""
VOLUME_GIB = 100
"""Size of a learner's gp3 volume. Amazon's machine images for containers need 30, an image with CUDA 7."""
UPLOAD_INTERVAL_S = 10.0
"""Shortest time between two uploads of a deployed learner's files."""
REQUESTS_PER_UPLOAD = 12
"""Requests to the bucket that one upload takes at most."""
WRITES_PER_UPDATE, READS_PER_UPDATE = 3, 4
"""Most requests to the bucket for one update by a function: for state, batch and result."""
WRITES_PER_GRADIENT, READS_PER_GRADIENT = 4, 2
"""Requests for one gradient of Stellaris, at most: writes of samples, two policies and the gradient, and reads of
samples and gradient. Reads of policies are extra: at most one for each learner."""
_READ_SHARE = 0.08
"""Price of a read relative to a write: S3's price list has $0.0004 and $0.005 per thousand."""
_ITEM_SHARE = 0.25
"""Price of a write to the guard's table relative to one to the bucket: a run's item takes two units of DynamoDB's, at
$0.625 per million."""

TRANSITION_USD = 3.75e-5
"""One step of a state machine in the most expensive region on Step Functions' price page; us-east-1 charges 2.5e-5."""
LEG_TRANSITIONS = 2
"""Transitions of each coordinator leg: its invocation, and the check whether it was the last one."""

_OUT_BYTE_USD, _OUT_ELSEWHERE_BYTE_USD = 0.09e-9, 0.154e-9
"""Price of a byte that leaves AWS, after the account's first 100 GB a month: in the regions of North America and
Europe, and in the most expensive region. Lambda's answers are billed at the rates of EC2's page."""
_OUT_REGIONS = ("us-east-", "us-west-", "ca-", "eu-")


WATCHED_USD_PER_HOUR = (11 * 0.30 + 3.00 + 4 * 0.10 + 3.6 * 0.10) / HOURS_PER_MONTH + 60 * 1e-5
"""Hourly cost of a deployment's CloudWatch metrics, dashboard and alarms, of its images with CUDA, and of a request
with metrics each minute. List prices of us-east-1, 2026-11-20. The ten metrics, three dashboards and ten alarms that
are free in each account are not deducted, since others may use them."""


POOL_USD_PER_HOUR = 0.10 / HOURS_PER_MONTH + 120 * 1.25e-6
"""Hourly cost of a pool in the user's own process: the actor image, at most 1 GB, and a DynamoDB request each half
minute for the heartbeat. A pool has no metrics or dashboard, and its files are on the user's disk."""


def vcpu_share(memory_mib: int) -> float:
    """Returns the share of one vCPU that a single-threaded function of this memory gets."""
    return min(1.0, memory_mib / MIB_PER_VCPU)


class FunctionPrices:
    """Prices of one role's work. Each piece of work is one function invocation."""

    def __init__(
        self,
        prices: PriceTable,
        *,
        has_cache: bool = False,
        memory_mib: int,
        architecture: str,
        timeout_s: float,
        traffic_bytes_max: int,
        provisioned: int = 0,
        leaves_aws: bool = False,
    ) -> None:
        """Takes the function's settings.

        Args:
            has_cache: Whether ElastiCache Serverless carries the messages, and bills their bytes. Its endpoints are in
                all zones, so no bytes between zones are billed.
            memory_mib: Memory of the function in MiB.
            architecture: A key of `PriceTable.functions`.
            timeout_s: Longest that one invocation may run, without its start-up.
            traffic_bytes_max: Most bytes that one invocation moves through the cache.
            provisioned: Number of slots, from the first, with provisioned capacity.
            leaves_aws: Whether its answers go to a machine outside AWS.
        """
        self._function, self._request_usd = prices.functions[architecture], prices.request_usd
        self._ecpu_usd = prices.serverless_cache_ecpu_usd if has_cache else 0.0
        out_usd = (
            _OUT_BYTE_USD if prices.region.startswith(_OUT_REGIONS) else _OUT_ELSEWHERE_BYTE_USD
        )
        self._out_usd = out_usd if leaves_aws else 0.0
        self._memory_gib, self.timeout_s = memory_mib / 1024, timeout_s
        self.traffic_bytes_max, self._provisioned = traffic_bytes_max, provisioned

    def is_provisioned(self, slot: int) -> bool:
        """Returns whether this slot has provisioned capacity."""
        return slot < self._provisioned

    def usd(
        self, *, is_provisioned: bool, billed_s: float, traffic_bytes: int, answer_bytes: int = 0
    ) -> float:
        """Returns the price of one invocation: its duration, rounded up to milliseconds, request, traffic and answer.

        The answer's bytes are text on the wire.
        """
        rate = (
            self._function.provisioned_duration_usd
            if is_provisioned
            else self._function.on_demand_usd
        )
        milliseconds = math.ceil(round(billed_s * 1000, 6))
        return (
            milliseconds / 1000 * self._memory_gib * rate
            + self._request_usd
            + math.ceil(traffic_bytes / 1024) * self._ecpu_usd
            + text_bytes(answer_bytes) * self._out_usd
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

    def ran_usd(self, cpu_s: float, invocations: int) -> float:
        """Returns the price of some invocations that took this many CPU seconds together."""
        billed_s = cpu_s / vcpu_share(round(self._memory_gib * 1024))
        duration_usd = billed_s * self._memory_gib * self._function.on_demand_usd
        return duration_usd + invocations * self._request_usd

    def provisioned_usd(self, blocks: int) -> float:
        """Returns the price of provisioned capacity for this many blocks of five minutes."""
        return (
            blocks
            * PROVISIONED_BLOCK_S
            * self._provisioned
            * self._memory_gib
            * self._function.provisioned_capacity_usd
        )


def learner_function_prices(
    prices: PriceTable, learner: UpdaterSettings, *, architecture: str
) -> FunctionPrices:
    """Returns the learner function's prices; a request includes an update's or gradient's bucket requests.

    Args:
        learner: ``learner`` of the experiment.
        architecture: A key of `PriceTable.functions`.
    """
    writes, reads = WRITES_PER_UPDATE, READS_PER_UPDATE
    if learner.has_gradients:
        writes, reads = WRITES_PER_GRADIENT, READS_PER_GRADIENT + learner.functions_at_once
    bucket_usd = (writes + reads * _READ_SHARE) * prices.put_usd
    return FunctionPrices(
        prices.model_copy(update={"request_usd": prices.request_usd + bucket_usd}),
        memory_mib=as_learner_functions(learner).function_memory_mib,
        architecture=architecture,
        timeout_s=as_learner_functions(learner).function_timeout_s,
        traffic_bytes_max=0,
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
        learner_usd_per_hour: Cost of the instance alone, or of the function that runs the loop.
        attached_usd_per_hour: Cost of what exists as long as the learner: the instance's volume and public address or,
            without an instance, starts of legs. Of a deployment also the requests that keep the run's files in the
            bucket (`runtime.aws.learner.results_bucket`), CloudWatch, and the images.
        watched_usd_per_hour: The part of CloudWatch and the images.
        cache_usd_per_hour: Cost of the cache's capacity.
        ledger_usd: Cost of writing new reservations into the guard's table and, if the run is kept there, into the
            bucket.
        functions_promised: Learner function invocations that are reserved with each round. Stellaris has one for each
            learner and one more, so the cost of the first ones does not stop the update.
    """

    def __init__(
        self,
        actor: ActorSection,
        learner: UpdaterSettings,
        prices: PriceTable,
        *,
        has_cache: bool,
        round_deadline_s: float,
        traffic_bytes_max: int,
        instance_type: str | None = None,
        waves: int = 1,
        is_deployed: bool = False,
        nodes: int = 0,
        roles: Mapping[str, FunctionPrices] | None = None,
    ) -> None:
        """Takes the prices of an experiment's parts.

        Args:
            actor: ``actor`` of the experiment.
            learner: ``learner`` of the experiment.
            prices: List prices.
            has_cache: Whether it has ElastiCache Serverless.
            round_deadline_s: ``fleet.round_deadline_s``, resolved.
            traffic_bytes_max: Most bytes that one actor moves through the cache.
            instance_type: The learner's; None for the first of ``learner.instance_types``.
            waves: Factor for a round's deadline if its actors cannot all run at once.
            is_deployed: Whether it is a deployment in AWS, which is watched and whose run is kept there.
            nodes: Nodes of an existing cluster, which costs them alone, by the hour of the first of
                ``learner.instance_types``: all work runs on them, and the run is stored in its directory.
            roles: Prices of roles other than the actor's.

        Raises:
            ExperimentError: The instance type has no price.
        """
        is_external = learner.is_external
        self.functions_promised = learner.functions_at_once + learner.has_gradients
        self.limits = Limits(actor.timeout_s, round_deadline_s * waves, learner.update_timeout_s)
        self.attached_usd_per_hour = 0.0
        if nodes or learner.has_instance:
            # The learner's own type first, then all that may be launched.
            types = (instance_type or learner.instance_types[0], *learner.instance_types)
            types = types[:1] if nodes else types
            for name in types:
                if name not in prices.instance_hour_usd:
                    raise ExperimentError(
                        f"learner.instance_types: {name!r} has no price; allowed: "
                        f"{', '.join(sorted(prices.instance_hour_usd))} ({prices.region}, {prices.as_of})"
                    )
            hourly = [(nodes or 1) * prices.instance_hour_usd[name] for name in types]
            if not nodes:
                self.attached_usd_per_hour = (
                    prices.volume_gib_month_usd * VOLUME_GIB / HOURS_PER_MONTH
                    + prices.public_ipv4_hour_usd
                )
        elif is_external:
            hourly = [0.0]
        else:
            rate = prices.functions[actor.architecture].on_demand_usd
            hourly = [3600 * COORDINATOR_MEMORY_MIB / 1024 * rate]
            leg_usd = LEG_TRANSITIONS * TRANSITION_USD + prices.request_usd
            self.attached_usd_per_hour = 3600 / LEG_BEGINNING_S * leg_usd
        self.learner_usd_per_hour, self._dearest_usd_per_hour = hourly[0], max(hourly)
        self.watched_usd_per_hour = POOL_USD_PER_HOUR if is_external else WATCHED_USD_PER_HOUR
        self.cache_usd_per_hour = (
            prices.serverless_cache_gib_hour_usd * prices.serverless_cache_gib_min * has_cache
        )
        self.ledger_usd = 0.0
        if is_deployed:
            uploads = 0.0 if is_external else 3600 / UPLOAD_INTERVAL_S
            self.attached_usd_per_hour += (
                uploads * REQUESTS_PER_UPLOAD * prices.put_usd + self.watched_usd_per_hour
            )
            self.ledger_usd = (_ITEM_SHARE + (not is_external)) * prices.put_usd
        self.roles: Mapping[str, FunctionPrices] = {
            ACTOR: FunctionPrices(
                prices,
                has_cache=has_cache,
                memory_mib=actor.memory_mib,
                architecture=actor.architecture,
                timeout_s=actor.timeout_s,
                traffic_bytes_max=traffic_bytes_max,
                provisioned=actor.provisioned,
                leaves_aws=is_external,
            ),
            **(
                {}
                if learner.has_instance or is_external
                else {
                    LEARNER: learner_function_prices(
                        prices, learner, architecture=actor.architecture
                    )
                }
            ),
            **(dict.fromkeys((ACTOR, LEARNER), free_prices(prices, actor)) if nodes else {}),
            **(roles or {}),
        }

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
            cache_s: Seconds of the cache; None if it exists as long as the learner.
            predecessor_s: The first of ``seconds`` in which the instance was of unknown type: the most expensive that
                may be launched.
        """
        cache_s = seconds if cache_s is None else cache_s
        own_s = seconds - predecessor_s
        return Standing(
            self.provisioned_usd(blocks),
            (own_s * self.learner_usd_per_hour + predecessor_s * self._dearest_usd_per_hour) / 3600,
            (seconds * self.attached_usd_per_hour + cache_s * self.cache_usd_per_hour) / 3600,
        )

    @property
    def burn_usd_per_hour(self) -> float:
        """Hourly cost of an idle deployment."""
        return self.standing(3600, blocks=3600 // PROVISIONED_BLOCK_S).usd

    def provisioned_usd(self, blocks: int) -> float:
        """Returns the price of all roles' provisioned capacity for this many blocks of five minutes."""
        return sum(role.provisioned_usd(blocks) for role in self.roles.values())


def free_prices(prices: PriceTable, actor: ActorSection) -> FunctionPrices:
    """Returns zero prices, for work on machines that are already paid for."""
    nothing = LambdaPrices.model_construct(
        on_demand_usd=0.0, provisioned_capacity_usd=0.0, provisioned_duration_usd=0.0
    )
    free = prices.model_copy(
        update={"functions": {actor.architecture: nothing}, "request_usd": 0.0}
    )
    return FunctionPrices(
        free,
        memory_mib=actor.memory_mib,
        architecture=actor.architecture,
        timeout_s=actor.timeout_s,
        traffic_bytes_max=0,
    )
