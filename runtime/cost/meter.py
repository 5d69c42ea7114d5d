"""What AWS would bill for a run, modelled, and each round's worst case reserved before it starts.

On one machine nothing is billed. What is computed here is what the same run would cost on AWS Lambda and EC2 at list
price, from measured CPU times: actors at the share of a vCPU that their memory buys, the learner for as long as a
round would take there. docs/guides/cost.md says what is left out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from runtime.config.schema import Experiment
from runtime.cost.budget import Budget
from runtime.cost.prices import HOURS_PER_MONTH, PriceTable
from runtime.errors import BudgetError, ExperimentError
from runtime.interfaces import RoundBill

MIB_PER_VCPU = 1769
INIT_SECONDS_MAX = 10.0
"""Lambda ends a start-up that takes longer."""
PROVISIONED_BLOCK_S = 300
UPLOAD_INTERVAL_S = 10.0
"""A deployed learner copies its files to the bucket this often at most."""
REQUESTS_PER_UPLOAD = 12
BETWEEN_ROUNDS_S = 60.0
"""Reserved for checkpoints and uploads where time is paid for by the clock."""
_BASE = "round"
_AHEAD = "ahead"
_ELSEWHERE = "elsewhere"


def vcpu_share(memory_mib: int) -> float:
    """Share of one vCPU that a single-threaded function of this memory gets."""
    return min(1.0, memory_mib / MIB_PER_VCPU)


class CostModel:
    """Prices of an experiment's parts, in US dollars."""

    def __init__(
        self,
        experiment: Experiment,
        prices: PriceTable,
        *,
        traffic_bytes_max: int,
        instance_type: str | None = None,
        waves: int = 1,
    ) -> None:
        """Args:
            experiment: Resolved.
            traffic_bytes_max: Most that one invocation moves through the cache.
            instance_type: Of the learner; the first of ``learner.instance_types`` where it is not known.
            waves: A round's deadline is so many times longer, because not all its actors can run at once.

        Raises:
            ExperimentError: The instance type has no price.
        """
        self._actor, self._learner, self._fleet = experiment.actor, experiment.learner, experiment.fleet
        self._cache_kind, self._prices = experiment.cache.kind, prices
        self._traffic_bytes_max = traffic_bytes_max
        self._waves = waves
        # Its own first, then all that may be launched.
        types = (instance_type or experiment.learner.instance_types[0], *experiment.learner.instance_types)
        for name in types:
            if name not in prices.instance_hour_usd:
                raise ExperimentError(
                    f"learner.instance_types: {name!r} has no price; allowed: "
                    f"{', '.join(sorted(prices.instance_hour_usd))} ({prices.region}, {prices.as_of})")
        self._instance_s_usd = prices.instance_hour_usd[types[0]] / 3600
        self._dearest_instance_s_usd = max(prices.instance_hour_usd[name] for name in types) / 3600
        self._memory_gib = experiment.actor.memory_mib / 1024
        self._function = prices.functions[experiment.actor.architecture]

    def is_provisioned(self, slot: int) -> bool:
        return slot < self._actor.provisioned

    def actor_usd(self, *, is_provisioned: bool, billed_s: float, traffic_bytes: int) -> float:
        """One invocation: its duration, rounded up to the millisecond, its request, and its traffic."""
        rate = self._function.provisioned_duration_usd if is_provisioned else self._function.on_demand_usd
        milliseconds = math.ceil(round(billed_s * 1000, 6))
        return (milliseconds / 1000 * self._memory_gib * rate + self._prices.request_usd
                + self._traffic_usd(traffic_bytes))

    @property
    def actor_worst_case_usd(self) -> float:
        """Until its time-out after the longest cold start; provisioned capacity may not be there when it is needed."""
        return self.actor_usd(is_provisioned=False, billed_s=self._actor.timeout_s + INIT_SECONDS_MAX,
                              traffic_bytes=self._traffic_bytes_max)

    def learner_usd(self, seconds: float) -> float:
        """The instance alone."""
        return seconds * self._instance_s_usd

    def predecessor_usd(self, seconds: float) -> float:
        """An instance of which nobody knows the type: the dearest that may be launched."""
        return seconds * self._dearest_instance_s_usd

    def infrastructure_usd(self, seconds: float) -> float:
        """The cache's capacity, the learner's volume and its public address."""
        prices = self._prices
        hourly = (prices.volume_gib_month_usd * self._learner.volume_gib / HOURS_PER_MONTH
                  + prices.public_ipv4_hour_usd)
        return seconds / 3600 * hourly + self.cache_usd(seconds)

    def cache_usd(self, seconds: float) -> float:
        """The cache's capacity alone."""
        prices = self._prices
        hourly = {
            "serverless": prices.serverless_cache_gib_hour_usd * prices.serverless_cache_gib_min,
            "node": prices.cache_node_hour_usd, "learner": 0.0}[self._cache_kind]
        return seconds / 3600 * hourly

    @property
    def burn_usd_per_hour(self) -> float:
        """What a deployment costs while nothing is done in it."""
        return (self.learner_usd(3600) + self.infrastructure_usd(3600) + self.upload_usd(3600)
                + self.provisioned_usd(3600 // PROVISIONED_BLOCK_S))

    def upload_usd(self, seconds: float) -> float:
        """Requests to the bucket; see `runtime.backends.aws.results_bucket`."""
        return seconds / UPLOAD_INTERVAL_S * REQUESTS_PER_UPLOAD * self._prices.put_usd

    def provisioned_usd(self, blocks: int) -> float:
        """Provisioned capacity for so many blocks of five minutes."""
        return (blocks * PROVISIONED_BLOCK_S * self._actor.provisioned * self._memory_gib
                * self._function.provisioned_capacity_usd)

    @property
    def round_seconds_max(self) -> float:
        """Longest that a round may take, evaluation included."""
        return self._fleet.round_deadline_s * self._waves + self._learner.update_timeout_s

    def _traffic_usd(self, traffic_bytes: int) -> float:
        if self._cache_kind != "serverless":
            return 0.0
        return math.ceil(traffic_bytes / 1024) * self._prices.serverless_cache_ecpu_usd


class Meter:
    """The modelled bill; see `runtime.interfaces.CostMeter`."""

    def __init__(self, model: CostModel, budget: Budget) -> None:
        self._model, self.budget = model, budget
        self._billed_s = 0.0
        self._blocks = 0
        self._warm_environments = 0
        self._warm_slots: set[int] = set()
        self._round_actors_usd = self._reserved_s = 0.0

    @property
    def free_usd(self) -> float:
        return self.budget.free_usd

    @property
    def spent_usd(self) -> float:
        return self.budget.spent_usd

    @property
    def reserved_usd(self) -> float:
        return self.budget.reserved_usd

    def forfeit(self) -> float:
        return self.budget.forfeit()

    def add_spent(self, usd: float) -> None:
        """Counts what was spent without this meter, whether the budget holds it or not."""
        self.budget.reserve(_ELSEWHERE, 0.0)
        self.budget.settle(_ELSEWHERE, usd)

    def open_round(self, actors: int, *, smallest: int) -> int:
        """Reserves the round's worst case with as many actors as fit, at most ``actors``.

        Returns:
            How many; 0, and nothing reserved, where not even ``smallest`` fit.
        """
        if not self.open_standing():
            return 0
        granted = self.add_actors(range(actors))
        if granted < min(smallest, actors):
            self.budget.release(_BASE)
            for slot in range(granted):
                self.budget.release(_actor_name(slot, 0))
            return 0
        return granted

    def open_standing(self) -> bool:
        """Reserves a round's worst case but for its actors; False, and nothing reserved, where it does not fit."""
        self._round_actors_usd, self._reserved_s = 0.0, self._round_seconds_max
        return self.budget.reserve(_BASE, sum(self._standing_usd(self._reserved_s)))

    @property
    def holds_another(self) -> bool:
        """Whether the standing part of another round would fit beside all that is reserved now."""
        return sum(self._standing_usd(self._round_seconds_max)) <= self.free_usd

    def add_actors(self, slots: Sequence[int]) -> int:
        """Reserves the worst case of one actor for each of these slots, in order; returns for how many it fits."""
        for granted, slot in enumerate(slots):
            if not self.budget.reserve(_actor_name(slot, 0), self._model.actor_worst_case_usd):
                return granted
        return len(slots)

    def add_replacement(self, slot: int, attempt: int) -> bool:
        """Reserves the worst case of another actor for ``slot``; False where it does not fit."""
        return self.budget.reserve(_actor_name(slot, attempt), self._model.actor_worst_case_usd)

    @contextmanager
    def ahead(self, actors: int) -> Iterator[None]:
        """A block in which as many actors more are reserved as fit, at most ``actors``.

        A ledger that is saved in it covers what is started later, without being saved again for each.
        """
        names = [f"{_AHEAD} {index}" for index in range(actors)]
        try:
            for name in names:
                if not self.budget.reserve(name, self._model.actor_worst_case_usd):
                    break
            yield
        finally:
            for name in names:
                self.budget.release(name)

    def actor_ended(
        self, slot: int, attempt: int, *, billed_s: float, init_s: float, is_metered: bool, traffic_bytes: int
    ) -> float:
        """Settles one invocation; returns its billed seconds, with its start-up where it started cold.

        Cold is what a slot starts first, and what replaces an actor that failed.

        Args:
            billed_s, init_s, is_metered: As in `runtime.interfaces.Outcome`.
        """
        is_provisioned = self._model.is_provisioned(slot)
        if is_metered:
            # A provisioned environment is started before anything is billed.
            is_provisioned = is_provisioned and init_s == 0.0
        elif not is_provisioned and (attempt > 0 or not self._is_warm(slot)):
            billed_s += min(init_s, INIT_SECONDS_MAX)
        self._warm_slots.add(slot)
        usd = self._model.actor_usd(is_provisioned=is_provisioned, billed_s=billed_s, traffic_bytes=traffic_bytes)
        self._round_actors_usd += usd
        self.budget.settle(_actor_name(slot, attempt), usd)
        return billed_s

    def actor_never_started(self, slot: int, attempt: int) -> None:
        """Frees the reservation of an invocation that was given up before it began."""
        self.budget.settle(_actor_name(slot, attempt), 0.0)

    def close_round(self, *, actors_started: int, seconds: float) -> RoundBill:
        """Settles the learner, the infrastructure and provisioned capacity for ``seconds`` of modelled time.

        Actors in flight, if any, stay reserved; what ends in the next round is that one's.

        Args:
            actors_started: So many slots, the first ones, are warm from now on, in a resumption too.

        Raises:
            BudgetError: The round took longer than its worst case. What it cost is recorded all the same.
        """
        self._warm_environments = max(self._warm_environments, actors_started)
        provisioned_usd, learner_usd, infrastructure_usd, is_within = self._settle_standing(seconds)
        bill = RoundBill(self._round_actors_usd, provisioned_usd, learner_usd, infrastructure_usd,
                         self._round_actors_usd + provisioned_usd + learner_usd + infrastructure_usd)
        if not is_within:
            raise BudgetError(f"the round took {seconds:.1f} s, longer than the {self._reserved_s:.0f} s "
                              "reserved for it (fleet.round_deadline_s + learner.update_timeout_s)")
        return bill

    def _is_warm(self, slot: int) -> bool:
        return slot < self._warm_environments or slot in self._warm_slots

    @property
    def _round_seconds_max(self) -> float:
        return self._model.round_seconds_max

    def _standing_usd(self, seconds: float) -> tuple[float, float, float]:
        """Provisioned capacity, learner and infrastructure for so many seconds more."""
        blocks = self._blocks_until(self._billed_s + seconds) - self._blocks
        return (self._model.provisioned_usd(blocks), self._model.learner_usd(seconds),
                self._model.infrastructure_usd(seconds))

    def _settle_standing(self, seconds: float) -> tuple[float, float, float, bool]:
        """Spends the round's standing reservation; also returns whether it was large enough."""
        parts = self._standing_usd(seconds)
        self._billed_s += seconds
        self._blocks = self._blocks_until(self._billed_s)
        return *parts, self.budget.settle(_BASE, sum(parts))

    def get_state(self) -> dict[str, Any]:
        return {"budget": self.budget.get_state(), "billed_s": self._billed_s, "blocks": self._blocks,
                "warm_environments": self._warm_environments}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Raises: ValueError, KeyError or TypeError, and nothing is changed: It is not a meter's state."""
        billed_s, blocks, warm_environments = state["billed_s"], state["blocks"], state["warm_environments"]
        if not (0.0 <= billed_s < math.inf and blocks >= 0 and warm_environments >= 0):
            raise ValueError("negative or infinite")
        self.budget.set_state(state["budget"])
        self._billed_s, self._blocks, self._warm_environments = float(billed_s), int(blocks), int(warm_environments)

    @staticmethod
    def _blocks_until(seconds: float) -> int:
        return math.ceil(seconds / PROVISIONED_BLOCK_S)


def steady_clock() -> Callable[[], float]:
    """A clock that gives seconds since 1970 and is not moved when somebody sets the system's."""
    started_s, started_at_s = time.time(), time.monotonic()
    return lambda: started_s + time.monotonic() - started_at_s


class WallClockMeter(Meter):
    """The bill of a deployed learner: what stands is paid for by the clock, between rounds and before the first too.

    What nobody billed before this learner's own start counts at the price of the dearest instance type.
    """

    def __init__(
        self, model: CostModel, budget: Budget, *, billed_since_s: float, now: Callable[[], float] = time.time
    ) -> None:
        """Args:
            billed_since_s: When the deployment began to cost money, seconds since 1970.
            now: Seconds since 1970.
        """
        super().__init__(model, budget)
        self._billed_since_s, self._billed_until_s, self._now = billed_since_s, billed_since_s, now
        self._started_s = now()
        self._is_redeployed = False

    @property
    def covered_until_s(self) -> float:
        """Until then, what is spent and reserved holds all that stands; seconds since 1970."""
        return self._billed_until_s + (self._reserved_s if self.budget.is_reserved(_BASE) else 0.0)

    @property
    def burn_usd_per_hour(self) -> float:
        """What stands costs so much."""
        return self._model.burn_usd_per_hour

    def catch_up(self) -> float:
        """Spends what stood idle since the last bill, whether the budget holds it or not; returns it in dollars."""
        spent_usd = self.budget.spent_usd
        self.budget.reserve(_BASE, 0.0)
        self._settle_standing(self._unbilled_s)
        return self.budget.spent_usd - spent_usd

    def forfeit(self) -> float:
        """Counts what is reserved for actors as spent, and what stands until now; returns the first in dollars.

        Of a deployment that is over, what was reserved for what stood counts too: nobody knows when it ended.
        """
        if not self._is_redeployed:
            self.budget.release(_BASE)
        self._is_redeployed = False
        forfeited_usd = super().forfeit()
        self.catch_up()
        return forfeited_usd

    def close_round(self, *, actors_started: int, seconds: float) -> RoundBill:
        """As `Meter.close_round`, but for the time that passed since the last bill, not ``seconds``."""
        return super().close_round(actors_started=actors_started, seconds=self._unbilled_s)

    def _standing_usd(self, seconds: float) -> tuple[float, float, float]:
        """With the requests that keep the run's files in the bucket."""
        before_s = min(seconds, max(0.0, self._started_s - self._billed_until_s))
        provisioned_usd, _, infrastructure_usd = super()._standing_usd(seconds)
        return (provisioned_usd, self._model.predecessor_usd(before_s) + self._model.learner_usd(seconds - before_s),
                infrastructure_usd + self._model.upload_usd(seconds))

    def _settle_standing(self, seconds: float) -> tuple[float, float, float, bool]:
        settled = super()._settle_standing(seconds)
        self._billed_until_s += seconds
        return settled

    @property
    def _round_seconds_max(self) -> float:
        """With what passed since the last bill, and an allowance for what is done between two rounds."""
        return self._unbilled_s + self._model.round_seconds_max + BETWEEN_ROUNDS_S

    @property
    def _unbilled_s(self) -> float:
        return max(0.0, self._now() - self._billed_until_s)

    def get_state(self) -> dict[str, Any]:
        return super().get_state() | {"billed_until_s": self._billed_until_s}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Of a deployment that is over, nothing more is billed from its last bill to the start of this one."""
        billed_until_s = state["billed_until_s"]
        if not 0.0 <= billed_until_s < math.inf:
            raise ValueError("billed_until_s is negative or infinite")
        super().set_state(state)
        self._billed_until_s = max(float(billed_until_s), self._billed_since_s)
        self._is_redeployed = billed_until_s < self._billed_since_s
        if self._is_redeployed:
            # Its provisioned capacity begins a block of its own.
            self._billed_s = float(self._blocks * PROVISIONED_BLOCK_S)


def _actor_name(slot: int, attempt: int) -> str:
    return f"actor {slot}.{attempt}"
