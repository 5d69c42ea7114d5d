"""GAE and explained variance against the sums of the paper (Schulman et al. 2016), written without recursion."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.learner.advantages import discounted_so_far, explained_variance, generalized_advantages

PLAIN = settings(max_examples=60, database=None, derandomize=True)


class Fragments:
    """Returns random ``[T, B]`` fragments. Sequences end at terminations and cuts, and always at the last step."""

    def __init__(self, seed: int, steps: int, trajectories: int, end_share: float = 0.3) -> None:
        random = np.random.default_rng(seed)
        shape = (steps, trajectories)
        self.rewards = random.normal(size=shape)
        self.values = random.normal(size=shape)
        kind = random.random(shape)
        self.terminated = kind < end_share / 2
        self.cut = (kind >= end_share / 2) & (kind < end_share)
        self.cut[-1] |= ~self.terminated[-1]
        following = np.concatenate([self.values[1:], np.full((1, trajectories), np.nan)])
        after_end = random.normal(size=shape)
        self.next_values = np.where(self.cut | self.terminated, after_end, following)

    def advantages(self, discount: float, gae_lambda: float) -> np.ndarray:
        return generalized_advantages(
            self.rewards,
            self.values,
            self.next_values,
            self.terminated,
            self.cut,
            discount=discount,
            gae_lambda=gae_lambda,
        )

    def sequence_from(self, step: int, column: int) -> range:
        """Returns the steps of its sequence from ``step`` to the end, inclusive."""
        last = step
        while not (self.terminated[last, column] or self.cut[last, column]):
            last += 1
        return range(step, last + 1)

    def delta(self, step: int, column: int, discount: float) -> float:
        """δ_t = r_t + γ·V(s_{t+1}) − V(s_t), where V is 0 after a termination."""
        following = 0.0 if self.terminated[step, column] else float(self.next_values[step, column])
        return (
            float(self.rewards[step, column])
            + discount * following
            - float(self.values[step, column])
        )

    def n_step_advantage(self, step: int, column: int, length: int, discount: float) -> float:
        """Â⁽ⁿ⁾_t = −V(s_t) + r_t + γ·r_{t+1} + … + γⁿ·V(s_{t+n}) (equations 11 to 14)."""
        last = step + length - 1
        following = 0.0 if self.terminated[last, column] else float(self.next_values[last, column])
        rewards = sum(discount**i * float(self.rewards[step + i, column]) for i in range(length))
        return rewards + discount**length * following - float(self.values[step, column])


fragments = st.builds(
    Fragments,
    seed=st.integers(0, 2**32),
    steps=st.integers(1, 12),
    trajectories=st.integers(1, 4),
    end_share=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
)
shares = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0.01, 0.999))


def each_step(data: Fragments):
    return np.ndindex(*data.rewards.shape)


@PLAIN
@given(fragments, shares, shares)
def test_equals_the_sum_of_discounted_deltas(
    data: Fragments, discount: float, gae_lambda: float
) -> None:
    """Equation 16: Â_t = Σ_l (γλ)^l·δ_{t+l}, over the steps left in the sequence."""
    advantages = data.advantages(discount, gae_lambda)
    for step, column in each_step(data):
        expected = sum(
            (discount * gae_lambda) ** lag * data.delta(later, column, discount)
            for lag, later in enumerate(data.sequence_from(step, column))
        )
        assert advantages[step, column] == pytest.approx(expected, rel=1e-9, abs=1e-9)


@PLAIN
@given(fragments, shares, st.floats(0.0, 0.99))
def test_equals_the_weighted_mean_of_n_step_advantages(
    data: Fragments, discount: float, gae_lambda: float
) -> None:
    """The paper's definition: (1 − λ)·Σ_n λ^{n−1}·Â⁽ⁿ⁾, where no Â⁽ⁿ⁾ reaches beyond the end of the sequence."""
    advantages = data.advantages(discount, gae_lambda)
    for step, column in each_step(data):
        longest = len(data.sequence_from(step, column))
        expected = sum(
            (1.0 - gae_lambda)
            * gae_lambda ** (n - 1)
            * data.n_step_advantage(step, column, n, discount)
            for n in range(1, longest)
        )
        expected += gae_lambda ** (longest - 1) * data.n_step_advantage(
            step, column, longest, discount
        )
        assert advantages[step, column] == pytest.approx(expected, rel=1e-9, abs=1e-9)


@PLAIN
@given(fragments, shares)
def test_lambda_zero_gives_the_one_step_error(data: Fragments, discount: float) -> None:
    advantages = data.advantages(discount, 0.0)
    for step, column in each_step(data):
        assert advantages[step, column] == pytest.approx(
            data.delta(step, column, discount), abs=1e-12
        )


@PLAIN
@given(fragments, shares)
def test_lambda_one_gives_the_discounted_return_less_the_value(
    data: Fragments, discount: float
) -> None:
    advantages = data.advantages(discount, 1.0)
    for step, column in each_step(data):
        length = len(data.sequence_from(step, column))
        assert advantages[step, column] == pytest.approx(
            data.n_step_advantage(step, column, length, discount), rel=1e-9, abs=1e-9
        )


