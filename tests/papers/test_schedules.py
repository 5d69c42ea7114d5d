"""Schedules made from a recorded run start as many actors as it did."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.nitro.schedules import HIGHEST, LOWEST, ORDERS, permuted, schedule_of

_COUNTS = st.lists(st.integers(LOWEST, HIGHEST), min_size=1, max_size=60)


@pytest.mark.parametrize("order", ORDERS)
@given(counts=_COUNTS)
def test_a_schedule_has_the_runs_sum_within_its_bounds(order: str, counts: list[int]) -> None:
    made = ORDERS[order](np.array(counts), seed=0)
    assert len(made) == len(counts)
    assert made.sum() == sum(counts)
    assert LOWEST <= made.min() <= made.max() <= HIGHEST


@given(counts=_COUNTS)
def test_a_front_loaded_schedule_never_grows_by_more_than_rounding(counts: list[int]) -> None:
    assert max(np.diff(ORDERS["front-loaded"](np.array(counts), seed=0)), default=0) <= 1


def test_each_part_has_its_counts_in_another_order() -> None:
    recorded = [8, 8, 9, 30, 64, 12, 13, 20, 40]
    made = schedule_of(recorded, "permuted", seed=0)
    assert [round_index for round_index, _ in made] == list(range(1, 10))
    counts = [count for _, count in made]
    assert counts != recorded
    for part in (slice(0, 3), slice(3, 6), slice(6, 9)):
        assert Counter(counts[part]) == Counter(recorded[part])
    assert counts != permuted(np.array(recorded), seed=1).tolist()
