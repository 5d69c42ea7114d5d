"""The base of IMPACT and IMPALA: training on whole fragments of other policies, corrected by V-trace."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import torch

from runtime.learner.actor_critic import ActorCritic
from runtime.learner.batch import select_trajectories
from runtime.learner.impact_settings import ImpactSettings
from runtime.learner.impala_settings import ImpalaSettings
from runtime.learner.interfaces import (
    Batch,
    LossMeans,
    TrainingSamples,
    Update,
)
from runtime.learner.samples import flat, joined, masked, unflat
from runtime.learner.share import Share
from runtime.learner.vtrace import vtrace

_FRAGMENT_STREAM = 0xF7A6

Settings = TypeVar("Settings", ImpactSettings, ImpalaSettings)


class Minibatch(NamedTuple):
    """The samples of one gradient step.

    Attributes:
        batch: Its fragments. In a group, those of this process.
        share: Their place in the group's minibatch; None if this process trains alone.
    """

    batch: Batch
    share: Share | None


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
        share, lengths = self.share, batch.lengths if self.share is None else self.share.lengths
        stream = np.random.default_rng((_FRAGMENT_STREAM, self.seed, self.policy_version))
        parts = -(-len(lengths) // max(1, self.settings.minibatch_steps // int(lengths.max())))
        found = []
        for columns in np.array_split(stream.permutation(len(lengths)), parts):
            own, part = (columns, None) if share is None else share.part(columns)
            found.append(Minibatch(select_trajectories(batch, own), part))
        return found

    def train_once(
        self, minibatches: Sequence[Minibatch], *, progress: float, is_replay: bool = False
    ) -> Update:
        """Makes one step on each minibatch, with estimates made right before it, then moves to the next version."""
        whole = self.share
        self.begin([one.batch for one in minibatches], progress=progress, is_replay=is_replay)
        parts, losses = [], list[LossMeans]()
        for minibatch in minibatches:
            self.share = minibatch.share
            samples = self.samples(minibatch.batch)
            losses += self.descend(samples, [None])
            parts.append(samples)
        self.share = whole
        return self.finish(joined(parts), losses, is_replay=is_replay)
