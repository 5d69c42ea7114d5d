"""V-trace against its definitions in the paper's notation, and against an independent library."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.learner.advantages import generalized_advantages
from runtime.learner.vtrace import vtrace

PLAIN = settings(max_examples=60, database=None, derandomize=True)


class Fragments:
    """Returns random fragments ``[T, B]`` with terminations and cuts anywhere. The last step of each ends in one way or
    the other.
    """

    def __init__(
        self,
        *,
        seed: int,
        steps: int,
        trajectories: int,
        end_share: float = 0.3,
        off_policy: float = 1.0,
    ) -> None:
        random = np.random.default_rng(seed)
        shape = (steps, trajectories)
        self.rewards, self.values, beyond = (random.normal(size=shape) for _ in range(3))
        self.log_ratios = off_policy * random.normal(size=shape)
        ending = random.random(shape)
        self.terminated = ending < end_share / 2.0
        self.cut = (ending >= end_share / 2.0) & (ending < end_share)
        self.cut[-1] = ~self.terminated[-1]
        following = np.concatenate([self.values[1:], beyond[-1:]])
        self.next_values = np.where(self.cut | self.terminated, beyond, following)

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

    def columns(self) -> list[list[dict[str, float | bool]]]:
        """Returns each trajectory's steps as plain numbers: reward r, V(x), V(x′), ratio, whether it ends and how."""
        return [
            [
                {
                    "r": float(self.rewards[t, b]),
                    "v": float(self.values[t, b]),
                    "next": float(self.next_values[t, b]),
                    "ratio": math.exp(float(self.log_ratios[t, b])),
                    "terminated": bool(self.terminated[t, b]),
                    "ends": bool(self.terminated[t, b] or self.cut[t, b]),
                }
                for t in range(len(self.rewards))
            ]
            for b in range(self.rewards.shape[1])
        ]


def delta(step: dict, discount: float) -> float:
    """δ_t V = ρ_t·(r_t + γ·V(x_{t+1}) − V(x_t))."""
    following = 0.0 if step["terminated"] else step["next"]
    return min(1.0, step["ratio"]) * (step["r"] + discount * following - step["v"])


def target_by_sum(column: list[dict], start: int, discount: float) -> float:
    """Equation 1: v_s = V(x_s) + Σ_t γ^{t−s}·(Π_{i=s}^{t−1} c_i)·δ_t V, to the end of the sequence."""
    total = column[start]["v"]
    for t in range(start, len(column)):
        product = math.prod(min(1.0, column[i]["ratio"]) for i in range(start, t))
        total += discount ** (t - start) * product * delta(column[t], discount)
        if column[t]["ends"]:
            break
    return total


def target_by_recursion(column: list[dict], start: int, discount: float) -> float:
    """Remark 1: v_s = V(x_s) + δ_s V + γ·c_s·(v_{s+1} − V(x_{s+1}))."""
    step = column[start]
    target = step["v"] + delta(step, discount)
    if not step["ends"]:
        following = target_by_recursion(column, start + 1, discount)
        target += discount * min(1.0, step["ratio"]) * (following - column[start + 1]["v"])
    return target


fragments = st.builds(
    Fragments,
    seed=st.integers(0, 2**32),
    steps=st.integers(1, 10),
    trajectories=st.integers(1, 3),
    end_share=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    off_policy=st.sampled_from([0.0, 0.3, 2.0]),
)
discounts = st.sampled_from([0.0, 0.9, 0.99, 1.0])


@PLAIN
@given(fragments, discounts)
def test_targets_equal_both_definitions(data: Fragments, discount: float) -> None:
    targets, _ = data.vtrace(discount)
    for b, column in enumerate(data.columns()):
        for t in range(len(column)):
            by_sum = target_by_sum(column, t, discount)
            assert targets[t, b] == pytest.approx(by_sum, rel=1e-9, abs=1e-9)
            assert target_by_recursion(column, t, discount) == pytest.approx(
                by_sum, rel=1e-9, abs=1e-9
            )


@PLAIN
@given(fragments, discounts)
def test_advantages_equal_their_definition(data: Fragments, discount: float) -> None:
    """§4.2: ρ_s·(r_s + γ·v_{s+1} − V(x_s)); after a cut v is V, after a termination 0."""
    _, advantages = data.vtrace(discount)
    for b, column in enumerate(data.columns()):
        for t, step in enumerate(column):
            if step["terminated"]:
                following = 0.0
            elif step["ends"]:
                following = step["next"]
            else:
                following = target_by_sum(column, t + 1, discount)
            expected = min(1.0, step["ratio"]) * (step["r"] + discount * following - step["v"])
            assert advantages[t, b] == pytest.approx(expected, rel=1e-9, abs=1e-9)


