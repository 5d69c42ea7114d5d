"""A run's bill: every price against plain arithmetic, and the budget kept over random traces of rounds."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.errors import BudgetError, ExperimentError
from runtime.experiment.learner import COORDINATOR_MEMORY_MIB
from runtime.experiment.loading import experiment_from_tree
from runtime.money.budget import UNITS_PER_USD, Budget
from runtime.money.meter import BETWEEN_ROUNDS_S, BillingClock, Meter, steady_clock
from runtime.money.model import CostModel
from runtime.money.prices import PRICES, WATCHED_USD_PER_HOUR, LambdaPrices, PriceTable
from runtime.money.work import ACTOR, LEARNER, Limits, Work
from tests.helpers import cost_model, used

PLAIN = PriceTable(
    source="a test",
    region="nowhere-1",
    as_of="2026-01-01",
    functions={
        "x86_64": LambdaPrices(
            on_demand_usd=0.008, provisioned_capacity_usd=0.001, provisioned_duration_usd=0.004
        ),
        "arm64": LambdaPrices(
            on_demand_usd=0.006, provisioned_capacity_usd=0.0008, provisioned_duration_usd=0.003
        ),
    },
    request_usd=0.5,
    instance_hour_usd={"small": 36.0, "large": 72.0},
    serverless_cache_gib_hour_usd=3600.0,
    serverless_cache_gib_min=0.25,
    serverless_cache_ecpu_usd=0.0625,
    volume_gib_month_usd=730 / 30,
    public_ipv4_hour_usd=360.0,
    put_usd=0.25,
)
"""Simple prices whose sums are easy to check by hand."""
TRAFFIC_MAX = 10_000
FUNCTION = {"kind": "function", "function_memory_mib": 2048, "function_timeout_s": 30}
PROVISIONED = {"actor": {"provisioned": 2}}
TWO_TYPES = {"instance_types": ["small", "large"]}
SINCE_S = 1.8e9
ACTOR_WORST_USD = 70 * 0.008 + 0.5
BLOCK_USD = 300 * 2 * 0.001
LEDGER_USD = 4 * 0.125 * 0.25
"""Price of a write of the ledger: to the bucket, and for a quarter of that to the guard's table."""
HERE_S_USD = 0.01 + 361.0 / 3600
"""Dollars per second for the learner, its volume and its address."""
STANDING_S_USD = HERE_S_USD + 12 * 0.25 / 10 + WATCHED_USD_PER_HOUR / 3600
"""Dollars per second of a deployment: also twelve requests every ten seconds, CloudWatch and images."""
ROUND_USD = 120 * HERE_S_USD


def model(
    prices: PriceTable = PLAIN, options: dict[str, Any] | None = None, **sections: dict[str, Any]
) -> CostModel:
    tree: dict[str, Any] = {
        "environment": {"id": "Hopper-v5"},
        "budget": {"usd": 1.0},
        "scaler": {"kind": "nitro", "actors_min": 2, "actors_max": 8},
        "actor": {"memory_mib": 1024, "timeout_s": 60, "provisioned": 0},
        "learner": {"instance_types": ["small"], "update_timeout_s": 40},
        "fleet": {"round_deadline_s": 80},
        "cache": {"kind": "none"},
    }
    experiment = experiment_from_tree(sections, base=tree, source="test").resolved()
    return cost_model(experiment, prices, **{"traffic_bytes_max": TRAFFIC_MAX, **(options or {})})


class WallClock:
    """Seconds since 1970, which a test advances by hand."""

    def __init__(self, now_s: float = SINCE_S) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


def here(usd: float = 1e6, **sections: Any) -> Meter:
    return Meter(model(**sections), Budget(usd))


def deployed(
    clock: WallClock, *, usd: float = 1e6, since_s: float = SINCE_S, **sections: Any
) -> Meter:
    cost = model(options={"is_deployed": True}, **sections)
    return Meter(cost, Budget(usd), clock=BillingClock(since_s, now=clock))


