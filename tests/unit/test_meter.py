"""What a run is billed: every price against plain arithmetic, and the budget kept over random traces of rounds."""

from __future__ import annotations

import json
import math
import random
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.config import Experiment, experiment_from_tree
from runtime.cost.budget import Budget
from runtime.cost.meter import CostModel, Meter, vcpu_share
from runtime.cost.prices import PRICES, LambdaPrices, PriceTable
from runtime.errors import BudgetError, ExperimentError

PLAIN = PriceTable(
    region="nowhere-1", as_of="2026-01-01",
    functions={"x86_64": LambdaPrices(0.008, 0.001, 0.004), "arm64": LambdaPrices(0.006, 0.0008, 0.003)},
    request_usd=0.5, instance_hour_usd={"small": 36.0, "large": 72.0},
    serverless_cache_gib_hour_usd=3600.0, serverless_cache_gib_min=0.25, serverless_cache_ecpu_usd=0.0625,
    cache_node_hour_usd=7200.0, volume_gib_month_usd=730.0, public_ipv4_hour_usd=360.0)
"""Prices with which every sum can be done in one's head."""
TRAFFIC_MAX = 10_000


def experiment(**sections: dict[str, Any]) -> Experiment:
    tree: dict[str, Any] = {"environment": {"id": "Hopper-v5"}, "budget": {"usd": 1.0},
                            "scaler": {"actors_min": 2, "actors_max": 8},
                            "actor": {"memory_mib": 1024, "timeout_s": 60, "provisioned": 0},
                            "learner": {"instance_types": ["small"], "volume_gib": 1, "update_timeout_s": 40},
                            "fleet": {"round_deadline_s": 80}, "cache": {"kind": "learner"}}
    for name, section in sections.items():
        tree[name] = tree.get(name, {}) | section
    return experiment_from_tree(tree, source="test").resolved()


def model(prices: PriceTable = PLAIN, **sections: dict[str, Any]) -> CostModel:
    return CostModel(experiment(**sections), prices, traffic_bytes_max=TRAFFIC_MAX)


# One actor


@pytest.mark.parametrize(("memory_mib", "share"), [(1769, 1.0), (10_240, 1.0), (128, 128 / 1769), (884, 884 / 1769)])
def test_a_function_gets_the_share_of_a_vcpu_that_its_memory_buys(memory_mib: int, share: float):
    assert vcpu_share(memory_mib) == share


@pytest.mark.parametrize(("architecture", "slot", "rate"), [
    ("x86_64", 0, 0.004), ("x86_64", 2, 0.004), ("x86_64", 3, 0.008), ("arm64", 2, 0.003), ("arm64", 3, 0.006)])
def test_provisioned_slots_pay_the_provisioned_duration(architecture: str, slot: int, rate: float):
    cost = model(actor={"architecture": architecture, "provisioned": 3, "memory_mib": 2048})
    assert cost.is_provisioned(slot) == (slot < 3)
    assert cost.actor_usd(slot, billed_s=1.5, init_s=0.0, traffic_bytes=0) == pytest.approx(1.5 * 2 * rate + 0.5)


@pytest.mark.parametrize(("billed_s", "init_s", "milliseconds"), [
    (0.0, 0.0, 0), (0.0001, 0.0, 1), (0.001, 0.0, 1), (0.0011, 0.0, 2), (0.9991, 0.0, 1000), (1.0, 0.25, 1250),
    (0.0004, 0.0004, 1), (0.0006, 0.0006, 2),
    # Sums that come out a hair too large in floating point: three tenths are 300 ms, not 301.
    (0.1, 0.2, 300), (1.1, 2.2, 3300), (0.001 * 3, 0.0, 3)])
def test_a_duration_is_rounded_up_to_the_millisecond(billed_s: float, init_s: float, milliseconds: int):
    usd = model().actor_usd(0, billed_s=billed_s, init_s=init_s, traffic_bytes=0)
    assert usd == pytest.approx(milliseconds / 1000 * 0.008 + 0.5, abs=1e-12)


@pytest.mark.parametrize(("traffic_bytes", "units"), [(0, 0), (1, 1), (1024, 1), (1025, 2), (10_240, 10)])
@pytest.mark.parametrize(("kind", "price"), [("serverless", 0.0625), ("node", 0.0), ("learner", 0.0)])
def test_traffic_is_paid_by_the_kib_with_a_serverless_cache(kind: str, price: float, traffic_bytes: int, units: int):
    usd = model(cache={"kind": kind}).actor_usd(0, billed_s=0.0, init_s=0.0, traffic_bytes=traffic_bytes)
    assert usd == pytest.approx(0.5 + units * price)


