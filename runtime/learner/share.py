"""A process's share of a batch: all of it, or a part whose other parts a group of processes has.

Samples never leave their process. Only gradients, counts, means and variances travel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch

from runtime.learner.advantages import explained_variance
from runtime.learner.normaliser import RunningMoments, moments_of


class ProcessGroup(Protocol):
    """Processes that make the same calls together."""

    @property
    def rank(self) -> int:
        """Index of this process, from 0."""

    @property
    def size(self) -> int:
        """Number of processes."""

    def sum(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replaces each tensor by its sum over the group, in place; bit-identical in all processes."""


class Alone:
    """The whole batch, on which this process trains by itself."""

    is_alone = True

    def sum(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replaces each tensor by its sum over the group, in place."""

    def whole_lengths(self, own_lengths: np.ndarray) -> np.ndarray:
        """Returns the steps of each trajectory of the whole batch, given those of this process's, int64 ``[B]``."""
        return own_lengths

    def own(self, indices: torch.Tensor | None, own_count: int) -> tuple[torch.Tensor | None, int]:
        """Returns which of this process's samples belong to a minibatch, and the minibatch's total size.

        Args:
            indices: The minibatch as indices of the whole batch's samples, int64; None = all.
            own_count: Number of this process's samples.
        """
        return indices, own_count if indices is None else len(indices)

    def part(self, columns: np.ndarray) -> tuple[np.ndarray, Alone]:
        """Returns which of this process's trajectories belong to a selection, and its share of the selection.

        Args:
            columns: The selection from the whole batch, int64, in any order.
        """
        return columns, self

    def moments(self, samples: Any) -> tuple[int, np.ndarray, np.ndarray]:
        """Returns number, mean and variance of the whole batch, given this process's ``samples`` ``[N, O]``."""
        return moments_of(samples)

    def explained_variance(self, values: Any, targets: Any) -> float | None:
        """Returns the whole batch's explained variance, given this process's ``values`` and ``targets`` ``[N]``."""
        return explained_variance(
            *(torch.as_tensor(one).cpu().numpy() for one in (values, targets))
        )


class Share(Alone):
    """Locates this process's samples in the whole batch of a group."""

    is_alone = False

    def __init__(
        self, group: ProcessGroup, columns: np.ndarray, lengths: np.ndarray, *, device: torch.device
    ) -> None:
        """Counts the samples of the whole batch as `runtime.learner.batch.flat` orders them.

        Args:
            group: The processes.
            columns: Which trajectories of the whole batch this process has, ascending, int64.
            lengths: Steps of each trajectory of the whole batch, int64 ``[B]``.
            device: Device of the learner.
        """
        self._group = group
        self._columns = columns
        self._lengths = lengths
        self._device = device
        is_step = np.arange(lengths.max())[:, None] < lengths
        order = np.cumsum(is_step).reshape(is_step.shape) - 1
        own = order[:, columns][is_step[:, columns]]
        positions = np.full(lengths.sum(), -1)
        positions[own] = np.arange(len(own))
        self._positions = torch.from_numpy(positions).to(device)

    def sum(self, tensors: Sequence[torch.Tensor]) -> None:
        self._group.sum(tensors)

    def whole_lengths(self, own_lengths: np.ndarray) -> np.ndarray:
        return self._lengths

    def own(self, indices: torch.Tensor | None, own_count: int) -> tuple[torch.Tensor | None, int]:
        positions = self._positions if indices is None else self._positions[indices]
        return positions[positions >= 0], len(positions)

    def part(self, columns: np.ndarray) -> tuple[np.ndarray, Alone]:
        is_own = np.isin(columns, self._columns)
        share = Share(
            self._group, np.flatnonzero(is_own), self._lengths[columns], device=self._device
        )
        return np.searchsorted(self._columns, columns[is_own]), share

    def moments(self, samples: Any) -> tuple[int, np.ndarray, np.ndarray]:
        count, mean, variance = moments_of(samples)
        rows = torch.zeros(
            (self._group.size, 1 + 2 * len(mean)), dtype=torch.float64, device=self._device
        )
        rows[self._group.rank] = torch.from_numpy(np.concatenate([[count], mean, variance])).to(
            self._device
        )
        self._group.sum([rows])
        moments = RunningMoments(len(mean))
        for row in rows.cpu().numpy():
            # A process without samples has no mean.
            if row[0]:
                moments.add(int(row[0]), row[1 : 1 + len(mean)], row[1 + len(mean) :])
        return moments.count, moments.mean, moments.variance

    def explained_variance(self, values: Any, targets: Any) -> float | None:
        stack = torch.stack if isinstance(values, torch.Tensor) else np.stack
        unexplained, variance = self.moments(stack([targets - values, targets], 1))[2]
        return 1.0 - float(unexplained) / float(variance) if variance else None