def stored(meter: Meter) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(json.dumps(meter.get_state(), allow_nan=False))
    return state


def ended(
    meter: Meter,
    slot: int,
    attempt: int = 0,
    *,
    billed_s: float = 1.0,
    init_s: float = 0.0,
    is_metered: bool = False,
    traffic_bytes: int = 0,
) -> float:
    outcome = used(billed_s, init_s, is_metered=is_metered)
    return meter.settle(Work(ACTOR, slot, attempt), outcome, traffic_bytes=traffic_bytes)


def add(meter: Meter, slots: Iterable[int], attempt: int = 0) -> int:
    return meter.reserve([Work(ACTOR, slot, attempt) for slot in slots])


# Prices


@given(
    architecture=st.sampled_from(["x86_64", "arm64"]),
    memory_mib=st.integers(128, 10_240),
    milliseconds=st.integers(1, 900_000),
    traffic_bytes=st.integers(0, TRAFFIC_MAX),
    is_provisioned=st.booleans(),
    kind=st.sampled_from(["redis", "none"]),
)
def test_an_invocation_costs_its_duration_its_request_and_its_kibs(
    architecture, memory_mib, milliseconds, traffic_bytes, is_provisioned, kind
):
    actor = {"architecture": architecture, "memory_mib": memory_mib, "provisioned": 5}
    prices = model(actor=actor, cache={"kind": kind}).roles[ACTOR]
    function, gib = PLAIN.functions[architecture], memory_mib / 1024
    rate_usd = function.provisioned_duration_usd if is_provisioned else function.on_demand_usd
    kibs_usd = math.ceil(traffic_bytes / 1024) * (0.0625 if kind == "redis" else 0.0)
    expected_usd = milliseconds / 1000 * gib * rate_usd + 0.5 + kibs_usd
    # Parts of a millisecond are rounded up, but not the error of a sum of floats.
    for billed_s in (milliseconds, milliseconds - 0.9, milliseconds * (1 + 4e-16)):
        found_usd = prices.usd(
            is_provisioned=is_provisioned, billed_s=billed_s / 1000, traffic_bytes=traffic_bytes
        )
        assert found_usd == pytest.approx(expected_usd, abs=1e-9)
    # The worst case is on demand after the longest cold start, since provisioned capacity may not be up yet.
    on_demand_usd = prices.usd(is_provisioned=False, billed_s=70, traffic_bytes=TRAFFIC_MAX)
    assert prices.worst_case_usd() == on_demand_usd
    capacity_usd = 300 * 5 * gib * function.provisioned_capacity_usd
    assert prices.capacity_block_usd() == pytest.approx(capacity_usd)


@pytest.mark.parametrize(
    ("region", "gb_usd"), [("us-east-1", 0.09), ("eu-central-1", 0.09), ("sa-east-1", 0.154)]
)
def test_answers_to_a_trainer_outside_aws_leave_the_region_as_text(region: str, gb_usd: float):
    prices = PLAIN.model_copy(update={"region": region})
    pool, inside = (
        model(prices, learner=learner).roles[ACTOR] for learner in ({"kind": "external"}, {})
    )
    pool_usd, inside_usd = (
        one.usd(is_provisioned=False, billed_s=1, traffic_bytes=5, answer_bytes=3 * 10**6)
        for one in (pool, inside)
    )
    assert pool_usd - inside_usd == pytest.approx(0.004 * gb_usd, rel=1e-6)
    worst_usd = (TRAFFIC_MAX + 2) // 3 * 4 * gb_usd * 1e-9
    assert pool.worst_case_usd() - inside.worst_case_usd() == pytest.approx(worst_usd, rel=1e-2)


