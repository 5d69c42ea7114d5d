"""The promise about money: whatever a learner does or fails to do, no run costs more than its budget, to its very end.

Uses real meters of learners and the real guard with its real ledger, in an account with exact records. Random: prices,
rounds and deaths; heartbeats that are late, lost or never sent; ticks that are late, lost or doubled; clocks that
differ; starts that fail in any phase and are rolled back; answers of AWS that are refused or late; learners that lie; a
second experiment whose calls hang; successive deployments.
"""

from __future__ import annotations

import functools
import json
import math
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.aws.guard import watch
from runtime.aws.guard.parts import ALIAS, CACHE, GROUP, Parts
from runtime.aws.guard.stacks import (
    GuardedStack,
    read_deployment,
    tags_of_limits,
)
from runtime.aws.guard.teardown import Teardown
from runtime.aws.guard.watch import Guard
from runtime.aws.ledger import (
    STARTING,
    TRAINING,
    Entry,
    Ledger,
    LedgerError,
    LostRunError,
    TeardownOrderedError,
)
from runtime.experiment.loading import experiment_from_tree
from runtime.money.budget import Budget
from runtime.money.estimate import start
from runtime.money.meter import BillingClock, Meter
from runtime.money.work import ACTOR
from runtime.times import HEARTBEAT_S, INTERVAL_S
from stacks.plan import expected_cost
from tests.aws.guard.pretended_account import FUNCTION, Account, Machine, Stack
from tests.helpers import cost_model

TYPES = ("g4dn.xlarge", "g6.xlarge")
FAILURES = (
    "",
    "",
    "",
    "",
    "",
    "creation",
    "never made",
    "capacity",
    "machine",
    "image",
    "first actors",
)
"""Ways in which a start may fail: a part, and the phases by name. Only in some phases can the instance report it."""
ARN = "arn:aws:cloudformation:us-east-1:123456789012"
SIGNAL_S = 1050.0
"""Longest time that CloudFormation waits for an instance."""


@functools.cache
def make_experiment(
    actors: int,
    is_warm: bool,
    memory_mib: int,
    timeout_s: int,
    update_timeout_s: int,
    cache: str,
    types: tuple[str, ...],
) -> Any:
    return experiment_from_tree(
        {
            "environment": {"id": "Hopper-v5"},
            "scaler": {"kind": "fixed", "actors_fixed": actors, "actors_min": 1},
            "actor": {
                "memory_mib": memory_mib,
                "timeout_s": timeout_s,
                "provisioned": actors if is_warm else 0,
            },
            "learner": {"instance_types": types, "update_timeout_s": update_timeout_s},
            # Without a cache, actors are processes of the learner: there is no function, and nothing is kept warm.
            "cache": {"kind": cache},
            "fleet": {"kind": "local" if cache == "none" else "auto"},
            "budget": {"usd": 1.0},
        },
        source="drawn",
    ).resolved(is_deployed=True)


def drawn_experiment(draw: random.Random, types: tuple[str, ...]) -> Any:
    return make_experiment(
        draw.choice([1, 8, 40]),
        draw.random() < 0.5,
        draw.choice([512, 1769, 10_240]),
        draw.choice([10, 60, 900]),
        draw.choice([10, 120, 1200]),
        draw.choice(["redis", "none"]),
        types,
    )


