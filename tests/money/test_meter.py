"""A run's bill: every price against plain arithmetic, and the budget kept over random traces of rounds."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Iterable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.errors import BudgetError, ExperimentError
from runtime.experiment.learner import COORDINATOR_MEMORY_MIB
from runtime.experiment.loading import experiment_from_tree
from runtime.experiment.schema import Experiment
from runtime.money.budget import UNITS_PER_USD, Budget
from runtime.money.meter import (
    BETWEEN_ROUNDS_S,
    Meter,
    WallClockMeter,
    steady_clock,
)
from runtime.money.model import (
    WATCHED_USD_PER_HOUR,
    CostModel,
    FunctionPrices,
    Standing,
    vcpu_share,
)
from runtime.money.prices import PRICES
from runtime.money.work import (
    ACTOR,
    LEARNER,
    LambdaPrices,
    Limits,
    PriceTable,
    Work,
)
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
    volume_gib_month_usd=7.30,
    public_ipv4_hour_usd=360.0,
    put_usd=0.25,
)
"""Simple prices whose sums are easy to check by hand."""
TRAFFIC_MAX = 10_000


def experiment(**sections: dict[str, Any]) -> Experiment:
    tree: dict[str, Any] = {
        "environment": {"id": "Hopper-v5"},
        "budget": {"usd": 1.0},
        "scaler": {"kind": "nitro", "actors_min": 2, "actors_max": 8},
        "actor": {"memory_mib": 1024, "timeout_s": 60, "provisioned": 0},
        "learner": {"instance_types": ["small"], "update_timeout_s": 40},
        "fleet": {"round_deadline_s": 80},
        "cache": {"kind": "none"},
    }
    return experiment_from_tree(sections, base=tree, source="test").resolved()


def model(
    prices: PriceTable = PLAIN, *, is_deployed: bool = False, **sections: dict[str, Any]
) -> CostModel:
    return cost_model(
        experiment(**sections), prices, traffic_bytes_max=TRAFFIC_MAX, is_deployed=is_deployed
    )


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
    return meter.settle(
        Work(ACTOR, slot, attempt),
        used(billed_s, init_s, is_metered=is_metered),
        traffic_bytes=traffic_bytes,
    )


def add(meter: Meter, slots: Iterable[int], attempt: int = 0) -> int:
    return meter.reserve([Work(ACTOR, slot, attempt) for slot in slots])


# One actor


@pytest.mark.parametrize(
    ("memory_mib", "share"), [(1769, 1.0), (10_240, 1.0), (128, 128 / 1769), (884, 884 / 1769)]
)
def test_a_function_gets_the_share_of_a_vcpu_that_its_memory_buys(memory_mib: int, share: float):
    assert vcpu_share(memory_mib) == share


@pytest.mark.parametrize(
    ("architecture", "is_provisioned", "rate"),
    [
        ("x86_64", True, 0.004),
        ("x86_64", False, 0.008),
        ("arm64", True, 0.003),
        ("arm64", False, 0.006),
    ],
)
def test_provisioned_capacity_pays_the_provisioned_duration(
    architecture: str, is_provisioned: bool, rate: float
):
    cost = model(actor={"architecture": architecture, "memory_mib": 2048})
    usd = cost.roles[ACTOR].usd(is_provisioned=is_provisioned, billed_s=1.5, traffic_bytes=0)
    assert usd == pytest.approx(1.5 * 2 * rate + 0.5)


@pytest.mark.parametrize(
    ("billed_s", "milliseconds"),
    [
        (0.0, 0),
        (0.0001, 1),
        (0.001, 1),
        (0.0011, 2),
        (0.9991, 1000),
        (1.25, 1250),
        (0.0004 + 0.0004, 1),
        (0.0006 + 0.0006, 2),
        # Sums that come out slightly too large in floating point: three tenths are 300 ms, not 301.
        (0.1 + 0.2, 300),
        (1.1 + 2.2, 3300),
        (0.001 * 3, 3),
    ],
)
def test_a_duration_is_rounded_up_to_the_millisecond(billed_s: float, milliseconds: int):
    usd = model().roles[ACTOR].usd(is_provisioned=False, billed_s=billed_s, traffic_bytes=0)
    assert usd == pytest.approx(milliseconds / 1000 * 0.008 + 0.5, abs=1e-12)


@pytest.mark.parametrize(
    ("traffic_bytes", "units"), [(0, 0), (1, 1), (1024, 1), (1025, 2), (10_240, 10)]
)
@pytest.mark.parametrize(("kind", "price"), [("redis", 0.0625), ("none", 0.0)])
def test_traffic_is_paid_by_the_kib_with_a_cache(
    kind: str, price: float, traffic_bytes: int, units: int
):
    cost = model(cache={"kind": kind})
    usd = cost.roles[ACTOR].usd(is_provisioned=False, billed_s=0.0, traffic_bytes=traffic_bytes)
    assert usd == pytest.approx(0.5 + units * price)


@pytest.mark.parametrize("provisioned", [0, 8])
@pytest.mark.parametrize(("architecture", "rate"), [("x86_64", 0.008), ("arm64", 0.006)])
def test_the_worst_case_is_on_demand_after_the_longest_cold_start(
    provisioned: int, architecture: str, rate: float
):
    """Provisioned capacity may not be up yet."""
    cost = model(
        actor={"provisioned": provisioned, "architecture": architecture, "memory_mib": 2048},
        cache={"kind": "redis"},
    )
    # 10,000 bytes count as 10 KiB, rounded up.
    assert cost.roles[ACTOR].worst_case_usd() == pytest.approx(
        (60 + 10) * 2 * rate + 0.5 + 10 * 0.0625
    )


@settings(max_examples=200)
@given(
    data=st.data(),
    provisioned=st.integers(0, 8),
    kind=st.sampled_from(["redis", "none"]),
    architecture=st.sampled_from(["x86_64", "arm64"]),
    memory_mib=st.integers(128, 10_240),
    timeout_s=st.integers(1, 900),
    slot=st.integers(0, 9),
    attempt=st.integers(0, 2),
    is_metered=st.booleans(),
)
def test_the_worst_case_is_one(
    data, provisioned, kind, architecture, memory_mib, timeout_s, slot, attempt, is_metered
):
    cost = model(
        PRICES,
        learner={"instance_types": ["c5.9xlarge"]},
        cache={"kind": kind},
        fleet={"round_deadline_s": 1800},
        actor={
            "provisioned": provisioned,
            "architecture": architecture,
            "memory_mib": memory_mib,
            "timeout_s": timeout_s,
        },
    )
    meter = Meter(cost, Budget(1000.0))
    assert meter.open_round(10, smallest=10) == 10
    if attempt:
        assert add(meter, [slot], attempt)
    name = f"{slot}.{attempt}"
    reserved = {
        key: units
        for key, units in meter.budget.get_state()["reserved"].items()
        if key.endswith(f" {name}")
    }
    assert len(reserved) == 1
    before = meter.budget.get_state()["spent"]
    # The metered time includes start-up, which Lambda ends after 10 s.
    longest_s = timeout_s + (10.0 if is_metered else 0.0)
    ended(
        meter,
        slot,
        attempt,
        billed_s=data.draw(st.floats(0, longest_s) | st.just(longest_s)),
        init_s=data.draw(st.floats(0, 10) | st.sampled_from([0.0, 10.0, 60.0])),
        is_metered=is_metered,
        traffic_bytes=data.draw(st.integers(0, TRAFFIC_MAX) | st.just(TRAFFIC_MAX)),
    )
    assert meter.budget.get_state()["spent"] - before <= sum(reserved.values())


# Costs by the hour


def test_the_learner_is_paid_at_the_rate_of_its_type_where_that_is_known():
    wanted = experiment(learner={"instance_types": ["small"]})
    cost = cost_model(wanted, PLAIN, instance_type="large")
    assert cost.learner_usd_per_hour == pytest.approx(72.0)
    with pytest.raises(ExperimentError, match="'no-such' has no price; allowed: large, small"):
        cost_model(wanted, PLAIN, instance_type="no-such")


@pytest.mark.parametrize(("kind", "cache_usd"), [("redis", 900.0), ("none", 0.0)])
def test_what_stands_is_paid_by_the_second(kind: str, cache_usd: float):
    types = {"instance_types": ["small", "large"]}
    found = model(cache={"kind": kind}, learner=types).standing(1800.0, blocks=0)
    assert (found.learner_usd, found.infrastructure_usd) == pytest.approx(
        (18.0, (cache_usd + 1.0 + 360.0) / 2)
    )
    # A deployment also keeps its files with twelve requests every ten seconds, and is watched. Per month: eleven
    # metrics, a dashboard, six metrics under alarms and the images. Per minute: one metrics request.
    watched_usd = (11 * 0.30 + 3.0 + 0.6 + 0.36) / 730 + 0.0006
    deployed = model(cache={"kind": kind}, learner=types, is_deployed=True)
    kept = deployed.standing(1800.0, blocks=0, cache_s=600.0, predecessor_s=900.0)
    assert kept.learner_usd == pytest.approx(27.0), "half of the time at the dearest type's price"
    assert kept.infrastructure_usd == pytest.approx(
        361.0 / 2 + cache_usd / 6 + 180 * 12 * 0.25 + watched_usd / 2
    )
    assert kept.usd == pytest.approx(kept.learner_usd + kept.infrastructure_usd)


def test_a_cluster_costs_its_nodes_and_nothing_beside_them() -> None:
    found = experiment(learner={"instance_types": ["small", "large"], "update_timeout_s": 40})
    cluster = cost_model(found, PLAIN, nodes=3)
    assert cluster.standing(60.0, blocks=5, predecessor_s=30.0) == Standing(
        0.0, pytest.approx(3 * 0.6), 0.0
    )
    free = (cluster.ledger_usd, *(role.worst_case_usd() for role in cluster.roles.values()))
    assert free == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(("architecture", "rate"), [("x86_64", 0.001), ("arm64", 0.0008)])
def test_provisioned_capacity_is_paid_by_the_five_minutes(architecture: str, rate: float):
    cost = model(actor={"architecture": architecture, "provisioned": 5, "memory_mib": 512})
    assert cost.provisioned_usd(1) == pytest.approx(300 * 5 * 0.5 * rate)
    assert cost.provisioned_usd(7) == pytest.approx(7 * cost.provisioned_usd(1))
    assert cost.provisioned_usd(0) == 0.0


@pytest.mark.parametrize(("waves", "seconds"), [(1, 120), (3, 280)])
def test_a_round_can_last_as_long_as_its_deadlines_and_its_update(waves: int, seconds: int):
    assert cost_model(experiment(), PLAIN, waves=waves).limits.round_s == seconds


# Rounds


def unlimited(**sections: dict[str, Any]) -> Meter:
    return Meter(model(**sections), Budget(1e6))


def test_a_block_of_provisioned_capacity_is_paid_once():
    meter = unlimited(actor={"provisioned": 2})
    block_usd = 300 * 2 * 1.0 * 0.001
    paid = []
    for seconds in (100.0, 100.0, 100.0, 0.5, 120.0, 120.0, 59.5, 0.001):
        meter.open_round(0, smallest=0)
        paid.append(meter.close_round(seconds).provisioned_cost_usd)
    # 300 s are exactly one block. The second block starts after them, and at 600 s it is used up to the last second.
    assert paid == [
        pytest.approx(block_usd),
        0,
        0,
        pytest.approx(block_usd),
        0,
        0,
        0,
        pytest.approx(block_usd),
    ]


def cold_seconds(meter: Meter, slot: int, attempt: int, init_s: float = 2.0) -> float:
    return ended(meter, slot, attempt, init_s=init_s) - 1.0


def test_only_on_demand_actors_start_cold_and_only_where_none_was_warm():
    meter = unlimited(actor={"provisioned": 1})
    meter.open_round(3, smallest=1)
    assert [cold_seconds(meter, slot, 0) for slot in range(3)] == [0.0, 2.0, 2.0]
    meter.close_round(1.0)
    meter.open_round(5, smallest=1)
    assert [cold_seconds(meter, slot, 0) for slot in range(5)] == [0.0, 0.0, 0.0, 2.0, 2.0]
    meter.close_round(1.0)
    # A small round does not make the other slots cold again.
    meter.open_round(2, smallest=1)
    assert [cold_seconds(meter, slot, 0) for slot in range(2)] == [0.0, 0.0]
    meter.close_round(1.0)
    second = unlimited(actor={"provisioned": 1})
    second.set_state(json.loads(json.dumps(meter.get_state())))
    for one in (meter, second):
        one.open_round(5, smallest=1)
        assert [cold_seconds(one, slot, 0) for slot in range(5)] == [0.0] * 5


def test_a_slot_that_is_used_again_in_its_round_is_warm_unless_its_actor_failed():
    meter = unlimited()
    assert meter.open_standing()
    seen = []
    for slot, attempt in ((1, 0), (1, 0), (0, 0), (1, 1), (1, 0), (0, 0), (2, 1)):
        assert add(meter, [slot], attempt)
        seen.append(cold_seconds(meter, slot, attempt))
    assert seen == [2.0, 0.0, 2.0, 2.0, 0.0, 0.0, 2.0]


def test_a_lost_process_makes_its_replacement_start_cold():
    meter = unlimited()
    assert meter.open_round(1, smallest=1)
    ended(meter, 0)
    assert add(meter, [0])
    lost = replace(used(1.0, 2.0), replaced_process="its process ended with SIGKILL")
    assert meter.settle(Work(ACTOR, 0), lost) == 3.0


def test_actors_stay_reserved_across_rounds_and_are_the_next_ones_bill():
    meter = unlimited()
    assert meter.open_standing()
    assert add(meter, [0, 3]) == 2
    ended(meter, 0)
    first = meter.close_round(5.0)
    assert meter.reserved_usd == pytest.approx(ACTOR_WORST_USD)
    assert meter.open_standing()
    assert meter.reserved_usd == pytest.approx(round_base_usd() + ACTOR_WORST_USD)
    ended(meter, 3, billed_s=2.0)
    second = meter.close_round(5.0)
    assert (first.actors_cost_usd, second.actors_cost_usd) == (
        pytest.approx(0.508),
        pytest.approx(0.516),
    )
    assert meter.reserved_usd == 0.0
    assert meter.spent_usd == pytest.approx(first.round_cost_usd + second.round_cost_usd)


def test_a_round_that_does_not_fit_leaves_actors_in_flight_alone():
    meter = Meter(model(), Budget(round_base_usd() + 2.5 * ACTOR_WORST_USD))
    assert add(meter, [7]) == 1
    before = meter.budget.get_state()
    assert meter.open_round(3, smallest=3) == 0
    assert meter.budget.get_state() == before
    assert meter.open_round(1, smallest=1) == 1


@pytest.mark.parametrize(("fits", "ahead"), [(9, 3), (2, 2), (0, 0)])
def test_actors_ahead_are_reserved_while_a_ledger_is_saved_and_no_longer(fits: int, ahead: int):
    meter = Meter(model(), Budget(round_base_usd() + (1 + fits + 0.5) * ACTOR_WORST_USD))
    assert meter.open_round(1, smallest=1) == 1
    before = meter.budget.get_state()
    with meter.ahead(3):
        assert meter.reserved_usd == pytest.approx(round_base_usd() + (1 + ahead) * ACTOR_WORST_USD)
    assert meter.budget.get_state() == before
    with pytest.raises(KeyError), meter.ahead(3):
        raise KeyError
    assert meter.budget.get_state() == before


@pytest.mark.parametrize("attempt", [0, 1])
@pytest.mark.parametrize(
    ("provisioned", "init_s", "rate"),
    [
        (0, 0.0, 0.008),
        (0, 2.0, 0.008),
        (1, 0.0, 0.004),
        # It started cold, so it found no provisioned environment.
        (1, 2.0, 0.008),
        (1, 0.001, 0.008),
    ],
)
def test_what_the_platform_metered_is_billed_as_it_is(
    provisioned: int, init_s: float, rate: float, attempt: int
):
    meter = unlimited(actor={"provisioned": provisioned})
    meter.open_round(1, smallest=1)
    assert add(meter, [0], 1)
    assert ended(meter, 0, attempt, billed_s=3.0, init_s=init_s, is_metered=True) == 3.0
    assert meter.close_round(0.0).actors_cost_usd == pytest.approx(3.0 * rate + 0.5)


def round_base_usd() -> float:
    return 120 * 0.01 + 120 / 3600 * 361.0


ACTOR_WORST_USD = 70 * 0.008 + 0.5


@pytest.mark.parametrize(
    ("fits", "wanted", "smallest", "granted"),
    [
        (5, 5, 2, 5),
        (5, 9, 2, 5),
        (2, 9, 2, 2),
        (1, 9, 2, 0),
        (0, 9, 2, 0),
        (3, 3, 3, 3),
        (2, 3, 3, 0),
        # A round that wants fewer than the smallest number gets what it wants, or nothing.
        (1, 1, 2, 1),
        (0, 1, 2, 0),
    ],
)
def test_a_round_shrinks_to_what_fits_or_is_refused(
    fits: int, wanted: int, smallest: int, granted: int
):
    meter = Meter(model(), Budget(round_base_usd() + (fits + 0.5) * ACTOR_WORST_USD))
    before = meter.budget.get_state()
    assert meter.open_round(wanted, smallest=smallest) == granted
    if granted:
        assert meter.budget.reserved_usd == pytest.approx(
            round_base_usd() + granted * ACTOR_WORST_USD
        )
    else:
        assert meter.budget.get_state() == before


def test_what_nobody_bills_costs_at_most_what_was_reserved_and_ends_nothing():
    meter = unlimited()
    meter.open_round(1, smallest=1)
    worst_usd = meter.reserved_usd
    ended(meter, 0, billed_s=1e6)
    meter.close_round(500.0)
    assert meter.spent_usd == pytest.approx(worst_usd)
    assert meter.budget.reserved_usd == 0.0


class Told:
    """Records events as JSON stores them."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def append(self, kind: str, **fields: Any) -> None:
        self.events.append(json.loads(json.dumps({"event": kind, **fields}, allow_nan=False)))