def test_the_price_table_as_shipped():
    cost = model(PRICES, learner={"instance_types": ["c5.9xlarge", "no-such"]})
    assert cost.actor_usd(0, billed_s=10.0, init_s=0.0, traffic_bytes=0) == pytest.approx(1.66667e-4 + 2e-7)
    assert cost.learner_usd(3600.0) == pytest.approx(1.53)
    for prices in PRICES.functions.values():
        # Provisioned concurrency pays off when it is used, and arm64 is the cheaper one.
        assert prices.provisioned_duration_usd + prices.provisioned_capacity_usd < prices.on_demand_usd
    assert PRICES.functions["arm64"].on_demand_usd < PRICES.functions["x86_64"].on_demand_usd
    assert PRICES.region
    assert len(PRICES.as_of) == len("2026-11-20")


@settings(max_examples=200, deadline=None)
@given(data=st.data(), provisioned=st.integers(0, 8), kind=st.sampled_from(["serverless", "node", "learner"]),
       architecture=st.sampled_from(["x86_64", "arm64"]), memory_mib=st.integers(128, 10_240),
       timeout_s=st.integers(1, 900), slot=st.integers(0, 9), attempt=st.integers(0, 2))
def test_the_worst_case_is_one(data, provisioned, kind, architecture, memory_mib, timeout_s, slot, attempt):
    cost = model(PRICES, learner={"instance_types": ["c5.9xlarge"]}, cache={"kind": kind},
                 fleet={"round_deadline_s": 1800},
                 actor={"provisioned": provisioned, "architecture": architecture, "memory_mib": memory_mib,
                        "timeout_s": timeout_s})
    meter = Meter(cost, Budget(1000.0))
    assert meter.open_round(10, smallest=10) == 10
    if attempt:
        assert meter.add_replacement(slot, attempt)
    name = f"{slot}.{attempt}"
    reserved = {key: units for key, units in meter.budget.get_state()["reserved"].items() if key.endswith(f" {name}")}
    assert len(reserved) == 1
    before = meter.budget.get_state()["spent"]
    meter.actor_ended(slot, attempt, billed_s=data.draw(st.floats(0, timeout_s) | st.just(float(timeout_s))),
                      init_s=data.draw(st.floats(0, 10) | st.sampled_from([10.0, 60.0])),
                      traffic_bytes=data.draw(st.integers(0, TRAFFIC_MAX) | st.just(TRAFFIC_MAX)))
    assert meter.budget.get_state()["spent"] - before <= sum(reserved.values())


# What passes by the hour


def test_the_learner_is_paid_by_the_second_at_the_first_types_rate():
    assert model(learner={"instance_types": ["large", "small"]}).learner_usd(10.0) == pytest.approx(0.2)


@pytest.mark.parametrize(("kind", "hourly"), [("serverless", 900.0), ("node", 7200.0), ("learner", 0.0)])
def test_cache_volume_and_address_are_paid_by_the_second(kind: str, hourly: float):
    cost = model(cache={"kind": kind}, learner={"volume_gib": 20})
    assert cost.infrastructure_usd(1800.0) == pytest.approx((hourly + 20 * 1.0 + 360.0) / 2)


@pytest.mark.parametrize(("architecture", "rate"), [("x86_64", 0.001), ("arm64", 0.0008)])
def test_provisioned_capacity_is_paid_by_the_five_minutes(architecture: str, rate: float):
    cost = model(actor={"architecture": architecture, "provisioned": 5, "memory_mib": 512})
    assert cost.provisioned_usd(1) == pytest.approx(300 * 5 * 0.5 * rate)
    assert cost.provisioned_usd(7) == pytest.approx(7 * cost.provisioned_usd(1))
    assert cost.provisioned_usd(0) == 0.0


def test_a_round_can_last_as_long_as_its_deadline_and_its_update():
    assert model().round_seconds_max == 120


@pytest.mark.parametrize("instance_type", ["g99.huge", "Small", ""])
def test_a_type_without_price_is_refused_with_those_that_have_one(instance_type: str):
    with pytest.raises(ExperimentError, match="large, small") as caught:
        model(learner={"instance_types": [instance_type, "small"]})
    assert repr(instance_type) in str(caught.value)


# Rounds