@dataclass
class Run:
    """One run and its repeated deployments by a person who reads the ledger first.

    Attributes:
        skew_s: How far the learners' clock is ahead of AWS'.
        is_liar: Whether the learners write anything that silences the guard. Their actors cost nothing, because only
            learners can report actors' costs.
        limits: Replace limits in the tags.
        is_preflight_made: Whether the ledger is read before a deployment.
        kept: The meter's state in the bucket.
        actors_usd: True cost of actors, with those in flight at their worst case.
    """

    name: str
    account: Account
    budget_usd: float
    experiment: Any
    skew_s: float = 0.0
    is_liar: bool = False
    limits: dict[str, float] = field(default_factory=dict)
    is_preflight_made: bool = True
    deployments_max: int = 3
    kept: str | None = None
    actors_usd: float = 0.0
    stacks: list[tuple[Stack, Any]] = field(default_factory=list)
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.key, self.draw = f"{self.name}/r", self.account.draw
        self.ledger = Ledger(self.account.table, "ledger")
        self.expected = expected_cost(self.experiment)
        self.account.act(self.somebody())

    @property
    def entry(self) -> Entry:
        return self.ledger.get(self.key) or Entry(self.key)

    @property
    def spent_usd(self) -> float:
        """Returns all deployments' cost by AWS' records. Warm actors' blocks are billed whole."""
        model, usd = cost_model(self.experiment), self.actors_usd
        for stack, _ in self.stacks:
            usd += sum(
                machine.model.standing(seconds, blocks=0, cache_s=0.0).usd
                for machine in stack.machines
                if (seconds := machine.until_s - machine.from_s)
            )
            usd += stack.stood_s((CACHE,)) / 3600 * model.cache_usd_per_hour
            blocks = math.ceil(stack.stood_s((ALIAS,)) / 300)
            usd += blocks * model.roles[ACTOR].capacity_block_usd()
        return usd

    # The person who deploys

    def somebody(self) -> Iterator[float]:
        yield self.draw.uniform(0, 300)
        usd_before = 0.0
        for _ in range(self.deployments_max):
            if (
                self.is_preflight_made
                and self._promised_usd() + self._needed_usd() > self.budget_usd
            ):
                return
            stack, failure = self._deploy()
            while not (
                stack.status(self.account.now_s) == "DELETE_COMPLETE" and not self.entry.is_open
            ):
                yield 30.0
            self.log.append(
                f"{failure or 'trained'}: {self.entry.order.reason if self.entry.order else ''}"
            )
            closed_usd = self.entry.spent_usd
            assert closed_usd >= self.spent_usd - 1e-9, (
                "the ledger knows of all that was spent",
                self.log,
            )
            if (
                not any(begun_s <= stack.deleted_s for begun_s in stack.begun_s.values())
                and not self.account.refusing
            ):
                assert closed_usd == usd_before, "nothing was begun, so nothing is charged"
            usd_before = closed_usd
            yield self.draw.choice([1.0, 900.0, 5000.0])

    def _needed_usd(self) -> float:
        return (
            self.expected.tail_usd
            + start(
                self.expected,
                has_cache=self.experiment.has_elasticache,
                is_warm=self.experiment.actor.provisioned > 0,
                has_gpu=True,
                has_function=not self.experiment.is_on_learner,
            ).counted_usd
        )

    def _promised_usd(self) -> float:
        entry = self.entry
        found = (
            self.account.client("cloudformation").describe_stacks(StackName=entry.stack)
            if entry.is_open
            else None
        )
        if found is None:
            return entry.promised_usd
        deployed = read_deployment(found["Stacks"][0]).begun(entry, 0.0)
        return deployed.projected_usd(entry, self.account.now_s) + deployed.tail_usd

    def _deploy(self) -> tuple[Stack, str]:
        draw, began_s, expected = self.draw, self.account.now_s, self.expected
        failure = draw.choice(FAILURES)
        limits = {
            "budget_usd": self.budget_usd,
            "tail_usd": expected.tail_usd,
            "burn_usd_per_hour": expected.burn_usd_per_hour,
            "floor_usd_per_hour": expected.floor_usd_per_hour,
            "cache_usd_per_hour": expected.cache_usd_per_hour,
            "provisioned_usd_per_hour": expected.provisioned_usd_per_hour,
            "lifetime_hours": draw.choice([0.5, 1.5]),
            **self.limits,
        }
        begun_s = {
            **{
                kind: began_s + draw.uniform(0, 60)
                for kind in [CACHE] * self.experiment.has_elasticache
            },
            FUNCTION: began_s,
            ALIAS: began_s + draw.uniform(0, 120),
        }
        if self.experiment.is_on_learner:
            begun_s = {}
        fails_s = began_s + draw.uniform(0, 400) if failure == "creation" else math.inf
        making_s = math.inf if failure == "never made" else draw.choice([120.0, 500.0, 1100.0])
        begun_s[GROUP] = began_s + making_s
        made_s = {kind: at_s + draw.uniform(5, 60) for kind, at_s in begun_s.items()}
        for kind in begun_s:
            if begun_s[kind] >= fails_s:
                begun_s[kind] = made_s[kind] = math.inf
        if failure in ("capacity", "machine", "image", "first actors"):
            fails_s = begun_s[GROUP] + SIGNAL_S
        stack = Stack(
            f"Nitro-{self.name}",
            f"{ARN}:stack/Nitro-{self.name}/{len(self.stacks)}",
            tags_of_limits(experiment=self.name, run="r", **limits),
            began_s - draw.choice([0.0, 20.0, 86_400.0]),
            begun_s,
            made_s,
            listed_s=draw.uniform(0, 5),
        )
        self.account.stacks.append(stack)
        self.stacks.append((stack, failure))
        # CloudFormation asks the guard before it makes anything.
        guard_of(self.account).tick(is_rehearsed=True, asking=stack.id)
        if fails_s < math.inf:
            self.account.act(self._fail(stack, fails_s))
        if failure != "capacity" and begun_s[GROUP] < math.inf:
            self.account.act(self._instances(stack, failure))
        return stack, failure

    def _fail(self, stack: Stack, fails_s: float) -> Iterator[float]:
        yield fails_s - self.account.now_s
        self._take_back(stack)

    def _take_back(self, stack: Stack) -> None:
        """Rolls back the stack's existing parts. Parts that have not begun never begin."""
        now_s = self.account.now_s
        if stack.is_deleted or stack.fails_s <= now_s or stack.complete_s <= now_s:
            return
        stack.fails_s, stack.rolled_back_s = now_s, now_s + self.draw.uniform(0, 2700)
        stack.desired = 0
        for kind in stack.begun_s:
            if stack.begun_s[kind] > now_s:
                stack.begun_s[kind] = stack.made_s[kind] = math.inf
            stack.end(kind, self.draw.uniform(now_s, stack.rolled_back_s))
        stack.end_machines(stack.gone_s[GROUP])

    # Instances and their learners

    def _instances(self, stack: Stack, failure: str) -> Iterator[float]:
        """Runs one instance after the other while the group wants one."""
        yield stack.made_s[GROUP] - self.account.now_s
        while stack.desired and stack.gone_s.get(GROUP, math.inf) > self.account.now_s:
            model = cost_model(
                self.experiment,
                instance_type=self.draw.choice(self.experiment.learner.instance_types),
                is_deployed=True,
            )
            machine = Machine(
                f"i-{self.name}-{len(self.stacks)}-{len(stack.machines)}", model, self.account.now_s
            )
            stack.machines.append(machine)
            learner = self._learner(stack, machine, failure)
            while (
                machine.until_s > self.account.now_s
                and (pause_s := next(learner, None)) is not None
            ):
                yield pause_s
            if machine.until_s == math.inf:
                machine.until_s = self.account.now_s
            yield self.draw.choice([30.0, 400.0, 1400.0])

    def _learner(self, stack: Stack, machine: Machine, failure: str) -> Iterator[float]:
        """Runs an instance until it has nothing left to do. Yields whenever time passes."""
        draw = self.draw
        yield draw.uniform(20, 120)
        if failure == "machine" or draw.random() < 0.03:
            while True:
                yield 600.0
        self._write_item(state=STARTING, heartbeat_at_s=self._clock(machine))
        yield draw.uniform(10, 300)
        if failure == "image":
            self._take_back(stack)
            return
        writer = f"{machine.name} learner"
        try:
            entry = self.ledger.take_over(
                self.key,
                stack=stack.id,
                writer=writer,
                instance_id=machine.name,
                now_s=self._clock(machine),
            )
            yield draw.uniform(5, 60)
            meter = self._restore(stack, machine, entry)
            self._record(stack, machine, writer, meter)
            yield draw.uniform(5, 60)
            if failure == "first actors":
                self._take_back(stack)
                return
            if stack.fails_s > self.account.now_s and not stack.is_deleted:
                stack.complete_s = min(stack.complete_s, self.account.now_s)
            yield from self._train(stack, machine, writer, meter)
            meter.forfeit()
            self._record(stack, machine, writer, meter)
        except LedgerError:
            pass
        except InterruptedError:
            return
        if draw.random() < 0.9:
            with suppress(LostRunError):
                self.ledger.finish(self.key, stack=stack.id, reason="budget")
            stack.desired = 0
        yield draw.uniform(0, 60)

    def _train(self, stack: Stack, machine: Machine, writer: str, meter: Meter) -> Iterator[float]:
        draw = self.draw
        while granted := meter.open_round(self.experiment.scaler.most_actors, smallest=1):
            self.kept = json.dumps(meter.get_state())
            # The ledger reserves the dollars before any are spent.
            self._record(stack, machine, writer, meter, state=TRAINING)
            share = 0.0 if self.is_liar else draw.choice([0.01, 1.0])
            billed = [
                share * draw.random() * machine.model.roles[ACTOR].worst_case_usd()
                for _ in range(granted)
            ]
            self.actors_usd += sum(billed)
            # Heartbeats go out while the round lasts, and some are lost.
            length_s = draw.uniform(1, min(1500.0, machine.model.limits.round_s))
            while length_s > 0:
                yield min(length_s, HEARTBEAT_S)
                length_s -= HEARTBEAT_S
                if draw.random() < 0.7:
                    self._record(stack, machine, writer, meter)
            fate = draw.random()
            if fate < 0.02:
                # It hangs and is silent from now on.
                while True:
                    yield 600.0
            if fate < 0.08:
                raise InterruptedError("it dies")
            for slot, usd in zip(range(granted), billed, strict=True):
                meter.budget.settle(f"actor {slot}.0", usd)
            meter.close_round(0.0)
            self.kept = json.dumps(meter.get_state())
            self._record(stack, machine, writer, meter)
            yield draw.uniform(0, 30)

    def _restore(self, stack: Stack, machine: Machine, entry: Entry) -> Meter:
        usable_usd = max(0.0, self.budget_usd - self.limits.get("tail_usd", self.expected.tail_usd))
        meter = Meter(
            machine.model,
            Budget(usable_usd),
            clock=BillingClock(
                max(stack.prepared_s, entry.began_at_s),
                now=lambda: self._clock(machine),
                **{f"{part}_from_s": at_s for part, at_s in entry.parts_from_s.items()},
            ),
        )
        if self.kept:
            meter.set_state(json.loads(self.kept))
        elsewhere_usd = entry.spent_usd - meter.spent_usd - meter.reserved_usd
        if elsewhere_usd > 0.0:
            meter.budget.spend(elsewhere_usd)
        meter.forfeit()
        return meter

    def _clock(self, machine: Machine) -> float:
        return max(0.0, self.account.now_s + self.skew_s)

    def _record(
        self, stack: Stack, machine: Machine, writer: str, meter: Meter, **more: str
    ) -> None:
        entry = self.ledger.record(
            self.key,
            writer=writer,
            heartbeat_at_s=self._clock(machine),
            spent_usd=meter.spent_usd,
            reserved_usd=meter.reserved_usd,
            burn_usd_per_hour=meter.burn_usd_per_hour,
            covered_until_s=meter.covered_until_s,
            **more,
        )
        if self.is_liar:
            self._lie(entry)
        elif entry.order_for(stack.id) is not None and self.draw.random() < 0.8:
            raise TeardownOrderedError("it is taken down")

    def _lie(self, entry: Entry) -> None:
        """Writes figures that silence the guard."""
        self._write_item(
            spent_usd=entry.spent_usd * self.draw.choice([0.0, 0.5, 1.0]),
            reserved_usd=0.0,
            burn_usd_per_hour=0.0,
            covered_until_s=self.account.now_s + self.draw.choice([0.0, 1e5, 1e9]),
        )

    def _write_item(self, **figures: str | float) -> None:
        item = self.account.table.items.setdefault(self.key, {"run": {"S": self.key}})
        item.update(
            {
                name: {"S": value} if isinstance(value, str) else {"N": repr(value)}
                for name, value in figures.items()
            }
        )


