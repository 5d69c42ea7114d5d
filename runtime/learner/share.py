"""One process' part of a batch that a group of processes has, and what it learns of the others' parts.

No sample leaves its process. What travels are gradients, and counts, means and variances.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from runtime.learner.normaliser import RunningMoments


class Group(Protocol):
    """Processes that make the same calls at the same time."""

    @property
    def rank(self) -> int:
        """Which of them this one is, from 0."""

    @property
    def size(self) -> int:
        """How many they are."""

    def sum(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replaces each tensor by its sum over the group, in place; the same bits in all processes."""


class Share:
    """Where the samples of this process stand among those of the whole batch.

    Attributes:
        group: The processes.
        lengths: Steps of each trajectory of the whole batch, int64 ``[B]``.
        sample_count: ``N`` of it.
    """

    def __init__(self, group: Group, columns: np.ndarray, lengths: np.ndarray, *, device: torch.device) -> None:
        """Counts the samples of the whole batch as `runtime.learner.samples.flat` orders them.

        Args:
            group: The processes.
            columns: Which trajectories of the whole batch this process has, ascending, int64.
            lengths: Steps of each trajectory of the whole batch, int64 ``[B]``.
            device: Of the learner.
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
        """Returns which samples of this process are among some of the whole batch, and how many those are in all.

        Args:
            indices: Of samples of the whole batch, int64; None = all.
        """
        places = self._places if indices is None else self._places[indices]
        return places[places >= 0], len(places)

    def part(self, columns: np.ndarray) -> tuple[np.ndarray, Share]:
        """Returns which of this process' trajectories are among some of the whole batch, and its share in those.

        Args:
            columns: Trajectories of the whole batch, int64, in any order.
        """
        is_own = np.isin(columns, self._columns)
        return np.searchsorted(self._columns, columns[is_own]), Share(
            self.group, np.flatnonzero(is_own), self.lengths[columns], device=self._device)

    def pooled(self, count: int, mean: np.ndarray, variance: np.ndarray) -> RunningMoments:
        """Returns the moments of the whole batch, given those of this process' samples, float64 ``[O]``."""
        rows = torch.zeros((self.group.size, 1 + 2 * len(mean)), dtype=torch.float64, device=self._device)
        rows[self.group.rank] = torch.from_numpy(np.concatenate([[count], mean, variance])).to(self._device)
        self.group.sum([rows])
        moments = RunningMoments(len(mean))
        for row in rows.cpu().numpy():
            # Without a sample there is no mean.
            if row[0]:
                moments.add(int(row[0]), row[1:1 + len(mean)], row[1 + len(mean):])
        return moments