_NO_SECONDS = st.sampled_from([math.nan, math.inf, -math.inf, -1e-9, -1.0, 1e9, 1e300])
_SECONDS = st.floats(0.0, 60.0)


@settings(max_examples=200)
@given(
    seconds=st.tuples(_NO_SECONDS, _SECONDS | _NO_SECONDS) | st.tuples(_SECONDS, _NO_SECONDS),
    is_metered=st.booleans(),
    provisioned=st.integers(0, 1),
    attempt=st.integers(0, 1),
    is_by_the_clock=st.booleans(),
    role=st.sampled_from([ACTOR, LEARNER]),
)
def test_seconds_that_are_none_cost_what_was_reserved_and_an_event_says_so(
    seconds: tuple[float, float],
    is_metered: bool,
    provisioned: int,
    attempt: int,
    is_by_the_clock: bool,
    role: str,
):
    told, cost = (
        Told(),
        model(
            actor={"provisioned": provisioned},
            cache={"kind": "none"},
            learner={"kind": "function", "update_timeout_s": 60},
            is_deployed=is_by_the_clock,
        ),
    )
    meter = (
        WallClockMeter(
            cost, Budget(1e6), billed_since_s=WallClock().now_s, now=WallClock(), events=told
        )
        if is_by_the_clock
        else Meter(cost, Budget(1e6), events=told)
    )
    assert meter.open_standing()
    work = Work(role, 0, attempt)
    before_usd = meter.reserved_usd if role == ACTOR else None
    assert meter.reserve([work]) == 1
    reserved_usd = meter.reserved_usd
    worst_usd = cost.roles[role].worst_case_usd()
    assert before_usd is None or reserved_usd - before_usd == pytest.approx(worst_usd)
    billed_s = meter.settle(work, used(seconds[0], seconds[1], is_metered=is_metered))
    assert meter.spent_usd == pytest.approx(worst_usd)
    assert meter.reserved_usd == pytest.approx(reserved_usd - worst_usd)
    assert billed_s == 60.0
    (event,) = told.events
    assert event == {
        "event": "usage_unknown",
        "role": role,
        "slot": 0,
        "attempt": attempt,
        "billed_s": str(seconds[0]),
        "init_s": str(seconds[1]),
        "usd": pytest.approx(worst_usd),
    }
    bill = meter.close_round(0.0)
    assert (bill.actors_cost_usd if role == ACTOR else bill.learner_cost_usd) >= worst_usd * 0.999