@PLAIN
@given(fragments, discounts)
def test_on_policy_the_targets_are_n_step_returns(data: Fragments, discount: float) -> None:
    """π = μ: v_s = Σ γ^{t−s}·r_t + γ^n·V(x_{s+n}), over the n remaining steps of the sequence."""
    data.log_ratios = np.zeros_like(data.log_ratios)
    targets, advantages = data.vtrace(discount)
    for b, column in enumerate(data.columns()):
        for start in range(len(column)):
            expected, weight = 0.0, 1.0
            for step in column[start:]:
                expected += weight * step["r"]
                weight *= discount
                if step["ends"]:
                    expected += 0.0 if step["terminated"] else weight * step["next"]
                    break
            assert targets[start, b] == pytest.approx(expected, rel=1e-9, abs=1e-9)
    expected = generalized_advantages(
        data.rewards,
        data.values,
        data.next_values,
        data.terminated,
        data.cut,
        discount=discount,
        gae_lambda=1.0,
    )
    np.testing.assert_allclose(advantages, expected, atol=1e-9)


@pytest.mark.parametrize("discount", [0.9, 1.0])
def test_equals_torchrl(discount: float) -> None:
    """Compares with an independent implementation, with terminations and cuts anywhere."""
    from torchrl.objectives.value.functional import vtrace_advantage_estimate

    for seed in range(5):
        data = Fragments(seed=seed, steps=25, trajectories=6, end_share=0.2)
        targets, advantages = data.vtrace(discount)

        def tensor(array: np.ndarray) -> torch.Tensor:
            return torch.from_numpy(np.ascontiguousarray(array.T))[..., None]

        theirs, their_targets = vtrace_advantage_estimate(
            discount,
            tensor(data.log_ratios),
            torch.zeros_like(tensor(data.log_ratios)),
            tensor(data.values),
            tensor(data.next_values),
            tensor(data.rewards),
            tensor(data.terminated | data.cut),
            tensor(data.terminated),
            rho_thresh=torch.tensor(1.0, dtype=torch.float64),
            c_thresh=torch.tensor(1.0, dtype=torch.float64),
        )
        # It rounds the discount to single precision.
        np.testing.assert_allclose(targets, their_targets[..., 0].T, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(advantages, theirs[..., 0].T, rtol=1e-5, atol=1e-6)


def test_by_hand() -> None:
    """γ = ½; ratios 2 (clipped to 1), ½ and 1."""
    rewards = np.array([[1.0], [2.0], [4.0]])
    values, beyond = np.array([[0.0], [2.0], [4.0]]), np.array([[2.0], [4.0], [8.0]])
    last, never = np.array([[False], [False], [True]]), np.zeros((3, 1), np.bool_)
    log_ratios = np.log(np.array([[2.0], [0.5], [1.0]]))
    targets, advantages = vtrace(rewards, values, beyond, log_ratios, never, last, discount=0.5)
    # δ = (1 + 1 − 0, ½·(2 + 2 − 2), 4 + 4 − 4) = (2, 1, 4); corrections from the end: 4, 1 + ½·½·4, 2 + ½·2
    np.testing.assert_allclose(targets[:, 0], [3, 4, 8])
    np.testing.assert_allclose(advantages[:, 0], [1 + 2 - 0, 0.5 * (2 + 4 - 2), 4 + 4 - 4])
    targets, advantages = vtrace(rewards, values, beyond, log_ratios, last, never, discount=0.5)
    # The last step terminates: δ_2 = 4 − 4 = 0
    np.testing.assert_allclose(targets[:, 0], [2.5, 3, 4])
    np.testing.assert_allclose(advantages[:, 0], [1 + 1.5, 0.5 * (2 + 2 - 2), 0])


def test_nothing_leaks_over_an_end() -> None:
    data = Fragments(seed=5, steps=20, trajectories=4)
    before = data.vtrace(0.9)
    for b in range(4):
        end = int(np.argmax((data.terminated | data.cut)[:, b]))
        kept = data.rewards.copy()
        data.rewards[end + 1 :, b] = 1e6
        for after, one in zip(data.vtrace(0.9), before, strict=True):
            np.testing.assert_array_equal(after[: end + 1, b], one[: end + 1, b])
        data.rewards = kept


@pytest.mark.parametrize("log_ratio", [1e4, -1e4])
def test_policies_that_have_nothing_in_common_stay_finite(log_ratio: float) -> None:
    """float32 log-probabilities, as in the learner; a ratio of 0 does not change the value."""
    data = Fragments(seed=1, steps=5, trajectories=2)
    data.log_ratios = np.full((5, 2), log_ratio, np.float32)
    targets, advantages = data.vtrace(0.9)
    assert np.isfinite(targets).all() and np.isfinite(advantages).all()
    assert targets.dtype == advantages.dtype == np.float64
    if log_ratio < 0.0:
        np.testing.assert_array_equal(targets, data.values)
        np.testing.assert_array_equal(advantages, np.zeros((5, 2)))