@pytest.mark.parametrize(("kind", "cache_usd"), [("redis", 900.0), ("none", 0.0)])
def test_what_stands_is_paid_by_the_second(kind: str, cache_usd: float):
    sections = {"cache": {"kind": kind}, "learner": TWO_TYPES}
    found = model(**sections).standing(1800.0, blocks=0)
    assert (found.learner_usd, found.infrastructure_usd) == pytest.approx(
        (18.0, (cache_usd + 361.0) / 2)
    )
    # Per month: ten metrics, the alarm and the images. Per minute: a metrics request.
    watched_usd = (10 * 0.30 + 0.10 + 0.36) / 730 + 0.0006
    there = model(options={"is_deployed": True}, **sections)
    kept = there.standing(1800.0, blocks=0, cache_s=600.0, predecessor_s=900.0)
    assert kept.learner_usd == pytest.approx(27.0), "half of the time at the dearest type's price"
    assert kept.infrastructure_usd == pytest.approx(
        361.0 / 2 + cache_usd / 6 + 180 * 12 * 0.25 + watched_usd / 2
    )


def test_a_cluster_costs_its_nodes_and_nothing_beside_them_and_every_type_needs_a_price():
    cluster = model(options={"nodes": 3, "is_deployed": True}, learner=TWO_TYPES)
    assert cluster.standing(60.0, blocks=5, predecessor_s=30.0).usd == pytest.approx(3 * 0.6)
    free = (cluster.ledger_usd, *(role.worst_case_usd() for role in cluster.roles.values()))
    assert free == (0.0, 0.0, 0.0)
    with pytest.raises(ExperimentError, match="'no-such' has no price; allowed: large, small"):
        model(options={"instance_type": "no-such"})


# Rounds


@pytest.mark.parametrize(
    ("provisioned", "init_s", "rate"),
    [
        (0, 2.0, 0.008),
        (1, 0.0, 0.004),
        # It started cold, so it found no provisioned environment.
        (1, 0.001, 0.008),
    ],
)
def test_what_the_platform_metered_is_billed_as_it_is(provisioned: int, init_s: float, rate: float):
    meter = here(actor={"provisioned": provisioned})
    assert meter.open_round(1, smallest=1) and add(meter, [0], 1)
    assert ended(meter, 0, 1, billed_s=3.0, init_s=init_s, is_metered=True) == 3.0
    bill = meter.close_round(0.0)
    assert (bill.actors_cost_usd, bill.cold_starts) == (pytest.approx(3 * rate + 0.5), init_s > 0)


def test_actors_stay_reserved_across_rounds_and_are_the_next_ones_bill():
    meter = here(ROUND_USD + 2.5 * ACTOR_WORST_USD)
    assert meter.open_standing() and add(meter, [0, 3]) == 2
    ended(meter, 0)
    first = meter.close_round(0.0)
    before = meter.budget.get_state()
    assert meter.open_round(3, smallest=3) == 0
    assert meter.budget.get_state() == before, "a refused round leaves actors in flight alone"
    assert meter.open_standing()
    ended(meter, 3, billed_s=2.0)
    second = meter.close_round(1.0)
    assert (first.actors_cost_usd, second.actors_cost_usd) == pytest.approx((0.508, 0.516))
    assert meter.spent_usd == pytest.approx(first.round_cost_usd + second.round_cost_usd)


@pytest.mark.parametrize(("fits", "ahead"), [(9, 3), (2, 2), (0, 0)])
def test_actors_ahead_are_reserved_while_a_ledger_is_saved_and_no_longer(fits: int, ahead: int):
    meter = here(ROUND_USD + (1 + fits + 0.5) * ACTOR_WORST_USD)
    assert meter.open_round(1, smallest=1) == 1
    before_usd = meter.reserved_usd
    with pytest.raises(KeyError), meter.ahead(3):
        assert meter.reserved_usd == pytest.approx(before_usd + ahead * ACTOR_WORST_USD)
        raise KeyError
    assert meter.reserved_usd == before_usd


