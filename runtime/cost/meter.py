"""What AWS would bill for a run, modelled, and each round's worst case reserved before it starts.

On one machine nothing is billed. What is computed here is what the same run would cost on AWS Lambda and EC2 at list
price, from measured CPU times: actors at the share of a vCPU that their memory buys, the learner for as long as a
round would take there. docs/cost.md says what is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from runtime.config import Experiment
from runtime.cost.budget import Budget
from runtime.cost.prices import PriceTable
from runtime.errors import BudgetError, ExperimentError
from runtime.interfaces import RoundBill

MIB_PER_VCPU = 1769
INIT_SECONDS_MAX = 10.0
"""Lambda ends a start-up that takes longer."""
PROVISIONED_BLOCK_S = 300
_HOURS_PER_MONTH = 730
_BASE = "round"


def vcpu_share(memory_mib: int) -> float:
    """Share of one vCPU that a single-threaded function of this memory gets."""
    return min(1.0, memory_mib / MIB_PER_VCPU)


class CostModel:
    """Prices of an experiment's parts, in US dollars."""

    def __init__(self, experiment: Experiment, prices: PriceTable, *, traffic_bytes_max: int) -> None:
        """Args:
            experiment: Resolved.
            traffic_bytes_max: Most that one invocation moves through the cache.

        Raises:
            ExperimentError: ``learner.instance_types[0]`` has no price.
        """
        self._actor, self._learner, self._fleet = experiment.actor, experiment.learner, experiment.fleet
        self._cache_kind, self._prices = experiment.cache.kind, prices
        self._traffic_bytes_max = traffic_bytes_max
        instance_type = experiment.learner.instance_types[0]
        if instance_type not in prices.instance_hour_usd:
            raise ExperimentError(
                f"learner.instance_types[0] = {instance_type!r} has no price; allowed: "
                f"{', '.join(sorted(prices.instance_hour_usd))} ({prices.region}, {prices.as_of})")
        self._instance_s_usd = prices.instance_hour_usd[instance_type] / 3600
        self._memory_gib = experiment.actor.memory_mib / 1024
        self._function = prices.functions[experiment.actor.architecture]

    def is_provisioned(self, slot: int) -> bool:
        return slot < self._actor.provisioned

    def actor_usd(self, slot: int, *, billed_s: float, init_s: float, traffic_bytes: int) -> float:
        """One invocation: its duration, rounded up to the millisecond, its request, and its traffic."""
        rate = (self._function.provisioned_duration_usd if self.is_provisioned(slot)
                else self._function.on_demand_usd)
        milliseconds = math.ceil(round((billed_s + init_s) * 1000, 6))
        return (milliseconds / 1000 * self._memory_gib * rate + self._prices.request_usd
                + self._traffic_usd(traffic_bytes))

    def actor_worst_case_usd(self, slot: int) -> float:
        init_s = 0.0 if self.is_provisioned(slot) else INIT_SECONDS_MAX
        return self.actor_usd(slot, billed_s=self._actor.timeout_s, init_s=init_s,
                              traffic_bytes=self._traffic_bytes_max)

    def learner_usd(self, seconds: float) -> float:
        """The instance alone."""
        return seconds * self._instance_s_usd

    def infrastructure_usd(self, seconds: float) -> float:
        """The cache's capacity, the learner's volume and its public address."""
        prices = self._prices
        hourly = (prices.volume_gib_month_usd * self._learner.volume_gib / _HOURS_PER_MONTH
                  + prices.public_ipv4_hour_usd)
        if self._cache_kind == "serverless":
            hourly += prices.serverless_cache_gib_hour_usd * prices.serverless_cache_gib_min
        elif self._cache_kind == "node":
            hourly += prices.cache_node_hour_usd
        return seconds / 3600 * hourly

    def provisioned_usd(self, blocks: int) -> float:
        """Provisioned capacity for so many blocks of five minutes."""
        return (blocks * PROVISIONED_BLOCK_S * self._actor.provisioned * self._memory_gib
                * self._function.provisioned_capacity_usd)

    @property
    def round_seconds_max(self) -> float:
        """Longest that a round may take, evaluation included."""
        return self._fleet.round_deadline_s + self._learner.update_timeout_s

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
        self._round_actors_usd = 0.0

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

    def open_round(self, actors: int, *, smallest: int) -> int:
        """Reserves the round's worst case with as many actors as fit, at most ``actors``.

        Returns:
            How many; 0, and nothing reserved, where not even ``smallest`` fit.
        """
        self._round_actors_usd = 0.0
        blocks = self._blocks_until(self._billed_s + self._model.round_seconds_max) - self._blocks
        base_usd = (self._model.learner_usd(self._model.round_seconds_max)
                    + self._model.infrastructure_usd(self._model.round_seconds_max)
                    + self._model.provisioned_usd(blocks))
        if not self.budget.reserve(_BASE, base_usd):
            return 0
        granted = self.add_actors(range(actors))
        if granted < min(smallest, actors):
            self.budget.release_all()
            return 0
        return granted

    def add_actors(self, slots: range) -> int:
        """Reserves the worst case of one actor for each of these slots, in order; returns for how many it fits."""
        for granted, slot in enumerate(slots):
            if not self.budget.reserve(_actor_name(slot, 0), self._model.actor_worst_case_usd(slot)):
                return granted
        return len(slots)

    def add_replacement(self, slot: int, attempt: int) -> bool:
        """Reserves the worst case of another actor for ``slot``; False where it does not fit."""
        return self.budget.reserve(_actor_name(slot, attempt), self._model.actor_worst_case_usd(slot))

    def actor_ended(self, slot: int, attempt: int, *, billed_s: float, init_s: float, traffic_bytes: int) -> float:
        """Settles one invocation; returns its billed seconds, with its start-up where it started cold."""
        is_cold = not self._model.is_provisioned(slot) and (slot >= self._warm_environments or attempt > 0)
        cold_s = min(init_s, INIT_SECONDS_MAX) if is_cold else 0.0
        usd = self._model.actor_usd(slot, billed_s=billed_s, init_s=cold_s, traffic_bytes=traffic_bytes)
        self._round_actors_usd += usd
        self.budget.settle(_actor_name(slot, attempt), usd)
        return billed_s + cold_s

    def actor_never_started(self, slot: int, attempt: int) -> None:
        """Frees the reservation of an invocation that was given up before it began."""
        self.budget.settle(_actor_name(slot, attempt), 0.0)

    def close_round(self, *, actors_started: int, seconds: float) -> RoundBill:
        """Settles the learner, the infrastructure and provisioned capacity for ``seconds`` of modelled time.

        Raises:
            BudgetError: The round took longer than its worst case. What it cost is recorded all the same.
        """
        self._warm_environments = max(self._warm_environments, actors_started)
        self._billed_s += seconds
        blocks = self._blocks_until(self._billed_s) - self._blocks
        self._blocks += blocks
        learner_usd, infrastructure_usd = self._model.learner_usd(seconds), self._model.infrastructure_usd(seconds)
        provisioned_usd = self._model.provisioned_usd(blocks)
        is_within = self.budget.settle(_BASE, learner_usd + infrastructure_usd + provisioned_usd)
        bill = RoundBill(self._round_actors_usd, provisioned_usd, learner_usd, infrastructure_usd,
                         self._round_actors_usd + provisioned_usd + learner_usd + infrastructure_usd)
        if not is_within:
            raise BudgetError(f"the round took {seconds:.1f} s, longer than the {self._model.round_seconds_max:.0f} s "
                              "reserved for it (fleet.round_deadline_s + learner.update_timeout_s)")
        return bill

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


def _actor_name(slot: int, attempt: int) -> str:
    return f"actor {slot}.{attempt}"