def unlimited(**sections: dict[str, Any]) -> Meter:
    return Meter(model(**sections), Budget(1e6))


def test_a_block_of_provisioned_capacity_is_paid_once():
    meter = unlimited(actor={"provisioned": 2})
    block_usd = 300 * 2 * 1.0 * 0.001
    paid = []
    for seconds in (100.0, 100.0, 100.0, 0.5, 120.0, 120.0, 59.5, 0.001):
        meter.open_round(0, smallest=0)
        paid.append(meter.close_round(actors_started=0, seconds=seconds).provisioned_cost_usd)
    # 300 s are one block exactly; the second begins after them, at 600 s it is used up to the last second.
    assert paid == [pytest.approx(block_usd), 0, 0, pytest.approx(block_usd), 0, 0, 0, pytest.approx(block_usd)]


def test_a_round_may_run_into_several_blocks():
    meter = unlimited(actor={"provisioned": 1}, fleet={"round_deadline_s": 1000})
    meter.open_round(0, smallest=0)
    assert meter.close_round(actors_started=0, seconds=650.0).provisioned_cost_usd == pytest.approx(3 * 300 * 0.001)


def cold_seconds(meter: Meter, slot: int, attempt: int, init_s: float = 2.0) -> float:
    return meter.actor_ended(slot, attempt, billed_s=1.0, init_s=init_s, traffic_bytes=0) - 1.0


def test_only_on_demand_actors_start_cold_and_only_where_none_was_warm():
    meter = unlimited(actor={"provisioned": 1})
    meter.open_round(3, smallest=1)
    assert [cold_seconds(meter, slot, 0) for slot in range(3)] == [0.0, 2.0, 2.0]
    meter.close_round(actors_started=3, seconds=1.0)
    meter.open_round(5, smallest=1)
    assert [cold_seconds(meter, slot, 0) for slot in range(5)] == [0.0, 0.0, 0.0, 2.0, 2.0]
    meter.close_round(actors_started=5, seconds=1.0)
    # A small round does not make the others cold again.
    meter.open_round(2, smallest=1)
    assert [cold_seconds(meter, slot, 0) for slot in range(2)] == [0.0, 0.0]
    meter.close_round(actors_started=2, seconds=1.0)
    meter.open_round(5, smallest=1)
    assert [cold_seconds(meter, slot, 0) for slot in range(5)] == [0.0] * 5


def test_a_replacement_starts_cold_but_in_a_provisioned_slot():
    meter = unlimited(actor={"provisioned": 1})
    for _ in range(2):
        meter.open_round(2, smallest=1)
        for slot in range(2):
            cold_seconds(meter, slot, 0)
            assert meter.add_replacement(slot, 1)
        assert [cold_seconds(meter, slot, 1) for slot in range(2)] == [0.0, 2.0]
        meter.close_round(actors_started=2, seconds=1.0)


def test_a_cold_start_is_paid_for_ten_seconds_at_most():
    meter = unlimited()
    meter.open_round(1, smallest=1)
    assert cold_seconds(meter, 0, 0, init_s=1000.0) == 10.0
    assert meter.close_round(actors_started=1, seconds=0.0).actors_cost_usd == pytest.approx(11 * 0.008 + 0.5)


def test_a_cold_start_is_in_the_bill():
    meter = unlimited()
    meter.open_round(1, smallest=1)
    assert meter.actor_ended(0, 0, billed_s=1.0, init_s=0.5, traffic_bytes=0) == 1.5
    bill = meter.close_round(actors_started=1, seconds=3.0)
    assert bill.actors_cost_usd == pytest.approx(1.5 * 0.008 + 0.5)
    assert bill.learner_cost_usd == pytest.approx(3 * 0.01)
    assert bill.infrastructure_cost_usd == pytest.approx(3 / 3600 * 361.0)
    assert bill.round_cost_usd == pytest.approx(1.5 * 0.008 + 0.5 + 0.03 + 3 / 3600 * 361.0)
    assert meter.budget.spent_usd == pytest.approx(bill.round_cost_usd)


def round_base_usd() -> float:
    return 120 * 0.01 + 120 / 3600 * 361.0


ACTOR_WORST_USD = 70 * 0.008 + 0.5


@pytest.mark.parametrize(("fits", "wanted", "smallest", "granted"), [
    (5, 5, 2, 5), (5, 9, 2, 5), (2, 9, 2, 2), (1, 9, 2, 0), (0, 9, 2, 0), (3, 3, 3, 3), (2, 3, 3, 0),
    # A round that wants fewer than the smallest gets those, or nothing.
    (1, 1, 2, 1), (0, 1, 2, 0)])