def test_the_state_goes_through_json_and_continues_alike():
    def play(meter: Meter, rounds: int) -> list[Any]:
        bills = []
        for _ in range(rounds):
            meter.open_round(3, smallest=1)
            for slot in range(3):
                ended(meter, slot, billed_s=2.0, init_s=1.0, traffic_bytes=100)
            bills.append(meter.close_round(110.0))
        return bills

    sections = {"actor": {"provisioned": 1}, "cache": {"kind": "redis"}}
    whole = unlimited(**sections)
    bills = play(whole, 7)
    first = unlimited(**sections)
    assert play(first, 3) == bills[:3]
    second = unlimited(**sections)
    second.set_state(json.loads(json.dumps(first.get_state(), allow_nan=False)))
    assert play(second, 4) == bills[3:]
    assert second.get_state() == whole.get_state()


class WallClock:
    """Seconds since 1970, which a test advances by hand."""

    def __init__(self, now_s: float = 1.8e9) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


FUNCTION = {"kind": "function", "function_memory_mib": 2048, "function_timeout_s": 30}


class Trace:
    """Plays random rounds on a meter and checks the budget after every step."""

    def __init__(self, seed: int, *, is_deployed: bool = False) -> None:
        self.random, self.is_deployed, self.clock = random.Random(seed), is_deployed, WallClock()
        provisioned = self.random.choice([0, 0, 2, 8])
        self.is_function = self.random.random() < 0.5
        self.timeout_s = self.random.choice([1, 60, 900])
        self.model = cost_model(
            experiment(
                actor={
                    "provisioned": provisioned,
                    "timeout_s": self.timeout_s,
                    "architecture": self.random.choice(["x86_64", "arm64"]),
                    "memory_mib": self.random.choice([128, 1024, 10_240]),
                },
                learner=FUNCTION if self.is_function else {"instance_types": ["g5.xlarge"]},
                fleet={"round_deadline_s": 2 * self.timeout_s},
                cache={
                    "kind": "none" if self.is_function else self.random.choice(["redis", "none"])
                },
            ),
            PRICES,
            traffic_bytes_max=TRAFFIC_MAX,
            is_deployed=is_deployed,
        )
        self.froms_s = {
            part: self.clock.now_s + self.random.choice([0.0, self.random.uniform(0, 400)])
            for part in ("learner_from_s", "cache_from_s", "provisioned_from_s")
        }
        self.promised_usd, self.was_idle = 0.0, True
        self.usd = self.random.choice([0.3, 0.7, 0.02, 0.05, self.random.uniform(0.01, 1.0)])
        self.meter = self.make_meter()
        whole = Budget(1.0)
        whole.reserve("all", 1.0)
        self.limit = Fraction(self.usd) * whole.get_state()["reserved"]["all"]
        self.billed_usd = 0.0
        self.refused = self.shrunk = self.closed = self.is_tightened = 0
        self.actor_s = self.timeout_s

    def make_meter(self) -> Meter:
        if not self.is_deployed:
            return Meter(self.model, Budget(self.usd))
        return WallClockMeter(
            self.model,
            Budget(self.usd),
            billed_since_s=WallClock().now_s,
            now=self.clock,
            **self.froms_s,
        )

    def draw_limits(self) -> Limits:
        """Draws the experiment's limits or shorter ones."""
        whole, share = self.model.limits, self.random.random
        return self.random.choice(
            [
                whole,
                Limits(
                    whole.actor_s * share(),
                    whole.collect_s * share(),
                    whole.update_s * share(),
                    factor=1.5,
                ),
            ]
        )

    def check(self) -> None:
        budget = self.meter.budget
        state = budget.get_state()
        assert state["spent"] + sum(state["reserved"].values()) <= self.limit
        assert budget.spent_usd + budget.reserved_usd <= self.usd
        assert min([state["spent"], *state["reserved"].values()]) >= 0

    def save(self) -> None:
        """Writes new reservations, as a deployment does before it uses them."""
        promised_usd = self.meter.spent_usd + self.meter.reserved_usd
        is_idle = self.meter.reserved_usd == 0.0
        if promised_usd > self.promised_usd or (self.was_idle and not is_idle):
            self.promised_usd = promised_usd
            self.meter.wrote_ledger()
        self.was_idle = is_idle
        self.check()

    def learn(self) -> None:
        """Redeems what every round promises the learner function."""
        works = [Work(LEARNER, slot) for slot in range(self.model.functions_promised)]
        assert self.meter.reserve(works) == len(works)
        self.save()
        for work in works:
            self.meter.settle(work, used(self.random.uniform(0, 30), 10.0))
        self.check()

    def end(self, slot: int, attempt: int) -> None:
        draw = self.random
        # Only a platform meters usage, and it ends an actor at its own limit.
        is_metered = self.is_deployed and draw.random() < 0.5
        longest_s = self.actor_s + (10.0 if is_metered else 0.0)
        billed_s = draw.choice([0.0, draw.uniform(0, longest_s), longest_s])
        seconds = ended(
            self.meter,
            slot,
            attempt,
            billed_s=billed_s,
            init_s=draw.choice([0.0, 0.4, 30.0]),
            is_metered=is_metered,
            traffic_bytes=draw.choice([0, 1000, TRAFFIC_MAX]),
        )
        assert billed_s <= seconds <= billed_s + (0.0 if is_metered else 10.0)
        self.check()

    def round(self) -> None:
        draw = self.random
        wanted, smallest = draw.randint(1, 8), 2
        self.clock.now_s += draw.choice([0.0, 5.0, draw.uniform(0, 200)])
        spent_before = self.meter.budget.spent_usd
        limits = self.draw_limits()
        self.actor_s = self.timeout_s if self.is_deployed else limits.actor_s
        self.is_tightened += limits.is_tightened
        is_held, granted = (
            self.meter.fits(wanted, limits),
            self.meter.open_round(wanted, smallest=smallest, limits=limits),
        )
        assert is_held == (granted == wanted)
        self.check()
        assert granted == 0 or min(smallest, wanted) <= granted <= wanted
        if granted == 0:
            self.refused += 1
            assert self.meter.budget.reserved_usd == 0.0
            return
        self.save()
        self.shrunk += granted < wanted
        boost = range(granted, draw.randint(granted, 8)) if granted == wanted else range(0)
        granted += add(self.meter, boost)
        self.save()
        running = [(slot, 0) for slot in range(granted)]
        if draw.random() < 0.1:
            before_usd = self.meter.spent_usd
            for slot, attempt in running:
                self.meter.cancel(Work(ACTOR, slot, attempt))
            running.clear()
            self.check()
            assert self.meter.spent_usd == before_usd
        while running and draw.random() > 0.03:
            slot, attempt = running.pop(draw.randrange(len(running)))
            self.end(slot, attempt)
            if draw.random() < 0.3 and attempt < 3 and add(self.meter, [slot], attempt + 1):
                running.append((slot, attempt + 1))
                self.save()
        if self.is_function and draw.random() < 0.8:
            self.learn()
        longest_s = limits.round_s
        seconds = draw.choice([0.0, draw.uniform(0, longest_s), longest_s])
        self.clock.now_s += seconds
        if running:
            # Killed: the reserved amount counts as spent.
            self.meter.forfeit()
            assert self.meter.reserved_usd == 0.0
            self.check()
            self.billed_usd = self.meter.budget.spent_usd
            return
        bill = self.meter.close_round(seconds)
        self.check()
        self.closed += 1
        parts = (
            bill.actors_cost_usd,
            bill.provisioned_cost_usd,
            bill.learner_cost_usd,
            bill.infrastructure_cost_usd,
        )
        assert all(part >= 0.0 for part in parts)
        assert bill.round_cost_usd == pytest.approx(sum(parts), rel=1e-12)
        assert self.meter.budget.spent_usd - spent_before == pytest.approx(
            bill.round_cost_usd, abs=1e-8
        )
        assert self.meter.budget.reserved_usd == 0.0
        self.billed_usd += bill.round_cost_usd
        assert self.meter.budget.spent_usd == pytest.approx(self.billed_usd, abs=1e-7)

    def travel(self) -> None:
        state = json.loads(json.dumps(self.meter.get_state(), allow_nan=False))
        self.meter = self.make_meter()
        self.meter.set_state(state)
        assert self.meter.get_state() == state


