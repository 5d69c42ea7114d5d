"""The base of IMPACT and IMPALA: training on whole fragments of other policies, corrected by V-trace."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

from runtime.learner.actor_critic import ActorCritic
from runtime.learner.advantages import vtrace
from runtime.learner.batch import flat, joined, masked, select_trajectories, unflat
from runtime.learner.interfaces import (
    Batch,
    LossMeans,
    TrainingSamples,
    Update,
)
from runtime.learner.settings import ImpactSettings, ImpalaSettings
from runtime.learner.share import Alone

_FRAGMENT_STREAM = 0xF7A6

Settings = TypeVar("Settings", ImpactSettings, ImpalaSettings)


@dataclass
class Minibatch:
    """The samples of one gradient step.

    Attributes:
        batch: Its fragments. In a group, those of this process.
        share: Their place in the minibatch.
        uses: Number of steps made on it.
    """

    batch: Batch
    share: Alone
    uses: int = 0


class OffPolicy(ActorCritic[Settings]):
    """The base of the algorithms that train on trajectories of several older policy versions."""

    @abstractmethod
    def reference_outputs(self, observations: np.ndarray) -> np.ndarray:
        """Returns the distributions ``[N, D]`` of the policy whose values and advantages V-trace estimates."""

    def samples(self, batch: Batch) -> TrainingSamples:
        """Estimates advantages and value targets of the reference policy by V-trace."""
        reference = masked(batch, self.reference_outputs(flat(batch, batch.observations)))
        log_probs = self.distribution.log_prob(
            torch.from_numpy(reference), torch.from_numpy(flat(batch, batch.actions))
        ).numpy()
        values, next_values = self.state_values(batch)
        targets, advantages = vtrace(
            self.rewards(batch),
            values,
            next_values,
            unflat(batch, log_probs) - batch.log_probs,
            batch.terminated,
            batch.bootstrap_mask,
            discount=self.settings.discount,
        )
        return self.training_samples(
            batch,
            advantages=advantages,
            value_targets=targets,
            values=values,
            old_outputs=reference,
        )

    def minibatches(self, batch: Batch) -> list[Minibatch]:
        """Returns whole fragments in random order, in nearly equal parts of at most ``minibatch_steps``.

        A part has at least one fragment. In a group, this process may have none.
        """
        lengths = self.share.whole_lengths(batch.lengths)
        stream = np.random.default_rng((_FRAGMENT_STREAM, self.seed, self.policy_version))
        parts = -(-len(lengths) // max(1, self.settings.minibatch_steps // int(lengths.max())))
        minibatches = []
        for columns in np.array_split(stream.permutation(len(lengths)), parts):
            own, share = self.share.part(columns)
            minibatches.append(Minibatch(select_trajectories(batch, own), share))
        return minibatches

    def train_once(
        self, minibatches: Sequence[Minibatch], *, progress: float, is_replay: bool = False
    ) -> Update:
        """Makes one step on each minibatch, with estimates made right before it, then moves to the next version."""
        whole = self.share
        self.begin(
            [minibatch.batch for minibatch in minibatches], progress=progress, is_replay=is_replay
        )
        parts = []
        losses = list[LossMeans]()
        for minibatch in minibatches:
            minibatch.uses += 1
            self.share = minibatch.share
            samples = self.samples(minibatch.batch)
            losses += self.descend(samples, [None])
            parts.append(samples)
        self.share = whole
        return self.finish(joined(parts), losses, is_replay=is_replay)
