"""MinionsRL-Adapt against its formula, for targets above 0."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from papers.minionsrl.adapt import MinionsAdaptSettings
from runtime.errors import ExperimentError
from runtime.experiment.loading import experiment_from_tree
from runtime.scaler.interfaces import RoundView
from tests.scaler.schedulers import row

PLAIN = settings(max_examples=60, database=None, derandomize=True)


def actors(returns: list[float | None], target: float, **options: int) -> int:
    rows = [row(episode_return_mean=one) for one in returns]
    view = RoundView(len(rows) + 1, rows, target_return=target)
    decision = MinionsAdaptSettings(**options).make().decide(view)
    assert 0.0 <= decision.boosting_score <= 1.0
    return decision.actor_count


@PLAIN
@given(
    st.lists(st.one_of(st.none(), st.integers(-500, 5000)), max_size=12),
    st.integers(1, 4000),
    st.integers(1, 7),
)
def test_equals_the_formula_with_the_missing_1_over_n(
    returns: list[int | None], target: int, n: int
) -> None:
    latest = [Fraction(one) for one in returns if one is not None][-n:]
    share = sum(latest) / len(latest) / target if latest else Fraction(0)
    wanted = math.floor(64 * share + Fraction(1, 2))
    if (64 * share + Fraction(1, 2)).denominator > 1:
        assert actors(returns, target, return_rounds=n) == min(max(wanted, 8), 64)


@pytest.mark.parametrize(
    ("returns", "target", "expected"),
    [
        ([], 3000, 8),
        ([1500.0], 3000, 32),
        ([math.nan, 1500.0, math.inf], 3000, 32),
        ([9e9, 1, 1, 1, 1, 1], 1, 64),
        ([-50.0], 200, 8),
    ],
)
def test_by_hand(returns: list[float | None], target: float, expected: int) -> None:
    """Default bounds 8 to 64."""
    assert actors(returns, target) == expected


def test_without_a_target_it_is_refused() -> None:
    tree = {
        "environment": {"id": "Pendulum-v1"},
        "budget": {"usd": 9.0},
        "scaler": {"kind": "papers.minionsrl.adapt:MinionsAdaptSettings"},
    }
    with pytest.raises(
        ExperimentError, match="compares returns with stop.target_return = null; allowed: a number"
    ):
        experiment_from_tree(tree, source="test")