@settings(max_examples=120)
@given(seed=st.integers(0, 2**32), is_deployed=st.booleans())
def test_no_trace_of_rounds_exceeds_the_budget(seed: int, is_deployed: bool):
    trace = Trace(seed, is_deployed=is_deployed)
    for _ in range(25):
        trace.round()
        if trace.random.random() < 0.2:
            trace.travel()


@given(seed=st.integers(0, 2**32))
def test_kills_and_restores_cost_what_ran_and_nine_tenths_of_the_budget_are_used(seed: int):
    """Rounds that take up to their limits, killed now and then with actors in flight, until none fits any more."""
    draw, usd = random.Random(seed), random.Random(seed).uniform(30.0, 60.0)
    meter = Meter(model(), Budget(usd))
    limits = Limits(1.0, 1.5, 0.5, factor=1.1)
    while meter.open_round(2, smallest=2, limits=limits):
        assert meter.spent_usd + meter.reserved_usd <= usd
        kept = json.loads(json.dumps(meter.get_state()))
        for slot in range(draw.choice([0, 1, 2, 2, 2])):
            ended(meter, slot, billed_s=draw.uniform(0.5, 1.0), init_s=draw.uniform(0.0, 10.0))
        if not any(name.startswith(ACTOR) for name in meter.budget.reservations):
            meter.close_round(draw.uniform(1.0, 2.0))
            continue
        reserved_usd = sum(kept["budget"]["reserved"].values()) / UNITS_PER_USD
        before_usd, ran_s = kept["budget"]["spent"] / UNITS_PER_USD, draw.uniform(0.0, 3.0)
        meter = Meter(model(), Budget(usd), ran_s=ran_s, concurrency=1)
        meter.set_state(kept)
        forfeited_usd = meter.forfeit()
        assert meter.reserved_usd == 0.0 and forfeited_usd <= reserved_usd
        assert meter.spent_usd == pytest.approx(before_usd + forfeited_usd)
        # Two requests, one CPU at a share of 1024 / 1769, and the learner with its disk and address.
        most_usd = 1.0 + ran_s * 1769 / 1024 * 0.008 + ran_s * (0.01 + 361.0 / 3600)
        assert forfeited_usd <= most_usd + 1e-6
    assert 0.9 * usd <= meter.spent_usd <= usd


