"""Running moments of the observations, merged batch by batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch


class RunningMoments:
    """Mean and variance of all observations merged so far, float64 ``[O]``.

    Moments belong to a policy version, as its weights do. Actors normalize with the moments of the version that they
    run. An update merges its batch before the first step and publishes the same moments, so it trains the function of
    the raw observation that acts next. A trajectory contains the acting policy's probabilities, which are never
    computed again. So a ratio compares two such functions.
    """

    def __init__(self, size: int, binary_parts: Sequence[tuple[int, int]] = ()) -> None:
        """Begins with no observation.

        Args:
            size: ``O``.
            binary_parts: Starts and ends of features that are 0 or 1. They keep mean 0 and variance 1: a rare one has a
                small deviation, and normalized it would drown out all others.
        """
        self.count = 0
        self._binary_parts = binary_parts
        self.mean = np.zeros(size)
        self.variance = np.ones(size)

    @property
    def std(self) -> np.ndarray:
        """Standard deviation, float64 ``[O]``, bounded away from 0 for features that do not vary."""
        return np.sqrt(self.variance + 1e-8)

    def add(self, count: int, mean: np.ndarray, variance: np.ndarray) -> None:
        """Merges samples with these moments (Chan et al. 1979, the parallel update of mean and M2)."""
        for start, end in self._binary_parts:
            mean[start:end] = 0.0
            variance[start:end] = 1.0
        if self.count == 0:
            self.count = count
            self.mean = mean
            self.variance = variance
            return
        total = self.count + count
        delta = mean - self.mean
        squares = (
            self.variance * self.count + variance * count + delta**2 * self.count * count / total
        )
        self.count = total
        self.mean = self.mean + delta * count / total
        self.variance = squares / total

    def load(self, mean: np.ndarray, variance: np.ndarray, count: int) -> None:
        """Replaces the moments by others with the same number of features.

        Raises:
            ValueError: The features differ.
        """
        if mean.shape != self.mean.shape or variance.shape != self.mean.shape:
            raise ValueError(
                f"moments have {len(mean)} features, the observations {len(self.mean)}"
            )
        self.count = count
        self.mean = mean.copy()
        self.variance = variance.copy()

    def copy(self) -> RunningMoments:
        """Returns a copy."""
        other = RunningMoments(len(self.mean), self._binary_parts)
        other.count = self.count
        other.mean = self.mean.copy()
        other.variance = self.variance.copy()
        return other


def moments_of(samples: Any) -> tuple[int, np.ndarray, np.ndarray]:
    """Returns the number of ``samples`` ``[N, O]``, and their mean and variance, float64 ``[O]``."""
    if not len(samples):
        return 0, np.zeros(samples.shape[1:]), np.zeros(samples.shape[1:])
    if isinstance(samples, torch.Tensor):
        samples = samples.double()
        return (
            len(samples),
            samples.mean(0).cpu().numpy(),
            samples.var(0, correction=0).cpu().numpy(),
        )
    samples = samples.astype(np.float64)
    return len(samples), samples.mean(0), samples.var(0)
