"""Schedules with as many actors as a recorded run, but without its measurements: what a signal has to beat."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

LOWEST, HIGHEST = 8, 64
"""Nitro's bounds on a round's actors. Paper: §8.1."""
DECAY = 0.96
"""Nitro's d. Paper: §8.1."""

Counts = npt.NDArray[np.int64]


def permuted(counts: Counts, *, seed: int, parts: int = 3) -> Counts:
    """Returns the counts in random order within each of some parts of nearly equal numbers of rounds.

    Args:
        parts: 3 keeps a decay over the rounds, 1 does not.
    """
    generator = np.random.default_rng(seed)
    return np.concatenate([generator.permutation(part) for part in np.array_split(counts, parts)])


def front_loaded(counts: Counts, *, seed: int) -> Counts:
    """Returns counts in proportion to d^k, within Nitro's bounds, with the same sum."""
    del seed
    decay = DECAY ** np.arange(1, len(counts) + 1)
    scale_min = 0.0
    scale_max = HIGHEST / decay[-1]
    for _ in range(100):
        scale = (scale_min + scale_max) / 2
        if np.clip(scale * decay, LOWEST, HIGHEST).sum() < counts.sum():
            scale_min = scale
        else:
            scale_max = scale
    return _whole(np.clip(scale_max * decay, LOWEST, HIGHEST))


def even(counts: Counts, *, seed: int) -> Counts:
    """Returns equal counts with the same sum; some are larger by one."""
    del seed
    return _whole(np.full(len(counts), counts.mean()))


def _whole(shares: npt.NDArray[np.float64]) -> Counts:
    """Rounds numbers so that all sums from the first one are off by at most a half."""
    sums = np.floor(np.cumsum(shares) + 0.5 - 1e-6).astype(np.int64)
    return np.diff(sums, prepend=0)


ORDERS: Mapping[str, Callable[..., Counts]] = {
    "permuted": permuted,
    "front-loaded": front_loaded,
    "even": even,
}


def schedule_of(counts: Sequence[int], order: str, *, seed: int) -> list[tuple[int, int]]:
    """Returns ``scaler.schedule`` with the sum of a run's counts.

    Args:
        counts: The run's actors by round.
        order: One of `ORDERS`.
        seed: Seed of a random order.
    """
    return list(enumerate(ORDERS[order](np.array(counts), seed=seed).tolist(), start=1))
