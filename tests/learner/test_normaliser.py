"""Merged moments equal the moments of all data at once."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.learner.normaliser import RunningMoments

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
    """Returns batches of different sizes with drifting means."""
    random = np.random.default_rng(seed)
    batches = [random.normal(offset + scale * random.normal(), scale, (size, 3)) for size in sizes]
    moments = RunningMoments(3)
    for batch in batches:
        moments.merge(batch)
    rows = np.concatenate(batches).astype(float)
    assert moments.count == sum(sizes)
    np.testing.assert_allclose(moments.mean, rows.mean(0), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(moments.variance, rows.var(0), rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(moments.std, rows.std(0), rtol=1e-3, atol=2e-4)
    assert (moments.std > 0.0).all()


def test_what_is_zero_or_one_is_left_as_it_is() -> None:
    moments, plain = RunningMoments(4, ((1, 3),)), RunningMoments(4)
    for seed in range(3):
        samples = np.random.default_rng(seed).random((7, 4)).astype(np.float32)
        moments.merge(samples)
        plain.merge(samples)
        moments = moments.copy()
    np.testing.assert_array_equal(moments.mean[1:3], 0.0)
    np.testing.assert_array_equal(moments.std.astype(np.float32)[1:3], 1.0)
    for name in ("mean", "std"):
        np.testing.assert_array_equal(getattr(moments, name)[[0, 3]], getattr(plain, name)[[0, 3]])
    assert (plain.mean[1:3] > 0.1).all() and moments.count == 21