def test_a_session_after_a_kill_forfeits_all_if_what_ran_is_unknown_and_so_does_its_own_end():
    meter = Meter(model(), Budget(100.0), ran_s=0.0)
    meter.open_round(2, smallest=2)
    assert meter.forfeit() == pytest.approx(2 * 0.5), "two requests"
    meter.open_round(2, smallest=2)
    reserved_usd = meter.reserved_usd
    assert meter.forfeit() == pytest.approx(reserved_usd)


@pytest.mark.parametrize("is_deployed", [False, True])
def test_the_traces_reach_what_they_are_meant_to_reach(is_deployed: bool):
    traces = [Trace(seed, is_deployed=is_deployed) for seed in range(80)]
    for trace in traces:
        for _ in range(25):
            trace.round()
    assert sum(trace.closed for trace in traces) > 50
    assert sum(trace.refused for trace in traces) > 50
    assert sum(trace.shrunk for trace in traces) > 5
    assert sum(trace.is_tightened for trace in traces) > 50


@pytest.mark.parametrize(
    ("slot", "attempt", "starts_cold"), [(0, 0, False), (1, 0, False), (2, 0, True), (1, 1, True)]
)
def test_a_tightened_limit_is_what_is_reserved_and_a_warm_slot_has_no_start(
    slot: int, attempt: int, starts_cold: bool
):
    limits = Limits(2.0, 3.0, 4.0, factor=1.5)
    clock = WallClock()
    for meter in (
        unlimited(actor={"provisioned": 1}),
        by_the_clock(clock, actor={"provisioned": 1}),
    ):
        meter.open_round(2, smallest=2)
        ended(meter, 0)
        ended(meter, 1)
        clock.now_s += 1.0
        meter.close_round(1.0)
        assert meter.open_standing(limits)
        is_deployed = isinstance(meter, WallClockMeter)
        standing_s = 7.0 + (BETWEEN_ROUNDS_S if is_deployed else 0.0)
        assert meter.reserved_usd == pytest.approx(
            standing_s * STANDING_S_USD + LEDGER_USD
            if is_deployed
            else standing_s * (0.01 + 361.0 / 3600)
        )
        before_usd = meter.reserved_usd
        assert add(meter, [slot], attempt)
        # AWS Lambda enforces the function's own limit, and may restart any environment.
        seconds = 70.0 if is_deployed else 2.0 + 10.0 * starts_cold
        assert meter.reserved_usd - before_usd == pytest.approx(seconds * 0.008 + 0.5)