def drawn_run(
    account: Account, name: str, share: float, *, is_liar: bool = False, **options: Any
) -> Run:
    """Returns a run whose budget ranges from too small to begin (0) to one hour (1)."""
    # A liar could hide its instance type. Only the liar itself chooses among several.
    experiment = drawn_experiment(account.draw, TYPES[:1] if is_liar else TYPES)
    budget_usd = expected_cost(experiment).tail_usd * 1.001 + 10 ** (2.5 * share - 2.0)
    return Run(name, account, budget_usd, experiment, is_liar=is_liar, **options)


def guard_of(account: Account) -> Guard:
    return Guard(
        account.client,
        Ledger(account.table, "ledger"),
        lambda subject, text: None,
        now=account.now,
        clock=account.now,
        sleep=account.pass_time,
    )


def play(account: Account) -> None:
    """Runs the guard's ticks until no actor is left. At most one in a row is lost; some are late or doubled."""
    guard = guard_of(account)
    while not account.is_quiet:
        began_s = account.now_s
        guard.tick()
        next_s = began_s + account.draw.choice(
            [0.0, 1.0, INTERVAL_S, INTERVAL_S, INTERVAL_S, 2 * INTERVAL_S]
        )
        account.pass_time(max(0.0, next_s - account.now_s))


