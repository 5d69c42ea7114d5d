"""Generalized advantage estimation over fragments that may be cut anywhere."""

from __future__ import annotations

import numpy as np


def generalized_advantages(
    rewards: np.ndarray,
    values: np.ndarray,
    next_values: np.ndarray,
    terminated: np.ndarray,
    cut: np.ndarray,
    *,
    discount: float,
    gae_lambda: float,
) -> np.ndarray:
    """Returns the advantages of Schulman et al. 2016, equation 16, for every step of every fragment.

        δ_t = r_t + γ·V(s_{t+1})·(1 − terminated_t) − V(s_t)
        Â_t = δ_t + γ·λ·Â_{t+1}·(1 − ended_t)

    A sequence ends where its episode terminated and where it was cut (time limit, end of the fragment). Only after a
    termination is no further reward expected.

    Args:
        rewards, values: ``[T, B]``.
        next_values: ``[T, B]``; V of the observation that followed the step, before any reset.
        terminated, cut: bool ``[T, B]``.

    Returns:
        float64 ``[T, B]``.
    """
    deltas: np.ndarray = rewards + discount * next_values * ~terminated - values
    carry = discount * gae_lambda * ~(terminated | cut)
    for step in range(len(rewards) - 2, -1, -1):
        deltas[step] += carry[step] * deltas[step + 1]
    return deltas


def explained_variance(values: np.ndarray, targets: np.ndarray) -> float | None:
    """Returns 1 − Var(target − V) / Var(target); None if the targets do not vary."""
    if targets.max() == targets.min():
        return None
    return 1.0 - float(np.var(targets - values, dtype=np.float64)) / float(
        np.var(targets, dtype=np.float64)
    )


def discounted_so_far(rewards: np.ndarray, is_over: np.ndarray, *, discount: float) -> np.ndarray:
    """Returns the discounted sum of an episode's rewards up to each step, the newest undiscounted, ``[T, B]``.

    stable-baselines3's VecNormalize divides rewards by its deviation.

    Departure: An episode that a fragment continues is summed from the fragment's first step.

    Args:
        rewards: ``[T, B]``.
        is_over: Whether the next step belongs to another episode, bool ``[T, B]``.
        discount: γ.
    """
    sums = rewards + 0.0
    for step in range(1, len(rewards)):
        sums[step] += discount * (sums[step - 1] * ~is_over[step - 1])
    return sums
