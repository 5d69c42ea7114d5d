"""One process's part of a group's batch, and what it learns about the other parts.

Samples never leave their process. Only gradients, counts, means and variances travel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from runtime.learner.normaliser import RunningMoments


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


class Share:
    """Locates this process's samples in the whole batch.

    Attributes:
        group: The processes.
        lengths: Steps of each trajectory of the whole batch, int64 ``[B]``.
        sample_count: ``N``, samples of the whole batch.
    """

    def __init__(
        self, group: ProcessGroup, columns: np.ndarray, lengths: np.ndarray, *, device: torch.device
    ) -> None:
        """Counts the samples of the whole batch as `runtime.learner.samples.flat` orders them.

        Args:
            group: The processes.
            columns: Which trajectories of the whole batch this process has, ascending, int64.
            lengths: Steps of each trajectory of the whole batch, int64 ``[B]``.
            device: Device of the learner.
        """
        self.group, self.lengths, self._columns, self._device = group, lengths, columns, device
        is_step = np.arange(lengths.max())[:, None] < lengths
        self.sample_count = int(lengths.sum())
        order = np.cumsum(is_step).reshape(is_step.shape) - 1
        own = order[:, columns][is_step[:, columns]]
        places = np.full(self.sample_count, -1)
        places[own] = np.arange(len(own))
        self._places = torch.from_numpy(places).to(device)

    def own(self, indices: torch.Tensor | None) -> tuple[torch.Tensor, int]:
        """Returns which of this process's samples belong to a minibatch, and the minibatch's total size.

        Args:
            indices: The minibatch as indices of the whole batch's samples, int64; None = all.
        """
        places = self._places if indices is None else self._places[indices]
        return places[places >= 0], len(places)

    def part(self, columns: np.ndarray) -> tuple[np.ndarray, Share]:
        """Returns which of this process's trajectories belong to a selection, and its share of the selection.

        Args:
            columns: The selection from the whole batch, int64, in any order.
        """
        is_own = np.isin(columns, self._columns)
        return np.searchsorted(self._columns, columns[is_own]), Share(
            self.group, np.flatnonzero(is_own), self.lengths[columns], device=self._device
        )

    def pooled(self, count: int, mean: np.ndarray, variance: np.ndarray) -> RunningMoments:
        """Returns the moments of the whole batch, given the moments of this process's samples, float64 ``[O]``."""
        rows = torch.zeros(
            (self.group.size, 1 + 2 * len(mean)), dtype=torch.float64, device=self._device
        )
        rows[self.group.rank] = torch.from_numpy(np.concatenate([[count], mean, variance])).to(
            self._device
        )
        self.group.sum([rows])
        moments = RunningMoments(len(mean))
        for row in rows.cpu().numpy():
            # A process without samples has no mean.
            if row[0]:
                moments.add(int(row[0]), row[1 : 1 + len(mean)], row[1 + len(mean) :])
        return moments