def test_what_nobody_bills_costs_at_most_what_was_reserved_and_ends_nothing():
    meter = here()
    meter.open_round(1, smallest=1)
    worst_usd = meter.reserved_usd
    ended(meter, 0, billed_s=1e6)
    meter.close_round(500.0)
    assert (meter.spent_usd, meter.reserved_usd) == (pytest.approx(worst_usd), 0.0)


@pytest.mark.parametrize(
    ("slot", "attempt", "starts_cold"), [(0, 0, False), (1, 0, False), (2, 0, True), (1, 1, True)]
)
def test_a_tightened_limit_is_what_is_reserved_and_a_warm_slot_has_no_start(
    slot: int, attempt: int, starts_cold: bool
):
    limits, clock = Limits(2.0, 3.0, 4.0, is_tightened=True), WallClock()
    # AWS Lambda enforces the function's own limit, and may restart any environment.
    for meter, standing_usd, seconds in (
        (here(actor={"provisioned": 1}), 7 * HERE_S_USD, 2.0 + 10.0 * starts_cold),
        (deployed(clock, actor={"provisioned": 1}), 67 * STANDING_S_USD + LEDGER_USD, 70.0),
    ):
        meter.open_round(2, smallest=2)
        ended(meter, 0)
        ended(meter, 1)
        clock.now_s += 1.0
        meter.close_round(1.0)
        assert meter.open_standing(limits) and add(meter, [slot], attempt)
        assert meter.reserved_usd == pytest.approx(standing_usd + seconds * 0.008 + 0.5)


def test_a_learner_that_is_a_function_pays_for_no_instance():
    """An update with its start, its bucket requests and the loop, each computed by hand."""
    meter = here(learner=FUNCTION)
    request_usd = 0.5 + (3 + 4 * 0.08) * 0.25
    loop_s_usd = COORDINATOR_MEMORY_MIB / 1024 * 0.008
    for warm_s, actors in ((1.5, 1), (0.0, 0)):
        assert meter.open_round(actors, smallest=actors) == actors
        before_usd = meter.reserved_usd
        assert meter.budget.reservations["promised"] == pytest.approx(80 * 0.008 + request_usd)
        assert meter.reserve([Work(LEARNER, 0)]) == 1
        assert meter.reserved_usd == before_usd, "the function takes the place of the promise"
        assert meter.settle(Work(LEARNER, 0), used(2.0, 1.5)) == 2.0 + warm_s
        for slot in range(actors):
            ended(meter, slot)
        bill = meter.close_round(4.0)
        function_usd = (2.0 + warm_s) * 2 * 0.008 + request_usd
        assert bill.learner_cost_usd == pytest.approx(function_usd + 4.0 * loop_s_usd)
        assert (meter.reserved_usd, bill.cold_starts) == (0.0, actors), "its own start is none"
    meter.open_standing()
    assert meter.close_round(0.0).learner_cost_usd == 0.0, "without an update, the promise is void"