@PLAIN
@given(fragments, shares)
def test_discount_zero_gives_the_reward_less_the_value(data: Fragments, gae_lambda: float) -> None:
    np.testing.assert_allclose(
        data.advantages(0.0, gae_lambda), data.rewards - data.values, atol=1e-12
    )


def test_a_sequence_by_hand() -> None:
    """γ = ½, λ = ½: a cut bootstraps with the next value, a termination with 0."""
    column = np.array([[1.0], [2.0], [4.0]])
    values = np.array([[0.5], [1.0], [2.0]])
    beyond = np.array([[1.0], [2.0], [8.0]])
    last = np.array([[False], [False], [True]])
    never = np.zeros_like(last)
    cut = generalized_advantages(column, values, beyond, never, last, discount=0.5, gae_lambda=0.5)
    # δ = (1 + ½·1 − ½, 2 + ½·2 − 1, 4 + ½·8 − 2) = (1, 2, 6)
    np.testing.assert_allclose(cut[:, 0], [1 + 2 / 4 + 6 / 16, 2 + 6 / 4, 6])
    terminated = generalized_advantages(
        column, values, beyond, last, never, discount=0.5, gae_lambda=0.5
    )
    # δ_2 = 4 − 2 = 2
    np.testing.assert_allclose(terminated[:, 0], [1 + 2 / 4 + 2 / 16, 2 + 2 / 4, 2])


@PLAIN
@given(fragments)
def test_nothing_leaks_over_an_end_or_between_trajectories(data: Fragments) -> None:
    """Data after a sequence's end, or in another trajectory, do not change anything before it."""
    before = data.advantages(0.9, 0.8)
    ended = data.terminated | data.cut
    for column in range(data.rewards.shape[1]):
        first_end = int(np.argmax(ended[:, column]))
        kept = data.rewards.copy()
        data.rewards = np.full_like(kept, 1e6)
        data.rewards[: first_end + 1, column] = kept[: first_end + 1, column]
        after = data.advantages(0.9, 0.8)
        data.rewards = kept
        np.testing.assert_array_equal(
            after[: first_end + 1, column], before[: first_end + 1, column]
        )


def test_only_a_termination_forgets_what_follows() -> None:
    """A next value larger by one is worth γ more, also at cuts, but nothing if the episode terminated."""
    data = Fragments(seed=3, steps=20, trajectories=5)
    before = data.advantages(0.9, 0.0)
    data.next_values = data.next_values + 1.0
    change = data.advantages(0.9, 0.0) - before
    np.testing.assert_allclose(change, np.where(data.terminated, 0.0, 0.9), atol=1e-12)
    assert data.terminated.any() and data.cut.any()


def test_advantages_are_double_precision() -> None:
    data = Fragments(seed=1, steps=4, trajectories=2)
    data.values, data.next_values = (
        data.values.astype(np.float32),
        data.next_values.astype(np.float32),
    )
    advantages = data.advantages(0.99, 0.95)
    assert advantages.dtype == np.float64
    assert advantages.shape == (4, 2)


@PLAIN
@given(st.lists(st.tuples(st.floats(-100, 100), st.floats(-100, 100)), min_size=2, max_size=30))
def test_explained_variance_equals_its_definition(pairs: list[tuple[float, float]]) -> None:
    values, targets = zip(*pairs, strict=True)

    def variance(numbers: list[float]) -> float:
        mean = sum(numbers) / len(numbers)
        return sum((number - mean) ** 2 for number in numbers) / len(numbers)

    if variance(targets) < 1e-6:
        return
    residuals = [target - value for value, target in pairs]
    expected = 1.0 - variance(residuals) / variance(targets)
    assert explained_variance(np.array(values), np.array(targets)) == pytest.approx(
        expected, rel=1e-6, abs=1e-6
    )


def test_explained_variance_of_perfect_constant_and_opposite_values() -> None:
    targets = np.array([1.0, 2.0, 4.0])
    assert explained_variance(targets, targets) == 1.0
    assert explained_variance(np.full(3, 7.0), targets) == pytest.approx(0.0)
    assert explained_variance(-targets, targets) == pytest.approx(-3.0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("constant", [0.0, 1.0, 0.1, -123.456])
@pytest.mark.parametrize("count", [1, 2, 3, 10, 1000])
def test_explained_variance_is_null_where_the_targets_do_not_vary(
    constant: float, count: int, dtype: type
) -> None:
    """Rounding must not matter either: the mean of ten times 0.1 is not exactly 0.1."""
    values = np.random.default_rng(0).normal(size=count).astype(dtype)
    assert explained_variance(values, np.full(count, constant, dtype)) is None


def test_the_discounted_sum_so_far_begins_anew_with_each_episode() -> None:
    rewards = np.array([[1.0, 4.0], [2.0, 0.0], [3.0, -8.0], [5.0, 2.0]])
    is_over = np.array([[False, True], [False, False], [True, False], [False, False]])
    np.testing.assert_allclose(
        discounted_so_far(rewards, is_over, discount=0.5),
        [[1.0, 4.0], [2.5, 0.0], [4.25, -8.0], [5.0, -2.0]],
    )