# Other roles

GRADIENT = "gradient"


def with_gradients(usd: float) -> Meter:
    """Returns a meter for a run with learner functions (2 GiB, 30 s, provisioned capacity for the first)."""
    functions = FunctionPrices(
        PLAIN,
        has_cache=True,
        memory_mib=2048,
        architecture="x86_64",
        timeout_s=30,
        traffic_bytes_max=4096,
        provisioned=1,
    )
    return Meter(
        cost_model(experiment(), PLAIN, traffic_bytes_max=TRAFFIC_MAX, roles={GRADIENT: functions}),
        Budget(usd),
    )


def test_work_of_several_roles_is_granted_in_order():
    worst_usd = (30 + 10) * 2 * 0.008 + 0.5 + 4 * 0.0625
    meter = with_gradients(1.5 * worst_usd + ACTOR_WORST_USD)
    assert meter.reserve([Work(GRADIENT, 0), Work(ACTOR, 0), Work(GRADIENT, 1)]) == 2
    assert meter.reserved_usd == pytest.approx(worst_usd + ACTOR_WORST_USD)
    assert meter.reserve([]) == 0


# By the clock

SINCE_S = 1.8e9
LEDGER_USD = 1.25 * 0.25
"""Price of a write of the ledger: to the bucket, and for a quarter of that to the guard's table."""
KEPT_S_USD = 12 * 0.25 / 10 + WATCHED_USD_PER_HOUR / 3600
STANDING_S_USD = 0.01 + 361.0 / 3600 + KEPT_S_USD
"""Returns dollars per second for the learner, volume and address, uploads, CloudWatch and images."""
PROVISIONED = {"actor": {"provisioned": 2}}
BLOCK_USD = 300 * 2 * 0.001


def by_the_clock(
    clock: WallClock, *, usd: float = 1e6, since_s: float = SINCE_S, **sections: Any
) -> WallClockMeter:
    return WallClockMeter(
        model(is_deployed=True, **sections), Budget(usd), billed_since_s=since_s, now=clock
    )


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), st.floats(0, 1000)),
        st.tuples(st.just("jump back"), st.floats(0, 1000)),
        # Seconds by the clock, and by the loop.
        st.tuples(st.just("round"), st.floats(0, 120), st.floats(0, 10_000)),
        st.tuples(st.just("catch up")),
        st.tuples(st.just("travel")),
        st.tuples(st.just("forfeit"), st.floats(0, 1000)),
    ),
    max_size=25,
)


@settings(max_examples=200)
@given(steps=STEPS, froms=st.lists(st.floats(0, 1500), min_size=3, max_size=3))
def test_what_stands_is_billed_by_the_clock_and_every_second_once(
    steps: list[tuple[Any, ...]], froms: list[float]
):
    cost = model(**PROVISIONED, cache={"kind": "redis"}, is_deployed=True)
    parts = ("learner_from_s", "cache_from_s", "provisioned_from_s")

    def make_meter() -> WallClockMeter:
        return WallClockMeter(
            cost,
            Budget(1e6),
            billed_since_s=SINCE_S,
            now=clock,
            **{part: SINCE_S + from_s for part, from_s in zip(parts, froms, strict=True)},
        )

    clock = WallClock(SINCE_S)
    meter, billed_until_s, actors_usd = make_meter(), SINCE_S, 0.0
    for what, *seconds in steps:
        if what in ("pass", "jump back"):
            clock.now_s += seconds[0] if what == "pass" else -seconds[0]
            continue
        if what == "travel":
            state = json.loads(json.dumps(meter.get_state(), allow_nan=False))
            meter = make_meter()
            meter.set_state(state)
            continue
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
                assert meter.forfeit() == 0.0
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
    meter = by_the_clock(clock, learner={"instance_types": ["small", "large"]})
    clock.now_s += 50.0
    assert meter.catch_up() == pytest.approx(150 * STANDING_S_USD + 100 * 0.01)
    clock.now_s += 50.0
    assert meter.catch_up() == pytest.approx(50 * STANDING_S_USD)


def test_whoever_may_end_the_run_hears_first_when_a_round_ends_at_the_latest():
    heard: list[float] = []

    def refuse(ends_at_s: float) -> None:
        heard.append(ends_at_s)
        raise InterruptedError

    clock = WallClock(SINCE_S)
    meter = WallClockMeter(model(), Budget(1e6), billed_since_s=SINCE_S, now=clock, begins=refuse)
    clock.now_s += 50.0
    with pytest.raises(InterruptedError):
        meter.open_round(1, smallest=1)
    assert heard == [SINCE_S + 50.0 + meter.limits.round_s + BETWEEN_ROUNDS_S]
    assert meter.reserved_usd == 0.0


@pytest.mark.parametrize("passed_s", [0.0, 33.0, 5000.0])
def test_what_has_passed_and_what_is_between_rounds_is_reserved_too(passed_s: float):
    clock = WallClock(SINCE_S + passed_s)
    seconds = passed_s + 120 + 60
    needed_usd = (
        seconds * STANDING_S_USD
        + math.ceil(seconds / 300) * BLOCK_USD
        + ACTOR_WORST_USD
        + LEDGER_USD
    )
    meter = by_the_clock(clock, **PROVISIONED)
    assert meter.open_round(1, smallest=1) == 1
    assert meter.reserved_usd == pytest.approx(needed_usd)
    assert (
        by_the_clock(clock, usd=needed_usd * 1.0001, **PROVISIONED).open_round(1, smallest=1) == 1
    )
    assert (
        by_the_clock(clock, usd=needed_usd * 0.9999, **PROVISIONED).open_round(1, smallest=1) == 0
    )