class Trace:
    """Plays random rounds on a meter and checks the budget after every step."""

    def __init__(self, seed: int, *, is_deployed: bool = False) -> None:
        self.random, self.is_deployed, self.clock = random.Random(seed), is_deployed, WallClock()
        choice = self.random.choice
        self.model = model(
            PRICES,
            {"is_deployed": is_deployed},
            actor={"provisioned": choice([0, 2, 8]), "memory_mib": choice([128, 1024, 10_240])},
            learner=choice([FUNCTION, {"instance_types": ["g5.xlarge"]}]),
        )
        froms_s = [SINCE_S + choice([0.0, choice(range(400))]) for _ in range(3)]
        self.billing = BillingClock(SINCE_S, *froms_s, now=self.clock) if is_deployed else None
        self.usd = choice([0.3, 0.7, 0.02, 0.05, self.random.uniform(0.01, 1.0)])
        self.meter = self.make_meter()

    def make_meter(self) -> Meter:
        return Meter(self.model, Budget(self.usd), clock=self.billing)

    def check(self) -> None:
        state = self.meter.budget.get_state()
        units = [state["spent"], *state["reserved"].values()]
        assert min(units) >= 0 and sum(units) <= Fraction(self.usd) * UNITS_PER_USD

    def end(self, slot: int, attempt: int, longest_s: float) -> None:
        # Only a platform meters usage, and it ends an actor at its own limit.
        draw, is_metered = self.random, self.is_deployed and self.random.random() < 0.5
        longest_s += 10.0 * is_metered
        before_usd, reserved_usd = self.meter.spent_usd, self.meter.reserved_usd
        ended(
            self.meter,
            slot,
            attempt,
            billed_s=draw.choice([0.0, draw.uniform(0, longest_s), longest_s]),
            init_s=draw.choice([0.0, 0.4, 30.0]),
            is_metered=is_metered,
            traffic_bytes=draw.choice([0, 1000, TRAFFIC_MAX]),
        )
        freed_usd = reserved_usd - self.meter.reserved_usd
        assert self.meter.spent_usd - before_usd <= freed_usd, "the worst case is one"

    def round(self) -> None:
        draw, meter, whole = self.random, self.meter, self.model.limits
        self.clock.now_s += draw.choice([0.0, 5.0, draw.uniform(0, 200)])
        shorter = [
            limit_s * draw.random() for limit_s in (whole.actor_s, whole.collect_s, whole.update_s)
        ]
        limits = draw.choice([whole, Limits(*shorter, is_tightened=True)])
        longest_s = whole.actor_s if self.is_deployed else limits.actor_s
        before_usd, wanted = meter.spent_usd, draw.randint(1, 8)
        is_held = meter.fits(wanted, limits)
        granted = meter.open_round(wanted, smallest=2, limits=limits)
        assert is_held == (granted == wanted)
        if granted == 0:
            assert meter.reserved_usd == 0.0
            return
        assert min(2, wanted) <= granted <= wanted
        if self.is_deployed:
            meter.wrote_ledger()
        running = [(slot, 0) for slot in range(granted)]
        while running and draw.random() > 0.03:
            self.check()
            slot, attempt = running.pop(draw.randrange(len(running)))
            self.end(slot, attempt, longest_s)
            if draw.random() < 0.3 and attempt < 3 and add(meter, [slot], attempt + 1):
                running.append((slot, attempt + 1))
        self.check()
        seconds = draw.choice([0.0, draw.uniform(0, limits.round_s), limits.round_s])
        self.clock.now_s += seconds
        if running:
            meter.forfeit()
        else:
            bill = meter.close_round(seconds)
            parts = [value for name, value in vars(bill).items() if name.endswith("_cost_usd")]
            assert min(parts) >= 0.0
            assert 2 * bill.round_cost_usd == pytest.approx(sum(parts), rel=1e-12)
            assert meter.spent_usd - before_usd == pytest.approx(bill.round_cost_usd, abs=1e-8)
        assert meter.reserved_usd == 0.0
        state = stored(meter)
        self.meter = self.make_meter()
        self.meter.set_state(state)
        assert self.meter.get_state() == state


@settings(max_examples=100)
@given(seed=st.integers(0, 2**32), is_deployed=st.booleans())
def test_no_trace_of_rounds_exceeds_the_budget(seed: int, is_deployed: bool):
    trace = Trace(seed, is_deployed=is_deployed)
    for _ in range(20):
        trace.round()
        trace.check()