SEEDS = st.integers(0, 2**32)
WORLDS = settings(max_examples=40)


@WORLDS
@given(
    seed=SEEDS,
    shares=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    skew_s=st.sampled_from([0.0, -1500.0, -20.0, 900.0]),
    is_liar=st.sampled_from([False, False, True]),
    is_refusing=st.booleans(),
)
def test_all_deployments_of_a_run_together_cost_no_more_than_its_budget(
    seed: int, shares: tuple[float, float], skew_s: float, is_liar: bool, is_refusing: bool
) -> None:
    """Two concurrent runs under one guard."""
    account = Account(random.Random(seed))
    account.refusing = 0.3 if is_refusing else 0.0
    runs = [
        drawn_run(account, "one", shares[0], is_liar=is_liar, skew_s=skew_s),
        drawn_run(account, "two", shares[1]),
    ]
    play(account)
    for run in runs:
        assert run.spent_usd <= run.budget_usd, run.log


@settings(WORLDS, max_examples=12)
@given(seed=SEEDS, share=st.floats(0, 1), hangs_after_s=st.floats(0, 3000))
def test_an_experiment_whose_calls_hang_costs_another_one_nothing(
    seed: int, share: float, hangs_after_s: float
) -> None:
    account = Account(random.Random(seed))
    run = drawn_run(account, "one", share)
    drawn_run(account, "two", 1.0)

    def trouble() -> Iterator[float]:
        yield hangs_after_s
        account.hanging = "Nitro-two"
        yield 20_000.0
        account.hanging = ""

    account.act(trouble())
    play(account)
    assert run.spent_usd <= run.budget_usd, run.log


