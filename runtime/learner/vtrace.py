"""V-trace: value targets and advantages of one policy from samples of another."""

from __future__ import annotations

import numpy as np


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
