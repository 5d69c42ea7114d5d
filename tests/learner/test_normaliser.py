"""Merged moments equal the moments of all data at once."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.learner.normaliser import RunningMoments, moments_of

PLAIN = settings(max_examples=60, database=None, derandomize=True)


@PLAIN
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=8),
    st.integers(0, 2**32),
    st.sampled_from([0.0, 5.0, -3e5]),
    st.sampled_from([1e-3, 1.0, 50.0]),
)
def test_merging_equals_the_moments_of_all_data(
    sizes: list[int], seed: int, offset: float, scale: float
) -> None:
    """Batches of different sizes with drifting means. The last feature is 0 or 1, and is left as it is."""
    random = np.random.default_rng(seed)
    batches = [random.normal(offset + scale * random.normal(), scale, (size, 3)) for size in sizes]
    moments = RunningMoments(3, ((2, 3),))
    for number, batch in enumerate(batches):
        moments.add(*moments_of(torch.from_numpy(batch) if number % 2 else batch))
        moments = moments.copy()
    rows = np.concatenate(batches).astype(float)
    assert moments.count == sum(sizes)
    mean, variance = ([*whole[:2], rest] for whole, rest in ((rows.mean(0), 0), (rows.var(0), 1)))
    np.testing.assert_allclose(moments.mean, mean, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(moments.variance, variance, rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(moments.std, np.sqrt(variance), rtol=1e-3, atol=2e-4)
    assert (moments.std > 0.0).all()
