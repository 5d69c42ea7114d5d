"""GAE, V-trace and explained variance against the sums of their papers, written without recursion."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.learner.advantages import discounted_so_far, explained_variance, generalized_advantages
from runtime.learner.vtrace import vtrace

PLAIN = settings(max_examples=60, database=None, derandomize=True)


class Fragments:
    """Returns random ``[T, B]`` fragments. Sequences end at terminations and cuts, and always at the last step."""

    def __init__(
        self, seed: int, steps: int, trajectories: int, end_share: float, off_policy: float
    ) -> None:
        random = np.random.default_rng(seed)
        shape = (steps, trajectories)
        self.rewards, self.values, after_end = (random.normal(size=shape) for _ in range(3))
        self.log_ratios = off_policy * random.normal(size=shape)
        kind = random.random(shape)
        self.terminated = kind < end_share / 2
        self.cut = (kind >= end_share / 2) & (kind < end_share)
        self.cut[-1] |= ~self.terminated[-1]
        following = np.concatenate([self.values[1:], after_end[-1:]])
        self.next_values = np.where(self.cut | self.terminated, after_end, following)

    def vtrace(self, discount: float) -> tuple[np.ndarray, np.ndarray]:
        return vtrace(
            self.rewards,
            self.values,
            self.next_values,
            self.log_ratios,
            self.terminated,
            self.cut,
            discount=discount,
        )

    def sequence_from(self, step: int, column: int) -> range:
        """Returns the steps of its sequence from ``step`` to the end, inclusive."""
        last = step
        while not (self.terminated[last, column] or self.cut[last, column]):
            last += 1
        return range(step, last + 1)

    def delta(self, step: int, column: int, discount: float) -> float:
        """δ_t = r_t + γ·V(s_{t+1}) − V(s_t), where V is 0 after a termination."""
        following = 0.0 if self.terminated[step, column] else self.next_values[step, column]
        return self.rewards[step, column] + discount * following - self.values[step, column]

    def ratio(self, step: int, column: int) -> float:
        """ρ = c = min(1, π/μ)."""
        return min(1.0, math.exp(self.log_ratios[step, column]))

    def target(self, step: int, column: int, discount: float) -> float:
        """Espeholt et al., equation 1: v_s = V(x_s) + Σ_t γ^{t−s}·(Π_{i=s}^{t−1} c_i)·ρ_t·δ_t, to its end."""
        return self.values[step, column] + sum(
            discount ** (later - step)
            * math.prod(self.ratio(i, column) for i in range(step, later + 1))
            * self.delta(later, column, discount)
            for later in self.sequence_from(step, column)
        )


fragments = st.builds(
    Fragments,
    seed=st.integers(0, 2**32),
    steps=st.integers(1, 12),
    trajectories=st.integers(1, 4),
    end_share=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    off_policy=st.sampled_from([0.0, 0.3, 2.0]),
)
shares = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0.01, 0.999))


@PLAIN
@given(fragments, shares, shares)
def test_equals_the_sum_of_discounted_deltas(
    data: Fragments, discount: float, gae_lambda: float
) -> None:
    """Schulman et al. 2016, equation 16: Â_t = Σ_l (γλ)^l·δ_{t+l}, over the steps left in the sequence."""
    advantages = generalized_advantages(
        data.rewards,
        data.values,
        data.next_values,
        data.terminated,
        data.cut,
        discount=discount,
        gae_lambda=gae_lambda,
    )
    for step, column in np.ndindex(*data.rewards.shape):
        expected = sum(
            (discount * gae_lambda) ** lag * data.delta(later, column, discount)
            for lag, later in enumerate(data.sequence_from(step, column))
        )
        assert advantages[step, column] == pytest.approx(expected, rel=1e-9, abs=1e-9)


@PLAIN
@given(fragments, shares)
def test_vtrace_equals_its_definitions(data: Fragments, discount: float) -> None:
    """Equation 1, and §4.2: Â_s = ρ_s·(r_s + γ·v_{s+1} − V(x_s)); after a cut v is V, after a termination 0."""
    targets, advantages = data.vtrace(discount)
    for step, column in np.ndindex(*data.rewards.shape):
        expected = data.target(step, column, discount)
        assert targets[step, column] == pytest.approx(expected, rel=1e-9, abs=1e-9)
        beyond = 0.0
        if len(data.sequence_from(step, column)) > 1:
            beyond = data.target(step + 1, column, discount) - data.next_values[step, column]
        expected = data.ratio(step, column) * (
            data.delta(step, column, discount) + discount * beyond
        )
        assert advantages[step, column] == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("log_ratio", [1e4, -1e4])
def test_policies_that_have_nothing_in_common_stay_finite(log_ratio: float) -> None:
    """float32 log-probabilities, as in the learner; a ratio of 0 does not change the value."""
    data = Fragments(1, 5, 2, 0.3, 1.0)
    data.log_ratios = np.full((5, 2), log_ratio, np.float32)
    targets, advantages = data.vtrace(0.9)
    assert np.isfinite(targets).all() and np.isfinite(advantages).all()
    if log_ratio < 0.0:
        np.testing.assert_array_equal(targets, data.values)
        np.testing.assert_array_equal(advantages, np.zeros((5, 2)))


@PLAIN
@given(st.lists(st.tuples(st.floats(-100, 100), st.floats(-100, 100)), min_size=2, max_size=30))
def test_explained_variance_equals_its_definition(pairs: list[tuple[float, float]]) -> None:
    values, targets = np.array(pairs).T
    if np.var(targets) < 1e-6:
        return
    expected = 1.0 - np.var(targets - values) / np.var(targets)
    assert explained_variance(values, targets) == pytest.approx(expected, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_explained_variance_is_null_where_the_targets_do_not_vary(dtype: type) -> None:
    """Rounding must not matter either: the mean of ten times 0.1 is not exactly 0.1."""
    assert explained_variance(np.arange(10, dtype=dtype), np.full(10, 0.1, dtype)) is None


def test_the_discounted_sum_so_far_begins_anew_with_each_episode() -> None:
    rewards = np.array([[1.0, 4.0], [2.0, 0.0], [3.0, -8.0], [5.0, 2.0]])
    is_over = np.array([[False, True], [False, False], [True, False], [False, False]])
    np.testing.assert_allclose(
        discounted_so_far(rewards, is_over, discount=0.5),
        [[1.0, 4.0], [2.5, 0.0], [4.25, -8.0], [5.0, -2.0]],
    )
