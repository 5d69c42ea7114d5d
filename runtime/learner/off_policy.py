"""What IMPACT and IMPALA share: training on whole fragments of other policies, corrected by V-trace."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from runtime.interfaces import Batch, DetectorSamples, Update
from runtime.learner.actor_critic import ActorCritic, Tensors, flat, flat_samples
from runtime.learner.batch import select_trajectories
from runtime.learner.vtrace import vtrace

_FRAGMENT_STREAM = 0xF7A6


class OffPolicy(ActorCritic):
    """The base of the algorithms that train on trajectories of several, older, policy versions."""

    @abstractmethod
    def _reference_outputs(self, observations: np.ndarray) -> np.ndarray:
        """The distributions ``[N, D]`` of the policy whose values and advantages V-trace estimates."""

    @abstractmethod
    def _kl(self, samples: Tensors) -> float:
        """The KL divergence that an update reports, at the present policy."""

    def _before_update(self, env_steps: int) -> None:
        """Called before an update on so many samples, while the policy is still the one that actors were sent."""

    def _minibatches(self, batch: Batch) -> list[Batch]:
        """Whole fragments in random order, in parts of nearly equal size of at most ``minibatch_steps``, or of one."""
        steps, fragments = batch.rewards.shape
        stream = np.random.default_rng((_FRAGMENT_STREAM, self._seed, self.policy_version))
        parts = -(-fragments // max(1, self._settings.minibatch_steps // steps))
        return [select_trajectories(batch, columns)
                for columns in np.array_split(stream.permutation(fragments), parts)]

    def _train_once(self, minibatches: Sequence[Batch], *, progress: float, is_replay: bool = False) -> Update:
        """One gradient step on each of these, then the next version."""
        total = sum(minibatch.env_steps for minibatch in minibatches)
        self._before_update(total)
        learning_rate = self._begin(progress, [] if is_replay else minibatches)
        all_samples, all_values, means = [], [], []
        for minibatch in minibatches:
            samples, values = self._samples(minibatch)
            everything = torch.arange(minibatch.env_steps, device=self._device)
            means.append(self._train(self._tensors(samples), everything) * (minibatch.env_steps / total))
            all_samples.append(samples)
            all_values.append(values.reshape(-1))
        samples = _joined(all_samples)
        kl = self._kl(self._tensors(samples))
        versions = np.concatenate([minibatch.policy_versions for minibatch in minibatches])
        return self._finish(means, samples, values=np.concatenate(all_values), kl=kl, learning_rate=learning_rate,
                            policy_versions=versions, is_replay=is_replay)

    def _samples(self, batch: Batch) -> tuple[DetectorSamples, np.ndarray]:
        """The batch flattened to ``[N, …]`` with V-trace's advantages and value targets, and V ``[T, B]``."""
        reference = self._reference_outputs(flat(batch.observations))
        log_probs = self._distribution.log_prob(
            torch.from_numpy(reference), torch.from_numpy(flat(batch.actions))).numpy()
        values, next_values = self._values(batch)
        targets, advantages = vtrace(
            batch.rewards, values, next_values, log_probs.reshape(batch.rewards.shape) - batch.log_probs,
            batch.terminated, batch.bootstrap_mask, discount=self._settings.discount)
        return flat_samples(batch, advantages=advantages, value_targets=targets, old_outputs=reference), values


def _joined(parts: Iterable[DetectorSamples]) -> DetectorSamples:
    columns = zip(*(vars(part).items() for part in parts), strict=True)
    return DetectorSamples(**{
        named[0][0]: np.concatenate([array for _, array in named]) for named in columns})