@settings(WORLDS, max_examples=12)
@given(seed=SEEDS)
def test_a_deployment_that_nobody_checked_costs_a_run_that_is_exhausted_no_more_than_a_teardown(
    seed: int,
) -> None:
    """Like a bare ``cdk deploy``: the guard ends it at its first tick, and its learner has nothing to spend."""
    account = Account(random.Random(seed))
    run = drawn_run(account, "one", 0.0, is_preflight_made=False, deployments_max=5)
    play(account)
    assert len(run.stacks) == 5
    assert run.spent_usd <= run.budget_usd + 5 * run.expected.tail_usd, run.log
    assert run.actors_usd <= run.budget_usd - run.expected.tail_usd


def is_broken(seed: int, share: float | None = None, **options: Any) -> bool:
    """Whether a run's deployments cost more than its budget, or more than the ledger knows."""
    account = Account(random.Random(seed))
    run = drawn_run(account, "one", account.draw.random() if share is None else share, **options)
    try:
        play(account)
    except AssertionError:
        return True
    return run.spent_usd > run.budget_usd


def silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        GuardedStack,
        "projected_usd",
        lambda self, entry, now_s: entry.promised_usd if entry else 0.0,
    )


def what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "read_parts", lambda client, stack: Parts())


def what_stood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Teardown, "_final_usd", lambda self, deployed, entry, gone_s: entry.promised_usd
    )


@pytest.mark.parametrize(
    ("ignores", "options", "first_seed"),
    [
        (silence, {}, 9),
        (what_is_there, {}, 9),
        (what_stood, {}, 0),
        pytest.param(None, {"limits": {"tail_usd": 0.0}}, 99, id="the tail"),
        pytest.param(None, {"limits": {"floor_usd_per_hour": 0.0}, "is_liar": True}, 0, id="lies"),
        pytest.param(
            None,
            {"is_preflight_made": False, "deployments_max": 8, "share": 0.0},
            11,
            id="what was spent before",
        ),
    ],
)
def test_the_promise_could_be_broken(
    monkeypatch: pytest.MonkeyPatch,
    ignores: Callable[[pytest.MonkeyPatch], None] | None,
    options: dict[str, Any],
    first_seed: int,
) -> None:
    """If a guard, or a person who deploys, ignores one thing."""
    if ignores is not None:
        ignores(monkeypatch)
    assert any(is_broken(seed, **options) for seed in range(first_seed, first_seed + 200))
