"""PPO, readable from top to bottom.

Schulman et al. 2017 with GAE, the clipped surrogate, an adaptive KL penalty, and separate networks for policy and
critic.

Paper: Nitro §8.2.1 and Table 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from runtime.learner.actor_critic import ActorCritic
from runtime.learner.advantages import generalized_advantages
from runtime.learner.batch import Tensors, flat
from runtime.learner.interfaces import (
    Batch,
    LossMeans,
    TrainingSamples,
    Update,
)
from runtime.learner.objective import adapted_kl_coefficient, clipped_surrogate, truncated_surrogate
from runtime.learner.settings import PpoSettings

_SHUFFLE_STREAM = 0x5EED


class Ppo(ActorCritic[PpoSettings]):
    """The PPO learner."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Makes a learner; see `ActorCritic`."""
        super().__init__(*arguments, **options)
        self.kl_coefficient = self.settings.kl_coefficient

    def update(self, batch: Batch, *, progress: float) -> Update:
        """Trains on a batch in several epochs of shuffled minibatches, and reports the last epoch.

        Raises:
            ValueError: Several policy versions sampled the batch.
        """
        self.begin([batch], progress=progress)
        samples = self.samples(batch)
        epochs = [self.minibatches(batch, epoch) for epoch in range(self.settings.epochs)]
        losses = self.descend(
            samples, [indices for minibatches in epochs for indices in minibatches]
        )
        return self.finish(samples, losses[-len(epochs[-1]) :])

    def samples(self, batch: Batch) -> TrainingSamples:
        """Estimates advantages by GAE and normalizes them. The acting policy is the one to stay close to.

        Raises:
            ValueError: Several policy versions sampled the batch.
        """
        if len(set(batch.policy_versions.tolist())) != 1:
            raise ValueError(
                f"PPO trains on one policy version, not on {sorted(set(batch.policy_versions.tolist()))}"
            )
        values, next_values = self.state_values(batch)
        advantages = generalized_advantages(
            self.rewards(batch),
            values,
            next_values,
            batch.terminated,
            batch.bootstrap_mask,
            discount=self.settings.discount,
            gae_lambda=self.settings.gae_lambda,
        )
        targets = advantages + values
        _, mean, variance = self.share.moments(flat(batch, advantages)[:, None])
        advantages = (advantages - mean[0]) / (np.sqrt(variance[0]) + 1e-8)
        return self.training_samples(
            batch,
            advantages=advantages,
            value_targets=targets,
            values=values,
            old_outputs=self.acting_outputs(batch),
        )

    def minibatches(self, batch: Batch, epoch: int) -> list[torch.Tensor]:
        """Returns a permutation of all samples in nearly equal parts of at most ``minibatch_steps``."""
        stream = np.random.default_rng(
            (_SHUFFLE_STREAM, self.seed, int(batch.policy_versions[0]), epoch)
        )
        count = int(self.share.whole_lengths(batch.lengths).sum())
        order = stream.permutation(count)
        parts = math.ceil(count / self.settings.minibatch_steps)
        return [torch.from_numpy(part).to(self.device) for part in np.array_split(order, parts)]

    def surrogate(
        self, log_probs: torch.Tensor, samples: Tensors
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns min(r·Â, clip(r, 1 − ε, 1 + ε)·Â) with r = π/π_old, cut at ``log_caps`` ``[N]`` if given."""
        log_ratios = log_probs - samples["log_probs"]
        advantages = samples["advantages"]
        if "log_caps" not in samples:
            return clipped_surrogate(log_ratios, advantages, self.settings.clip)
        return truncated_surrogate(log_ratios, advantages, self.settings.clip, samples["log_caps"])

    def finish(
        self, samples: TrainingSamples, losses: Sequence[LossMeans], *, is_replay: bool = False
    ) -> Update:
        """Moves to the next version, and adapts β."""
        update = super().finish(samples, losses, is_replay=is_replay)
        self.kl_coefficient = adapted_kl_coefficient(
            self.kl_coefficient, kl=update.metrics.kl, kl_target=self.settings.kl_target
        )
        return update