def test_a_round_that_takes_all_that_is_reserved_is_within_and_a_second_more_is_not():
    for too_long_s in (0.0, 1.0):
        clock = WallClock(SINCE_S + 50.0)
        meter = by_the_clock(clock)
        meter.open_round(0, smallest=0)
        clock.now_s += 120 + 60 + too_long_s
        if too_long_s:
            with pytest.raises(BudgetError, match=r"231\.0 s"):
                meter.close_round(1.0)
        else:
            meter.close_round(1.0)
        assert meter.spent_usd == pytest.approx((230 + too_long_s) * STANDING_S_USD)


def test_each_write_of_the_ledger_is_reserved_before_it_is_made_and_billed_once():
    meter = by_the_clock(WallClock(SINCE_S))
    meter.open_round(2, smallest=1)
    used_usd = 180 * STANDING_S_USD + 2 * ACTOR_WORST_USD
    assert meter.reserved_usd == pytest.approx(used_usd + LEDGER_USD)
    for slot, written in enumerate((1, 2), start=2):
        meter.wrote_ledger()
        assert add(meter, [slot]) == 1
        used_usd += ACTOR_WORST_USD
        assert meter.spent_usd == pytest.approx(written * LEDGER_USD)
        assert meter.reserved_usd == pytest.approx(used_usd + LEDGER_USD), "for the next write"
    assert add(meter, [4]) == 1, "one write holds several reservations"
    assert meter.reserved_usd == pytest.approx(used_usd + ACTOR_WORST_USD + LEDGER_USD)
    for slot in range(5):
        meter.cancel(Work(ACTOR, slot))
    bill = meter.close_round(0.0)
    assert bill.infrastructure_cost_usd == pytest.approx(2 * LEDGER_USD)
    assert (meter.spent_usd, meter.reserved_usd) == (pytest.approx(bill.round_cost_usd), 0.0)
    meter.wrote_ledger()
    assert meter.open_standing()
    bill = meter.close_round(0.0)
    assert bill.infrastructure_cost_usd == pytest.approx(LEDGER_USD), "between two rounds"


@given(actors=st.integers(1, 32), units=st.integers(-2, 2), is_function=st.booleans())
def test_what_fits_is_what_opens_to_the_unit_and_what_it_promises_can_be_redeemed(
    actors: int, units: int, is_function: bool
):
    sections = {"learner": FUNCTION, "cache": {"kind": "none"}} if is_function else {}
    meter = by_the_clock(WallClock(SINCE_S), **sections)
    meter.open_round(actors, smallest=actors)
    needed = round(meter.reserved_usd * UNITS_PER_USD)
    usd = (needed + units) / UNITS_PER_USD
    meter = by_the_clock(WallClock(SINCE_S), usd=usd, **sections)
    is_held = units >= 0
    assert meter.fits(actors, meter.limits) == is_held
    assert meter.open_round(actors, smallest=actors) == actors * is_held
    assert bool(meter.reserved_usd) == is_held
    if is_held and is_function:
        # Each write of the ledger is paid before the function starts, also if the actors took all that was free.
        meter.wrote_ledger()
        assert meter.reserve([Work(LEARNER, 0)]) == 1


def test_a_promise_stays_until_its_work_fits():
    meter = by_the_clock(WallClock(SINCE_S), learner=FUNCTION, cache={"kind": "none"})
    assert meter.open_standing()
    meter.add_spent(meter.free_usd + meter.reserved_usd)
    before = meter.get_state()
    assert meter.reserve([Work(LEARNER, 0)]) == 0
    assert meter.get_state() == before


def test_an_exception_changes_nothing_and_the_same_call_works_afterwards():
    meter = by_the_clock(WallClock(SINCE_S), **PROVISIONED)
    assert meter.open_round(1, smallest=1) == 1
    meter.settle(Work(ACTOR, 0), used(1.0))
    meter.close_round(0.0)
    before = meter.get_state()
    for refused in (
        lambda: meter.add_spent(-1.0),
        lambda: meter.add_spent(math.inf),
        lambda: meter.reserve([Work(ACTOR, 0), Work("nobody", 0)]),
        lambda: meter.reserve([Work(ACTOR, 0), Work(ACTOR, 0)]),
        lambda: meter.close_round(400.0),
        lambda: meter.settle(Work(ACTOR, 7), used(1.0)),
        lambda: meter.cancel(Work("nobody", 0)),
    ):
        with pytest.raises(BudgetError, match="cannot spend|has no prices|reserved already"):
            refused()
        assert meter.get_state() == before
    meter.add_spent(1.0)
    assert meter.open_round(1, smallest=1) == 1
    ended(meter, 0, is_metered=True)
    assert meter.close_round(0.0).cold_starts == 0


def test_what_ends_between_two_rounds_is_the_next_ones_bill_also_if_one_does_not_open():
    meter = Meter(model(), Budget(2 * round_base_usd() + ACTOR_WORST_USD))
    assert meter.open_standing() and add(meter, [0]) == 1
    meter.close_round(0.0)
    ended(meter, 0, billed_s=2.0, init_s=1.0)
    assert meter.open_round(99, smallest=99) == 0
    assert meter.open_standing()
    bill = meter.close_round(0.0)
    assert (bill.actors_cost_usd, bill.cold_starts) == (pytest.approx(3 * 0.008 + 0.5), 1)


@pytest.mark.parametrize(
    ("region", "gb_usd"), [("us-east-1", 0.09), ("eu-central-1", 0.09), ("sa-east-1", 0.154)]
)
def test_answers_to_a_trainer_outside_aws_leave_the_region_as_text(region: str, gb_usd: float):
    prices = PLAIN.model_copy(update={"region": region})
    pool = model(prices, learner={"kind": "external"}, cache={"kind": "none"}).roles[ACTOR]
    here = model(prices, cache={"kind": "none"}).roles[ACTOR]
    moved = {
        "is_provisioned": False,
        "billed_s": 1.0,
        "traffic_bytes": 5,
        "answer_bytes": 3_000_000,
    }
    assert pool.usd(**moved) - here.usd(**moved) == pytest.approx(0.004 * gb_usd, rel=1e-6)
    assert pool.usd(**{**moved, "answer_bytes": 0}) == here.usd(**{**moved, "answer_bytes": 0})
    assert pool.worst_case_usd() - here.worst_case_usd() == pytest.approx(
        (TRAFFIC_MAX + 2) // 3 * 4 * gb_usd * 1e-9, rel=1e-2
    )


