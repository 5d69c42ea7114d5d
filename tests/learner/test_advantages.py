"""GAE, V-trace and explained variance against the sums of their papers, written without recursion."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.learner.advantages import (
    discounted_so_far,
    explained_variance,
    generalized_advantages,
    vtrace,
)

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

    def sums(self, discount: float, traces: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Returns Σ_t γ^{t−s}·(Π_{i=s}^{t−1} c_i)·w_t·δ_t over the steps t left in each step's sequence.

        δ_t = r_t + γ·V(s_{t+1}) − V(s_t), where V is 0 after a termination.
        """
        after = np.where(self.terminated, 0.0, self.next_values)
        deltas = weights * (self.rewards + discount * after - self.values)
        found, is_over = np.zeros_like(deltas), self.terminated | self.cut
        for step, column in np.ndindex(*deltas.shape):
            left = is_over[step:, column].argmax() + 1
            for lag in range(left):
                product = math.prod(traces[step : step + lag, column])
                found[step, column] += discount**lag * product * deltas[step + lag, column]
        return found


fragments = st.builds(
    Fragments,
    seed=st.integers(0, 2**32),
    steps=st.integers(1, 12),
    trajectories=st.integers(1, 4),
    end_share=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    off_policy=st.sampled_from([0.0, 0.3, 2.0, 1e4]),
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
    ones = np.ones_like(data.rewards)
    np.testing.assert_allclose(
        advantages, data.sums(discount, gae_lambda * ones, ones), rtol=1e-9, atol=1e-9
    )


@PLAIN
@given(fragments, shares)
def test_vtrace_equals_its_definitions(data: Fragments, discount: float) -> None:
    """Espeholt et al., equation 1 with c = ρ = min(1, π/μ), and §4.2: Â_s = ρ_s·(r_s + γ·v_{s+1} − V(x_s)).

    After a cut v is V, after a termination 0.
    """
    targets, advantages = vtrace(
        data.rewards,
        data.values,
        data.next_values,
        data.log_ratios,
        data.terminated,
        data.cut,
        discount=discount,
    )
    with np.errstate(over="ignore"):
        ratios = np.minimum(1.0, np.exp(data.log_ratios))
    expected = data.values + data.sums(discount, ratios, ratios)
    np.testing.assert_allclose(targets, expected, rtol=1e-9, atol=1e-9)
    following = np.where(data.terminated, 0.0, data.next_values)
    goes_on = ~(data.terminated | data.cut)[:-1]
    following[:-1][goes_on] = expected[1:][goes_on]
    expected = ratios * (data.rewards + discount * following - data.values)
    np.testing.assert_allclose(advantages, expected, rtol=1e-9, atol=1e-9)


@PLAIN
@given(st.lists(st.tuples(st.floats(-100, 100), st.floats(-100, 100)), min_size=2, max_size=30))
def test_explained_variance_equals_its_definition(pairs: list[tuple[float, float]]) -> None:
    """It is null where the targets do not vary, though the mean of ten times 0.1 is not exactly 0.1."""
    assert explained_variance(np.arange(10.0), np.full(10, 0.1)) is None
    values, targets = np.array(pairs).T
    if np.var(targets) < 1e-6:
        return
    expected = 1.0 - np.var(targets - values) / np.var(targets)
    assert explained_variance(values, targets) == pytest.approx(expected, rel=1e-6, abs=1e-6)


def test_the_discounted_sum_so_far_begins_anew_with_each_episode() -> None:
    rewards = np.array([[1.0, 4.0], [2.0, 0.0], [3.0, -8.0], [5.0, 2.0]])
    is_over = np.array([[False, True], [False, False], [True, False], [False, False]])
    np.testing.assert_allclose(
        discounted_so_far(rewards, is_over, discount=0.5),
        [[1.0, 4.0], [2.5, 0.0], [4.25, -8.0], [5.0, -2.0]],
    )
