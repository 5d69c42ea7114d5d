"""Advantages and value targets over fragments that may be cut anywhere: GAE and V-trace."""

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


def vtrace(
    rewards: np.ndarray,
    values: np.ndarray,
    next_values: np.ndarray,
    log_ratios: np.ndarray,
    terminated: np.ndarray,
    cut: np.ndarray,
    *,
    discount: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns V-trace's value targets and advantages, with ρ̄ = c̄ = 1.

    Targets: Espeholt et al. 2018, equation 1 as in their Remark 1. Advantages: their §4.2.

        ρ_t = min(1, π(a_t|s_t)/μ(a_t|s_t))
        δ_t = ρ_t·(r_t + γ·V(s_{t+1}) − V(s_t))
        v_t = V(s_t) + δ_t + γ·ρ_t·(v_{t+1} − V(s_{t+1}))
        Â_t = ρ_t·(r_t + γ·v_{t+1} − V(s_t))

    A sequence ends where its episode terminated, with no further reward, and where it was cut (time limit, end of the
    fragment), with v_{t+1} = V(s_{t+1}).

    Args:
        rewards, values: ``[T, B]``.
        next_values: ``[T, B]``; V of the observation that followed the step, before any reset.
        log_ratios: log π − log μ of the actions taken, ``[T, B]``.
        terminated, cut: bool ``[T, B]``.

    Returns:
        v and Â, both float64 ``[T, B]``.
    """
    # Clip before the exponential, which might overflow.
    rhos = np.exp(np.minimum(log_ratios.astype(np.float64), 0.0))
    following_values = next_values * ~terminated
    deltas = rhos * (rewards + discount * following_values - values)
    carry = discount * rhos * ~(terminated | cut)
    corrections = np.zeros((len(rewards) + 1, *rewards.shape[1:]))
    for step in range(len(rewards) - 1, -1, -1):
        corrections[step] = deltas[step] + carry[step] * corrections[step + 1]
    following_targets = following_values + ~(terminated | cut) * corrections[1:]
    return values + corrections[:-1], rhos * (rewards + discount * following_targets - values)


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