@given(seed=st.integers(0, 2**32))
def test_kills_and_restores_cost_what_ran_and_nine_tenths_of_the_budget_are_used(seed: int):
    """Rounds that take up to their limits, killed now and then with actors in flight, until none fits any more."""
    draw, usd = random.Random(seed), random.Random(seed).uniform(30.0, 60.0)
    cost, limits = model(), Limits(1.0, 1.5, 0.5, is_tightened=True)
    meter = Meter(cost, Budget(usd))
    while meter.open_round(2, smallest=2, limits=limits):
        assert meter.spent_usd + meter.reserved_usd <= usd
        kept = stored(meter)
        for slot in range(draw.choice([0, 1, 2, 2, 2])):
            ended(meter, slot, billed_s=draw.uniform(0.5, 1.0), init_s=draw.uniform(0.0, 10.0))
        if not any(name.startswith(ACTOR) for name in meter.budget.reservations):
            meter.close_round(draw.uniform(1.0, 2.0))
            continue
        reserved_usd = sum(kept["budget"]["reserved"].values()) / UNITS_PER_USD
        before_usd, ran_s = kept["budget"]["spent"] / UNITS_PER_USD, draw.uniform(0.0, 3.0)
        meter = Meter(cost, Budget(usd), concurrency=1)
        meter.set_state(kept)
        forfeited_usd = meter.forfeit(ran_s)
        assert meter.reserved_usd == 0.0 and forfeited_usd <= reserved_usd
        assert meter.spent_usd == pytest.approx(before_usd + forfeited_usd)
        # Two requests, one CPU at a share of 1024 / 1769 to the millisecond, and the learner with disk and address.
        most_usd = 1.0 + (ran_s * 1769 / 1024 + 0.002) * 0.008 + ran_s * HERE_S_USD
        assert forfeited_usd <= most_usd + 1e-6
    assert 0.9 * usd <= meter.spent_usd <= usd


def test_what_ran_is_forfeited_and_all_that_is_reserved_if_that_is_unknown():
    meter = Meter(model(), Budget(100.0))
    meter.open_round(2, smallest=2)
    assert meter.forfeit(0.0) == pytest.approx(2 * 0.5), "two requests"
    meter.open_round(2, smallest=2)
    reserved_usd = meter.reserved_usd
    assert meter.forfeit() == pytest.approx(reserved_usd)


# By the clock

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), st.floats(0, 1000)),
        st.tuples(st.just("jump back"), st.floats(0, 1000)),
        # Seconds by the clock, and by the loop.
        st.tuples(st.just("round"), st.floats(0, 120), st.floats(0, 10_000)),
        st.tuples(st.just("catch up")),
        st.tuples(st.just("forfeit"), st.floats(0, 1000)),
    ),
    max_size=25,
)


@given(steps=STEPS, froms=st.lists(st.floats(0, 1500), min_size=3, max_size=3))
def test_what_stands_is_billed_by_the_clock_and_every_second_once(
    steps: list[tuple[Any, ...]], froms: list[float]
):
    cost = model(options={"is_deployed": True}, **PROVISIONED, cache={"kind": "redis"})
    clock = WallClock()
    billing = BillingClock(SINCE_S, *(SINCE_S + from_s for from_s in froms), now=clock)
    meter, billed_until_s, actors_usd = Meter(cost, Budget(1e6), clock=billing), SINCE_S, 0.0
    for what, *seconds in steps:
        if what in ("pass", "jump back"):
            clock.now_s += seconds[0] if what == "pass" else -seconds[0]
            continue
        state = stored(meter)
        meter = Meter(cost, Budget(1e6), clock=billing)
        meter.set_state(state)
        before_usd = meter.spent_usd
        if what == "catch up":
            assert meter.catch_up() == meter.spent_usd - before_usd
        else:
            assert meter.open_round(1, smallest=1) == 1
            meter.wrote_ledger()
            clock.now_s += seconds[0]
            ended(meter, 0, init_s=1.0, is_metered=True)
            actors_usd += 0.008 + 0.5 + LEDGER_USD
            if what == "round":
                bill = meter.close_round(seconds[1])
                assert meter.spent_usd - before_usd == pytest.approx(bill.round_cost_usd, abs=1e-6)
            else:
                # Whether the ledger was written for it is unknown.
                assert add(meter, [1]) == 1
                held_usd = ACTOR_WORST_USD + 10 * 0.0625 + LEDGER_USD
                assert meter.forfeit() == pytest.approx(held_usd)
                actors_usd += held_usd
        billed_until_s = max(billed_until_s, clock.now_s)
    stood_s = [max(0.0, billed_until_s - SINCE_S - from_s) for from_s in froms]
    assert meter.spent_usd - actors_usd == pytest.approx(
        stood_s[0] * STANDING_S_USD
        + stood_s[1] / 3600 * cost.cache_usd_per_hour
        + math.ceil(round(stood_s[2] / 300, 9)) * BLOCK_USD,
        abs=1e-3,
    )
    assert meter.reserved_usd == 0.0


