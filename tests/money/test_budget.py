"""The budget: spent + reserved never exceeds it, in exact units and in the floats that a run reports."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from runtime.errors import BudgetError
from runtime.money.budget import UNITS_PER_USD, Budget

NAMES = st.sampled_from("abcdef")
DOLLARS = st.one_of(
    st.floats(0, 2, allow_nan=False),
    st.integers(0, 200).map(lambda cents: cents / 100),
    st.integers(0, 30).map(lambda parts: parts * 1e-12),
    st.sampled_from([0.0, 0.1, 0.2, 0.3, 1e-13, 5e-13, 1.5e-12, 1 / 3]),
)


def exactly(budget: Budget) -> tuple[Fraction, Fraction]:
    """Returns spent and reserved dollars, from the integer units that the budget counts in."""
    state = budget.get_state()
    reserved = sum(state["reserved"].values())
    return Fraction(state["spent"], UNITS_PER_USD), Fraction(reserved, UNITS_PER_USD)


class BudgetMachine(RuleBasedStateMachine):
    """Makes any sequence of calls and tracks separately who holds what."""

    @initialize(
        usd=st.sampled_from([0.3, 0.7, 1.0, 1 / 3, 0.1 + 0.2, 2.5e-12, 1.5e-12, 7.77])
        | st.floats(1e-6, 5)
    )
    def open(self, usd: float) -> None:
        self.usd = usd
        self.budget = Budget(usd)
        self.asked_usd: dict[str, float] = {}
        self.held: dict[str, Fraction] = {}
        self.spent = Fraction(0)

    @rule(name=NAMES, usd=DOLLARS)
    def reserve(self, name: str, usd: float) -> None:
        before, state = exactly(self.budget), self.budget.get_state()
        if name in self.held:
            with pytest.raises(BudgetError, match=name):
                self.budget.reserve({name: usd})
            is_replaced = self.budget.reserve({"other": usd}, instead_of=name)
            assert (name in self.budget.reservations) != is_replaced
            self.budget.set_state(state)
        elif self.budget.fits([usd]):
            assert self.budget.reserve({name: usd})
            self.asked_usd[name], self.held[name] = usd, exactly(self.budget)[1] - before[1]
            assert 0 <= self.held[name] - Fraction(usd) <= Fraction(1, 10**9)
        else:
            assert not self.budget.reserve({name: usd})
            assert sum(before) + Fraction(usd) > Fraction(self.usd) - Fraction(1, 10**9)
            assert self.budget.get_state() == state

    @rule(name=NAMES, share=st.floats(0, 1) | st.just(1.0))
    def settle(self, name: str, share: float) -> None:
        if name not in self.held:
            with pytest.raises(BudgetError, match=repr(name)):
                self.budget.settle(name, 0.0)
            return
        usd = self.asked_usd[name] * share
        assert self.budget.settle(name, usd) is True
        spent = exactly(self.budget)[0] - self.spent
        held = self.held.pop(name)
        assert 0 <= spent <= held
        assert share < 1.0 or spent == held
        assert abs(spent - Fraction(usd)) <= Fraction(1, 10**9)
        self.spent += spent

    @rule(name=NAMES)
    def release(self, name: str) -> None:
        """Releases the name whether or not anything is reserved under it."""
        self.budget.release(name)
        self.held.pop(name, None)

    @rule()
    def travel(self) -> None:
        """Through JSON, as in the ledger."""
        state = json.loads(json.dumps(self.budget.get_state(), allow_nan=False))
        self.budget = Budget(self.usd)
        self.budget.set_state(state)
        assert self.budget.get_state() == state

    @invariant()
    def nothing_is_lost_or_made(self) -> None:
        assert exactly(self.budget) == (self.spent, sum(self.held.values()))
        assert self.budget.get_state()["reserved"].keys() == self.held.keys()

    @invariant()
    def never_more_than_the_budget(self) -> None:
        """In exact units, and in the floats that a reader of rounds.jsonl sees."""
        assert self.spent + sum(self.held.values()) <= Fraction(self.usd)
        assert self.budget.spent_usd + self.budget.reserved_usd <= self.usd
        assert self.budget.free_usd >= 0.0


BudgetMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=20)
TestBudgetMachine = BudgetMachine.TestCase


def test_the_limit_is_rounded_down_and_amounts_up():
    assert [Budget(usd).fits([usd]) for usd in (0.5, 0.1, 0.7)] == [True, False, False]


@pytest.mark.parametrize("usd", [-1e-9, math.nan, math.inf])
def test_amounts_that_are_none_are_refused(usd: float):
    budget = Budget(1.0)
    for refused in (lambda: budget.reserve({"a": usd}), lambda: budget.spend(usd)):
        with pytest.raises(BudgetError, match="negative or infinite"):
            refused()
    assert budget.free_usd == 1.0


@pytest.mark.parametrize(
    "changes", [{"units_per_usd": 10}, {"spent": -1}, {"reserved": {"round": -1}}], ids=str
)
def test_a_state_that_none_has_is_refused(changes: dict[str, Any]):
    budget = Budget(1.0)
    with pytest.raises(ValueError, match="no amounts in 1/"):
        budget.set_state(budget.get_state() | changes)
    assert budget.free_usd == 1.0