def test_a_round_shrinks_to_what_fits_or_is_refused(fits: int, wanted: int, smallest: int, granted: int):
    meter = Meter(model(), Budget(round_base_usd() + (fits + 0.5) * ACTOR_WORST_USD))
    before = meter.budget.get_state()
    assert meter.open_round(wanted, smallest=smallest) == granted
    if granted:
        assert meter.budget.reserved_usd == pytest.approx(round_base_usd() + granted * ACTOR_WORST_USD)
    else:
        assert meter.budget.get_state() == before


def test_a_budget_that_does_not_hold_the_learner_holds_no_round():
    meter = Meter(model(), Budget(round_base_usd() * 0.99))
    assert meter.open_round(0, smallest=0) == 0
    assert meter.budget.reserved_usd == 0.0


def test_the_first_block_of_provisioned_capacity_is_reserved_too():
    block_usd = 300 * 8 * 0.001
    provisioned_worst_usd = 60 * 0.004 + 0.5
    needed_usd = round_base_usd() + block_usd + 2 * provisioned_worst_usd
    assert Meter(model(actor={"provisioned": 8}), Budget(needed_usd * 1.001)).open_round(2, smallest=2) == 2
    assert Meter(model(actor={"provisioned": 8}), Budget(needed_usd * 0.999)).open_round(2, smallest=2) == 0


def test_a_boost_is_granted_in_order_as_far_as_it_fits():
    meter = Meter(model(), Budget(round_base_usd() + 4.5 * ACTOR_WORST_USD))
    assert meter.open_round(2, smallest=2) == 2
    assert meter.add_actors(range(2, 8)) == 2
    assert not meter.add_replacement(0, 1)
    for slot in range(4):
        meter.actor_ended(slot, 0, billed_s=1.0, init_s=0.0, traffic_bytes=0)
    with pytest.raises(BudgetError):
        meter.actor_ended(4, 0, billed_s=1.0, init_s=0.0, traffic_bytes=0)
    assert meter.add_replacement(0, 1)


def test_a_round_longer_than_its_worst_case_is_recorded_and_refused():
    meter = unlimited()
    meter.open_round(1, smallest=1)
    meter.actor_ended(0, 0, billed_s=1.0, init_s=0.0, traffic_bytes=0)
    with pytest.raises(BudgetError, match="fleet.round_deadline_s"):
        meter.close_round(actors_started=1, seconds=500.0)
    assert meter.budget.spent_usd == pytest.approx(0.508 + 500 * 0.01 + 500 / 3600 * 361.0)
    assert meter.budget.reserved_usd == 0.0


def test_cancelling_frees_all():
    meter = unlimited()
    meter.open_round(5, smallest=1)
    meter.budget.release_all()
    assert (meter.budget.reserved_usd, meter.budget.spent_usd) == (0.0, 0.0)
    assert meter.open_round(5, smallest=1) == 5


def test_the_state_goes_through_json_and_continues_alike():
    def play(meter: Meter, rounds: int) -> list[Any]:
        bills = []
        for _ in range(rounds):
            meter.open_round(3, smallest=1)
            for slot in range(3):
                meter.actor_ended(slot, 0, billed_s=2.0, init_s=1.0, traffic_bytes=100)
            bills.append(meter.close_round(actors_started=3, seconds=110.0))
        return bills

    sections = {"actor": {"provisioned": 1}, "cache": {"kind": "serverless"}}
    whole = unlimited(**sections)
    bills = play(whole, 7)
    first = unlimited(**sections)
    assert play(first, 3) == bills[:3]
    second = unlimited(**sections)
    second.set_state(json.loads(json.dumps(first.get_state(), allow_nan=False)))
    assert play(second, 4) == bills[3:]
    assert second.get_state() == whole.get_state()