def test_a_pool_writes_no_object_and_a_machine_of_ones_own_nothing():
    there, pool, here = (
        model(is_deployed=is_deployed, learner={"kind": kind}, cache={"kind": "none"}).ledger_usd
        for is_deployed, kind in ((True, "instance"), (True, "external"), (False, "instance"))
    )
    assert (there, pool, here) == (LEDGER_USD, pytest.approx(LEDGER_USD / 5), 0.0)


def test_forfeiting_bills_actors_in_full_and_what_stands_by_the_clock():
    clock = WallClock(SINCE_S)
    meter = by_the_clock(clock)
    clock.now_s += 10.0
    meter.open_round(3, smallest=1)
    ended(meter, 1, is_metered=True)
    clock.now_s += 20.0
    held_usd = 2 * ACTOR_WORST_USD + LEDGER_USD
    assert meter.forfeit() == pytest.approx(held_usd), "whether the ledger was written is unknown"
    assert meter.spent_usd == pytest.approx(0.508 + held_usd + 30 * STANDING_S_USD)
    assert meter.reserved_usd == 0.0
    assert meter.forfeit() == 0.0
    assert meter.open_round(3, smallest=1) == 3, "its names are free again"


def test_a_learner_that_replaces_another_pays_for_the_time_between_them():
    """The deployment continues. Its cache, disk and provisioned capacity still cost money."""
    clock = WallClock(SINCE_S)
    first = by_the_clock(clock)
    clock.now_s += 100.0
    first.open_round(2, smallest=1)
    state = json.loads(json.dumps(first.get_state(), allow_nan=False))
    clock.now_s += 400.0
    second = by_the_clock(clock)
    second.set_state(state)
    assert second.forfeit() == pytest.approx(2 * ACTOR_WORST_USD + LEDGER_USD)
    assert second.spent_usd == pytest.approx(
        500 * STANDING_S_USD + 2 * ACTOR_WORST_USD + LEDGER_USD
    )


def test_cold_starts_of_a_round_are_those_of_its_actors():
    meter = Meter(
        model(
            actor={"provisioned": 0},
            learner={"kind": "function", "update_timeout_s": 60},
            cache={"kind": "none"},
        ),
        Budget(1e6),
    )
    assert meter.open_round(2, smallest=2) == 2
    assert meter.reserve([Work(LEARNER, 0)]) == 1
    for work in (Work(ACTOR, 0), Work(ACTOR, 1), Work(LEARNER, 0)):
        meter.settle(work, used(1.0, 0.5))
    assert meter.close_round(1.0).cold_starts == 2


def ended_deployment(clock: WallClock, lasted_s: float) -> dict[str, Any]:
    """Returns the state of a deployment that billed its last second."""
    first = by_the_clock(clock, **PROVISIONED)
    clock.now_s += lasted_s
    first.catch_up()
    return json.loads(json.dumps(first.get_state(), allow_nan=False))


def test_a_later_deployment_does_not_pay_for_the_gap():
    clock = WallClock(SINCE_S)
    state = ended_deployment(clock, 300.0)
    clock.now_s += 50_000.0
    second = by_the_clock(clock, since_s=clock.now_s - 80.0, **PROVISIONED)
    second.set_state(state)
    assert second.spent_usd == pytest.approx(300 * STANDING_S_USD + BLOCK_USD)
    assert second.catch_up() == pytest.approx(80 * STANDING_S_USD + BLOCK_USD)
    clock.now_s += 10.0
    assert second.catch_up() == pytest.approx(10 * STANDING_S_USD)


def test_what_a_round_held_when_its_deployment_went_is_forfeited_in_full():
    """Nothing records how long the learner kept running after its last bill."""
    clock = WallClock(SINCE_S)
    first = by_the_clock(clock)
    clock.now_s += 50.0
    first.open_round(2, smallest=1)
    held_usd = (50 + 120 + 60) * STANDING_S_USD + 2 * ACTOR_WORST_USD + LEDGER_USD
    state = json.loads(json.dumps(first.get_state(), allow_nan=False))
    clock.now_s += 50_000.0
    second = by_the_clock(clock, since_s=clock.now_s)
    second.set_state(state)
    second.forfeit()
    assert second.spent_usd == pytest.approx(held_usd)
    assert second.reserved_usd == 0.0


@pytest.mark.parametrize("billed_until_s", [-1.0, math.nan, math.inf, -math.inf, None, "soon"])
def test_a_state_without_a_sound_last_bill_is_refused_and_changes_nothing(billed_until_s: Any):
    clock = WallClock(SINCE_S + 10.0)
    meter = by_the_clock(clock)
    before = meter.get_state()
    with pytest.raises((ValueError, TypeError)):
        meter.set_state(before | {"billed_until_s": billed_until_s, "billed_s": 99.0})
    assert meter.get_state() == before


def test_setting_the_systems_clock_neither_bills_twice_nor_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(time, "time", lambda: 1_700_000_000.0)
    monkeypatch.setattr(time, "monotonic", lambda: 50.0)
    clock = steady_clock()
    monkeypatch.setattr(time, "time", lambda: 1_700_003_600.0)
    monkeypatch.setattr(time, "monotonic", lambda: 62.5)
    assert clock() == 1_700_000_012.5


def test_a_learner_that_is_a_function_pays_for_no_instance():
    """An update with its start, its bucket requests and the loop, each computed by hand."""
    meter = unlimited(
        learner=FUNCTION,
        cache={"kind": "none"},
    )
    assert meter.open_round(1, smallest=1) == 1
    request_usd = 0.5 + (3 + 4 * 0.08) * 0.25
    promised = meter.budget.get_state()["reserved"]["promised"]
    assert promised == pytest.approx((40 * 2 * 0.008 + request_usd) * UNITS_PER_USD)
    assert meter.reserve([Work(LEARNER, 0)]) == 1
    assert meter.budget.get_state()["reserved"][f"{LEARNER} 0.0"] == promised
    assert meter.settle(Work(LEARNER, 0), used(2.0, 1.5)) == 3.5
    ended(meter, 0)
    bill = meter.close_round(4.0)
    loop_usd = 4.0 * COORDINATOR_MEMORY_MIB / 1024 * 0.008
    assert bill.learner_cost_usd == pytest.approx(3.5 * 2 * 0.008 + request_usd + loop_usd)
    assert meter.reserved_usd == 0.0
    # A warm update; a round without an update returns the unused invocation.
    meter.open_round(1, smallest=1)
    meter.reserve([Work(LEARNER, 0)])
    assert meter.settle(Work(LEARNER, 0), used(2.0, 1.5)) == 2.0
    meter.close_round(0.0)
    meter.open_standing()
    assert meter.close_round(0.0).learner_cost_usd == 0.0