def test_what_stood_before_a_learners_own_start_is_billed_as_the_dearest_type():
    clock = WallClock(SINCE_S + 100.0)
    meter = deployed(clock, learner=TWO_TYPES)
    clock.now_s += 50.0
    assert meter.catch_up() == pytest.approx(150 * STANDING_S_USD + 100 * 0.01)
    clock.now_s += 50.0
    assert meter.catch_up() == pytest.approx(50 * STANDING_S_USD)


def test_whoever_may_end_the_run_hears_first_when_a_round_ends_at_the_latest():
    heard: list[float] = []

    def refuse(ends_at_s: float) -> None:
        heard.append(ends_at_s)
        raise InterruptedError

    clock = BillingClock(SINCE_S, now=WallClock(SINCE_S + 50.0), begins=refuse)
    meter = Meter(model(), Budget(1e6), clock=clock)
    with pytest.raises(InterruptedError):
        meter.open_round(1, smallest=1)
    assert heard == [SINCE_S + 50.0 + meter.limits.round_s + BETWEEN_ROUNDS_S]
    assert meter.reserved_usd == 0.0


def test_a_round_that_takes_all_that_is_reserved_is_within_and_a_second_more_is_not():
    for too_long_s in (0.0, 1.0):
        clock = WallClock(SINCE_S + 50.0)
        meter = deployed(clock)
        meter.open_round(0, smallest=0)
        clock.now_s += 120 + 60 + too_long_s
        if too_long_s:
            with pytest.raises(BudgetError, match=r"231\.0 s"):
                meter.close_round(1.0)
        else:
            meter.close_round(1.0)
        assert meter.spent_usd == pytest.approx((230 + too_long_s) * STANDING_S_USD)


@pytest.mark.parametrize("is_open", [False, True])
def test_a_later_deployment_does_not_pay_for_the_gap_but_for_what_the_last_round_held(
    is_open: bool,
):
    """Nothing records how long the learner kept running after its last bill."""
    clock = WallClock()
    first = deployed(clock, **PROVISIONED)
    clock.now_s += 150.0
    first.catch_up()
    spent_usd = 150 * STANDING_S_USD + BLOCK_USD
    if is_open:
        first.open_round(2, smallest=1)
        spent_usd += first.reserved_usd
    state = stored(first)
    clock.now_s += 50_000.0
    second = deployed(clock, since_s=clock.now_s - 80.0, **PROVISIONED)
    second.set_state(state)
    second.forfeit()
    assert second.spent_usd == pytest.approx(spent_usd + 80 * STANDING_S_USD + BLOCK_USD)
    clock.now_s += 10.0
    assert second.catch_up() == pytest.approx(10 * STANDING_S_USD)


def test_setting_the_systems_clock_neither_bills_twice_nor_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(time, "time", lambda: 1_700_000_000.0)
    monkeypatch.setattr(time, "monotonic", lambda: 50.0)
    clock = steady_clock()
    monkeypatch.setattr(time, "time", lambda: 1_700_003_600.0)
    monkeypatch.setattr(time, "monotonic", lambda: 62.5)
    assert clock() == 1_700_000_012.5