class Trace:
    """Plays random rounds on a meter, and checks the budget after every step."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        provisioned = self.random.choice([0, 0, 2, 8])
        self.timeout_s = self.random.choice([1, 60, 900])
        self.model = CostModel(experiment(
            actor={"provisioned": provisioned, "timeout_s": self.timeout_s,
                   "architecture": self.random.choice(["x86_64", "arm64"]),
                   "memory_mib": self.random.choice([128, 1024, 10_240])},
            learner={"instance_types": ["g5.xlarge"]}, fleet={"round_deadline_s": 2 * self.timeout_s},
            cache={"kind": self.random.choice(["serverless", "node", "learner"])}), PRICES,
            traffic_bytes_max=TRAFFIC_MAX)
        self.usd = self.random.choice([0.3, 0.7, 0.02, 0.05, self.random.uniform(0.01, 1.0)])
        self.meter = Meter(self.model, Budget(self.usd))
        whole = Budget(1.0)
        whole.reserve("all", 1.0)
        self.limit = Fraction(self.usd) * whole.get_state()["reserved"]["all"]
        self.billed_usd = 0.0
        self.refused = self.shrunk = self.closed = 0

    def check(self) -> None:
        budget = self.meter.budget
        state = budget.get_state()
        assert state["spent"] + sum(state["reserved"].values()) <= self.limit
        assert budget.spent_usd + budget.reserved_usd <= self.usd
        assert min([state["spent"], *state["reserved"].values()]) >= 0

    def end(self, slot: int, attempt: int) -> None:
        draw = self.random
        billed_s = draw.choice([0.0, draw.uniform(0, self.timeout_s), float(self.timeout_s)])
        seconds = self.meter.actor_ended(slot, attempt, billed_s=billed_s, init_s=draw.choice([0.0, 0.4, 30.0]),
                                         traffic_bytes=draw.choice([0, 1000, TRAFFIC_MAX]))
        assert billed_s <= seconds <= billed_s + 10.0
        self.check()

    def round(self) -> None:
        draw = self.random
        wanted, smallest = draw.randint(1, 8), 2
        spent_before = self.meter.budget.spent_usd
        granted = self.meter.open_round(wanted, smallest=smallest)
        self.check()
        assert granted == 0 or min(smallest, wanted) <= granted <= wanted
        if granted == 0:
            self.refused += 1
            assert self.meter.budget.reserved_usd == 0.0
            return
        self.shrunk += granted < wanted
        boost = range(granted, draw.randint(granted, 8)) if granted == wanted else range(0)
        granted += self.meter.add_actors(boost)
        self.check()
        running = [(slot, 0) for slot in range(granted)]
        if draw.random() < 0.1:
            self.meter.budget.release_all()
            self.check()
            assert self.meter.budget.spent_usd == spent_before
            return
        while running and draw.random() > 0.03:
            slot, attempt = running.pop(draw.randrange(len(running)))
            self.end(slot, attempt)
            if draw.random() < 0.3 and attempt < 3 and self.meter.add_replacement(slot, attempt + 1):
                running.append((slot, attempt + 1))
                self.check()
        if running:
            # Killed: what is reserved counts as spent.
            self.meter.budget.forfeit()
            self.check()
            self.billed_usd = self.meter.budget.spent_usd
            return
        seconds = draw.choice([0.0, draw.uniform(0, self.model.round_seconds_max), self.model.round_seconds_max])
        bill = self.meter.close_round(actors_started=granted, seconds=seconds)
        self.check()
        self.closed += 1
        parts = (bill.actors_cost_usd, bill.provisioned_cost_usd, bill.learner_cost_usd, bill.infrastructure_cost_usd)
        assert all(part >= 0.0 for part in parts)
        assert bill.round_cost_usd == pytest.approx(sum(parts), rel=1e-12)
        assert self.meter.budget.spent_usd - spent_before == pytest.approx(bill.round_cost_usd, abs=1e-8)
        assert self.meter.budget.reserved_usd == 0.0
        self.billed_usd += bill.round_cost_usd
        assert self.meter.budget.spent_usd == pytest.approx(self.billed_usd, abs=1e-7)

    def travel(self) -> None:
        state = json.loads(json.dumps(self.meter.get_state(), allow_nan=False))
        self.meter = Meter(self.model, Budget(self.usd))
        self.meter.set_state(state)
        assert self.meter.get_state() == state


@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_no_trace_of_rounds_exceeds_the_budget(seed: int):
    trace = Trace(seed)
    for _ in range(25):
        trace.round()
        if trace.random.random() < 0.2:
            trace.travel()
    assert not math.isnan(trace.meter.budget.spent_usd)


def test_the_traces_reach_what_they_are_meant_to_reach():
    traces = [Trace(seed) for seed in range(40)]
    for trace in traces:
        for _ in range(25):
            trace.round()
    assert sum(trace.closed for trace in traces) > 50
    assert sum(trace.refused for trace in traces) > 50
    assert sum(trace.shrunk for trace in traces) > 5
