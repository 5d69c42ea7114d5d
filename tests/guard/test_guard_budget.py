"""The promise about money: whatever a learner does or fails to do, no run costs more than its budget, to its very end.

A learner's real meter and the guard's real decisions and bills, in a world that keeps its own books: random prices,
rounds and deaths; heartbeats that are late, lost or never sent; ticks that are late, lost or doubled; clocks that
differ; starts that fail and are taken back; answers of AWS that are refused; learners that lie; one deployment after
the other.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from runtime.config.loading import experiment_from_tree
from runtime.cost.budget import Budget
from runtime.cost.meter import WallClockMeter
from runtime.cost.start import start
from runtime.guard.bill import final_usd
from runtime.guard.decision import reason_to_end
from runtime.guard.ledger import FINISHED, STARTING, TRAINING, Entry, Order
from runtime.guard.stacks import GuardedStack
from runtime.guard.times import CACHE_DELETION_S, HEARTBEAT_S, INTERVAL_S, STOP_GRACE_S, TERMINATION_S
from stacks.plan import expected_cost
from tests.guard.test_bill import ALIAS, CACHE, GROUP, NODE, Aws, at
from tests.helpers import cost_model

TYPES = ("g4dn.xlarge", "g6.xlarge")
FAILURES = ("", "", "", "creation", "capacity", "boot")
"""What a start may fail with: a part, an instance that cannot be had, or one that is never heard of."""
START_TIMEOUT_S = 1500.0


def make_experiment(draw: random.Random, types: tuple[str, ...] = TYPES):
    actors = draw.randint(1, 40)
    return experiment_from_tree({
        "environment": {"id": "Hopper-v5"},
        "scaler": {"kind": "fixed", "actors_fixed": actors, "actors_min": 1},
        "actor": {"memory_mib": draw.choice([512, 1769, 10_240]), "timeout_s": draw.choice([10, 60, 900]),
                  "provisioned": draw.choice([0, actors])},
        "learner": {"instance_types": types, "update_timeout_s": draw.choice([10, 120, 1200])},
        "fleet": {"round_deadline_s": draw.choice([None, 1200])},
        "cache": {"kind": draw.choice(["serverless", "node", "learner"])},
        "budget": {"usd": 1.0},
    }, source="drawn").resolved(is_deployed=True)


@dataclass
class World:
    """One deployment, minute by minute and round by round; all times are AWS', which are the guard's.

    Attributes:
        skew_s: How far the learner's clock is ahead of AWS'.
        now_s: At first, when the stack's creation is executed.
        entry: The ledger's.
        kept: The meter's state in the bucket.
        is_liar: The learner writes whatever silences the guard. Its actors cost nothing: of them it alone can tell.
        actors_usd: What actors have really cost, those in flight at their worst.
    """

    draw: random.Random
    experiment: Any
    budget_usd: float
    skew_s: float
    now_s: float = 0.0
    entry: Entry | None = None
    kept: str | None = None
    is_liar: bool = False
    failure: str = ""
    actors_usd: float = 0.0
    meter: WallClockMeter | None = None
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        draw, began_s, expected = self.draw, self.now_s, expected_cost(self.experiment)
        self.stack = f"stack/{began_s}"
        self.deployed = GuardedStack(
            experiment="e", run="e/r", stack=self.stack, name="Nitro-e", status="CREATE_COMPLETE",
            created_at_s=began_s - draw.choice([0.0, 20.0, 86_400.0]), budget_usd=self.budget_usd,
            tail_usd=expected.tail_usd, burn_usd_per_hour=expected.burn_usd_per_hour,
            floor_usd_per_hour=expected.floor_usd_per_hour, cache_usd_per_hour=expected.cache_usd_per_hour,
            provisioned_usd_per_hour=expected.provisioned_usd_per_hour, lifetime_s=3600 * draw.choice([0.5, 24.0]))
        # The guard looked before there was anything.
        self.looked_s = began_s - draw.uniform(0, 2 * INTERVAL_S)
        self._make_parts(began_s)

    def _make_parts(self, began_s: float) -> None:
        """When each part is made, and when CloudFormation takes back what there is of a creation that fails."""
        draw = self.draw
        fails_s = began_s + (draw.uniform(0, 600) if self.failure == "creation" else START_TIMEOUT_S)
        self.taken_back_s = fails_s + draw.uniform(0, 600) if self.failure else math.inf
        self.rolled_back_s = self.taken_back_s + draw.uniform(0, 2700)
        kind = {"serverless": [CACHE], "node": [NODE], "learner": []}[self.experiment.cache.kind]
        made_s = {name: began_s + draw.uniform(0, longest_s) for name, longest_s in (
            *((name, 60) for name in kind), (ALIAS, 120), (GROUP, 600))}
        self.made_s = {name: at_s for name, at_s in made_s.items() if at_s < fails_s}
        self.stood_usd, self.launched_s = 0.0, math.inf
        if GROUP in self.made_s and self.failure != "capacity":
            self.launched_s = self.made_s[GROUP] + draw.uniform(0, 60)
        self.launches = [] if self.launched_s == math.inf else [(self.launched_s, "Successful")]
        self.model = cost_model(self.experiment, instance_type=draw.choice(self.experiment.learner.instance_types))

    def _launch(self) -> None:
        """The next instance, of whichever type there is."""
        self.stood_usd, self.launched_s = self._stood_usd(self.now_s), self.now_s
        self.model = cost_model(self.experiment, instance_type=self.draw.choice(self.experiment.learner.instance_types))

    def _stood_usd(self, ended_s: float) -> float:
        """What stood, without cache and warm actors."""
        seconds = max(0.0, ended_s - self.launched_s)
        return self.stood_usd + (self.model.learner_usd(seconds) + self.model.infrastructure_usd(seconds)
                                 + self.model.upload_usd(seconds) - self.model.cache_usd(seconds))

    # The learner

    def learner(self):
        """What a learner does until it has nothing left to do; pauses wherever time goes by."""
        yield self.launched_s + self.draw.uniform(60, 2400) - self.now_s
        while True:
            self._boot()
            yield self.draw.uniform(0, 900)
            self._restore()
            while (granted := self.meter.open_round(self.experiment.scaler.most_actors, smallest=1)):
                self.kept = json.dumps(self.meter.get_state())
                # Promised in the ledger before anything of it is used.
                self._write(state=TRAINING)
                yield from self._round(granted)
                fate = self.draw.random()
                if fate < 0.02:
                    # It hangs; nobody hears of it again.
                    self.log.append(f"{self.now_s:.0f} hangs")
                    while True:
                        yield 3600.0
                if fate < 0.08:
                    self.log.append(f"{self.now_s:.0f} dies")
                    break
                self._settle(granted)
                self.kept = json.dumps(self.meter.get_state())
                self._write()
                yield self.draw.uniform(0, 30)
            else:
                self.meter.forfeit()
                self._write(state=FINISHED, reason="budget")
                return
            yield self.draw.choice([30.0, 400.0, 1400.0])
            self._launch()

    def _boot(self) -> None:
        self.entry = replace(self.entry or Entry("e/r"), stack=self.stack, state=STARTING, heartbeat_at_s=self._clock())

    def _restore(self) -> None:
        usable_usd = max(0.0, self.budget_usd - self.deployed.tail_usd)
        since_s = max(self.deployed.created_at_s, self.entry.began_s(self.stack) or 0.0)
        self.meter = WallClockMeter(self.model, Budget(usable_usd), billed_since_s=since_s, now=self._clock)
        if self.kept:
            self.meter.set_state(json.loads(self.kept))
        elsewhere_usd = self.entry.spent_usd - self.meter.spent_usd - self.meter.reserved_usd
        if elsewhere_usd > 0.0:
            self.meter.add_spent(elsewhere_usd)
        self.meter.forfeit()
        self._write()

    def _clock(self) -> float:
        return max(0.0, self.now_s + self.skew_s)

    def _round(self, granted: int):
        """Actors are billed as they end; heartbeats go out while the round lasts, and some get lost."""
        length_s = self.draw.uniform(1, min(3600.0, self.model.round_seconds_max))
        share = 0.0 if self.is_liar else self.draw.choice([0.01, 1.0])
        self._billed = [share * self.draw.random() * self.model.actor_worst_case_usd for _ in range(granted)]
        self.actors_usd += sum(self._billed)
        while length_s > 0:
            yield min(length_s, HEARTBEAT_S)
            length_s -= HEARTBEAT_S
            if self.draw.random() < 0.7:
                self._write()

    def _settle(self, granted: int) -> None:
        for slot, usd in zip(range(granted), self._billed, strict=True):
            self.meter.budget.settle(f"actor {slot}.0", usd)
        self.meter.close_round(actors_started=granted, seconds=0.0)

    def _write(self, **more: str) -> None:
        self.entry = replace(
            self.entry, stack=self.stack, heartbeat_at_s=self._clock(), spent_usd=self.meter.spent_usd,
            reserved_usd=self.meter.reserved_usd, burn_usd_per_hour=self.meter.burn_usd_per_hour,
            covered_until_s=self.meter.covered_until_s, **more)
        if self.is_liar:
            self.entry = replace(
                self.entry, spent_usd=self.entry.spent_usd * self.draw.choice([0.0, 0.5, 1.0]), reserved_usd=0.0,
                burn_usd_per_hour=0.0, covered_until_s=self.now_s + self.draw.choice([0.0, 10.0 ** 5, 10.0 ** 9]))

    # The guard, and the bill

    def run(self) -> tuple[str, float]:
        """Returns why the deployment was ended, and what it has cost."""
        learner = self.learner() if not self.failure and self.draw.random() < 0.9 else iter(())
        learner_at_s, tick_at_s = self.now_s + next(learner, math.inf), self.now_s + self.draw.uniform(0, INTERVAL_S)
        while True:
            if learner_at_s <= tick_at_s:
                self.now_s = learner_at_s
                learner_at_s += next(learner, math.inf)
                continue
            self.now_s = tick_at_s
            reason = self._tick()
            if reason:
                return reason, self._bill()
            # At most one in a row is lost; some come twice.
            tick_at_s += self.draw.choice([0.0, 1.0, INTERVAL_S, INTERVAL_S, INTERVAL_S, 2 * INTERVAL_S])

    def _tick(self) -> str:
        deployed = self.deployed.begun(self.entry, self.looked_s)
        if self.entry is None or self.entry.stack != self.stack:
            self.entry = replace(
                self.entry or Entry("e/r"), stack=self.stack, state="", reason="", burn_usd_per_hour=0.0,
                covered_until_s=deployed.created_at_s, heartbeat_at_s=0.0, seen_heartbeat_s=0.0)
        if self.entry.began_s(self.stack) is None:
            self.entry = replace(self.entry, began_stack=self.stack, began_at_s=deployed.created_at_s)
        reason = "its stack is ROLLBACK_COMPLETE" if self.now_s >= self.rolled_back_s else (
            reason_to_end(deployed, self.entry, self.now_s))
        if self.entry.heartbeat_at_s != self.entry.seen_heartbeat_s:
            self.entry = replace(self.entry, seen_heartbeat_s=self.entry.heartbeat_at_s, seen_at_s=self.now_s,
                                 seen_spent_usd=max(self.entry.spent_usd, self.entry.seen_spent_usd))
        self.looked_s = self.now_s
        return reason

    def _bill(self) -> float:
        """All that stood until it was gone, by the clock, and what runs out its block or its hour."""
        # One tick more may be lost after the one that decided.
        ended_s = self.now_s + self.draw.uniform(0, INTERVAL_S + STOP_GRACE_S + TERMINATION_S)
        deleted_s = ended_s + self.draw.uniform(0, CACHE_DELETION_S)
        self._close(ended_s, deleted_s)
        cache_s, warm_s = (
            max(0.0, min(until_s, self.taken_back_s) - min(self.made_s.get(name, math.inf) for name in names))
            for until_s, names in ((deleted_s, (CACHE, NODE)), (ended_s, (ALIAS,))))
        if self.experiment.cache.kind == "node":
            cache_s = math.ceil(cache_s / 3600) * 3600
        self.now_s = deleted_s
        return (self.actors_usd + self._stood_usd(min(ended_s, self.taken_back_s)) + self.model.cache_usd(cache_s)
                + self.model.provisioned_usd(math.ceil(warm_s / 300)))

    def _close(self, ended_s: float, deleted_s: float) -> None:
        """The guard settles the account by what AWS tells; each question may be refused."""
        gone = {} if self.taken_back_s > self.now_s else {
            "ResourceStatus": "DELETE_COMPLETE", "LastUpdatedTimestamp": at(self.taken_back_s)}
        is_told = [self.draw.random() > 0.1 for _ in range(2)]
        self.aws = Aws(dict.fromkeys(self.made_s, gone) if is_told[0] else None, self.launches if is_told[1] else None)
        usd = final_usd(self.aws, self.deployed.begun(self.entry, self.looked_s), self.entry,
                        learner_gone_s=ended_s + self.draw.uniform(0, 60),
                        cache_gone_s=deleted_s + self.draw.uniform(60, 120))
        self.entry = replace(self.entry, closed_stack=self.stack, state=FINISHED, spent_usd=usd, seen_spent_usd=usd,
                             before_usd=usd, reserved_usd=0.0, order=Order(self.stack, "why", self.now_s))


def deploy_until_refused(draw: random.Random, budget: float, skew_s: float, *, is_liar: bool, deployments_max: int = 6,
                         is_preflight_made: bool = True, **changes: float) -> Iterator[tuple[World, float, float]]:
    """Deploys one run again and again, as often as the preflight lets it.

    Args:
        budget: From 0 to 1: from what cannot even be begun to what lasts for hours.
        changes: Of the limits that the guard reads.

    Yields:
        Each deployment when it is over, what all of them have cost, and the budget.
    """
    # A liar could hide which type it runs on; nobody but it chooses among several.
    experiment = make_experiment(draw, TYPES[:1] if is_liar else TYPES)
    expected = expected_cost(experiment)
    budget_usd = expected.tail_usd * 1.001 + 10 ** (3 * budget - 1.5)
    start_s = start(expected, cache_kind=experiment.cache.kind, is_warm=experiment.actor.provisioned > 0,
                    has_gpu=True).expected_s
    needed_usd = expected.burn_usd_per_hour * start_s / 3600 + expected.tail_usd if is_preflight_made else -math.inf
    entry, kept, now_s, total_usd = None, None, 1e6, 0.0
    for _ in range(deployments_max):
        if (entry.promised_usd if entry else 0.0) + needed_usd > budget_usd:
            return
        world = World(draw, experiment, budget_usd, skew_s, now_s, entry, kept, is_liar, draw.choice(FAILURES))
        world.deployed = replace(world.deployed, **changes)
        total_usd += world.run()[1]
        yield world, total_usd, budget_usd
        entry, kept, now_s = world.entry, world.kept, world.now_s + draw.choice([1.0, 900.0, 90_000.0])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), budget=st.floats(0.0, 1.0), skew_s=st.one_of(st.just(0.0), st.floats(-1500, 1500)),
       is_liar=st.sampled_from([False, False, True]))
def test_all_deployments_of_a_run_together_cost_no_more_than_its_budget(
        seed: int, budget: float, skew_s: float, is_liar: bool) -> None:
    before_usd = 0.0
    for world, total_usd, budget_usd in deploy_until_refused(random.Random(seed), budget, skew_s, is_liar=is_liar):
        assert total_usd <= budget_usd, (world.failure, world.log)
        closed_usd = world.entry.spent_usd
        assert closed_usd >= total_usd - 1e-9, "the ledger knows of all that was spent"
        if not world.made_s and None not in (world.aws.resources, world.aws.launches):
            assert closed_usd == before_usd, "nothing was made, so nothing is charged"
        before_usd = closed_usd


@pytest.mark.parametrize("ignored", ["tail", "silence", "what was spent before", "lies"])
def test_the_promise_could_be_broken(monkeypatch: pytest.MonkeyPatch, ignored: str) -> None:
    """By a guard that kept nothing for the teardown, believed a silent learner's last word, or a liar; or by none that
    reads the ledger before it deploys."""
    if ignored == "silence":
        monkeypatch.setattr(GuardedStack, "projected_usd", lambda self, entry, now_s: (
            entry.spent_usd + entry.reserved_usd if entry else 0.0))
    changes = {"tail": {"tail_usd": 0.0}, "lies": {"floor_usd_per_hour": 0.0}}.get(ignored, {})
    assert any(
        total_usd > budget_usd for seed in range(300) for _, total_usd, budget_usd in deploy_until_refused(
            random.Random(seed), 0.5, 0.0, is_liar=ignored == "lies",
            is_preflight_made=ignored != "what was spent before", **changes))
