"""PPO, to be read from top to bottom.

Schulman et al. 2017 with GAE, the clipped surrogate, an adaptive KL penalty, and separate networks for policy and
critic.

Paper: Nitro §8.2.1 and Table 1.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from runtime.interfaces import Batch, DetectorSamples, Update
from runtime.learner.actor_critic import ActorCritic, Tensors, flat, flat_samples
from runtime.learner.advantages import generalized_advantages
from runtime.learner.normaliser import RunningMoments

_SHUFFLE_STREAM = 0x5EED


class Ppo(ActorCritic):
    """The PPO learner; `update` trains on one round's batch."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """See `ActorCritic`."""
        super().__init__(*arguments, **options)
        self.kl_coefficient = self._settings.kl_coefficient

    def update(self, batch: Batch, *, progress: float) -> Update:
        """See `runtime.interfaces.Learner.update`.

        Raises:
            ValueError: Several policy versions sampled the batch.
        """
        acting_moments = self.moments.copy()
        learning_rate = self._begin(progress, [batch])
        samples, values = self._samples(batch, acting_moments)
        tensors = self._tensors(samples)
        means = []
        for epoch in range(self._settings.epochs):
            is_last = epoch == self._settings.epochs - 1
            for indices in self._minibatches(batch, epoch):
                of_minibatch = self._train(tensors, indices)
                if is_last:
                    means.append(of_minibatch * (len(indices) / batch.env_steps))
        kl = self._kl_at_present(tensors)
        self._adapt_kl_coefficient(kl)
        return self._finish(means, samples, values=values, kl=kl, learning_rate=learning_rate,
                            policy_versions=batch.policy_versions)

    def _samples(
        self, batch: Batch, acting_moments: RunningMoments | None = None
    ) -> tuple[DetectorSamples, np.ndarray]:
        """The batch flattened to ``[N, …]`` with advantages and value targets, and V ``[T, B]``.

        Args:
            acting_moments: Those that the batch was sampled with, where they are not the present ones any more.
        """
        if len(set(batch.policy_versions.tolist())) != 1:
            raise ValueError(f"PPO trains on one policy version, not on {sorted(set(batch.policy_versions.tolist()))}")
        values, next_values = self._values(batch)
        advantages = generalized_advantages(
            batch.rewards, values, next_values, batch.terminated, batch.bootstrap_mask,
            discount=self._settings.discount, gae_lambda=self._settings.gae_lambda)
        targets = advantages + values
        if self._settings.normalize_advantages:
            advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        old_outputs = self._evaluated(self.policy, flat(batch.observations), acting_moments)
        return flat_samples(batch, advantages=advantages, value_targets=targets, old_outputs=old_outputs), values

    def _minibatches(self, batch: Batch, epoch: int) -> list[torch.Tensor]:
        """A permutation of all samples in parts of nearly equal size, none over ``minibatch_steps``."""
        stream = np.random.default_rng((_SHUFFLE_STREAM, self._seed, int(batch.policy_versions[0]), epoch))
        order = stream.permutation(batch.env_steps)
        parts = math.ceil(batch.env_steps / self._settings.minibatch_steps)
        return [torch.from_numpy(part).to(self._device) for part in np.array_split(order, parts)]

    def _surrogate(self, outputs: torch.Tensor, samples: Tensors) -> torch.Tensor:
        """Schulman et al. 2017, equation 7: min(r·Â, clip(r, 1 − ε, 1 + ε)·Â)."""
        ratio = torch.exp(self._distribution.log_prob(outputs, samples["actions"]) - samples["log_probs"])
        clipped = ratio.clamp(1.0 - self._settings.clip, 1.0 + self._settings.clip)
        return torch.minimum(ratio * samples["advantages"], clipped * samples["advantages"])
