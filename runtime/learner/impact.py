"""IMPACT, readable from top to bottom: PPO's clipping around a target network, for samples of older policies.

Luo et al. 2020, as in RLlib's APPO: V-trace for the target network's policy with c̄ = ρ̄ = 1, a surrogate clipped
around that policy, an adaptive KL penalty toward it, and a circular buffer of minibatches. As in RLlib, advantages are
not normalized. Each minibatch trains when it arrives and may be replayed later. RLlib also draws the first use at
random and may drop an unused minibatch. See docs/design/algorithms.md.

The target is renewed after a number of trained samples, not optimizer steps, because minibatches of whole fragments may
be smaller than ``minibatch_steps``.

Paper: Nitro §8.2.1 and Table 1.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from runtime.learner import LearnerSpec
from runtime.learner.batch import Tensors
from runtime.learner.interfaces import (
    Batch,
    LossMeans,
    TrainingSamples,
    Update,
)
from runtime.learner.normaliser import RunningMoments
from runtime.learner.objective import adapted_kl_coefficient, clipped_surrogate
from runtime.learner.off_policy import Minibatch, OffPolicy
from runtime.learner.settings import ImpactSettings
from runtime.records.state import State

IMPORTANCE_CLIP = 2.0
"""c: the ratio μ/π_target is clipped to 0 … this."""
_REPLAY_STREAM = 0x4EA1
_KL_COEFFICIENT_SHARE_MIN = 1e-3
"""β does not fall below this share of its initial value: after a thousand halvings it would remain 0."""
_LOG_RATIO_MAX = 20.0
"""Far beyond any clip. The exponential of a larger value would make the gradient infinite, and then all weights."""


class Impact(OffPolicy[ImpactSettings]):
    """The IMPACT learner; `update` trains on new trajectories and keeps them for `replay`."""

    counters = (*OffPolicy.counters, "steps_since_target")

    def __init__(self, spec: LearnerSpec, **options: Any) -> None:
        """Makes a learner; see `ActorCritic`.

        Args:
            spec: The specification. Its algorithm is fitted and resolved.
            options: Options of `ActorCritic`.

        Raises:
            ValueError: The algorithm was not fitted.
        """
        super().__init__(spec, **options)
        self.kl_coefficient = self.settings.kl_coefficient
        self.target = copy.deepcopy(self.policy)
        self.target_moments = self.moments.copy()
        self.steps_since_target = 0
        self._buffer: deque[Minibatch] = deque(maxlen=self.settings.buffer_batches)

    def update(self, batch: Batch, *, progress: float) -> Update:
        """Makes one step on each minibatch of the batch's fragments. Keeps them for `replay` if it trains alone."""
        minibatches = self.minibatches(batch)
        update = self.train_once(minibatches, progress=progress)
        if self.share.is_alone:
            self._buffer.extend(minibatches)
        return update

    def replay(self, *, progress: float) -> Update | None:
        """Makes one step on a minibatch drawn from the buffer. Returns None if none may be used again."""
        assert self.settings.staleness_max is not None, "a resolved experiment has a value"
        oldest = self.policy_version - self.settings.staleness_max
        fresh = [
            minibatch
            for minibatch in self._buffer
            if minibatch.uses < self.settings.uses_max
            and minibatch.batch.policy_versions.min() >= oldest
        ]
        self._buffer = deque(fresh, maxlen=self._buffer.maxlen)
        if not fresh:
            return None
        stream = np.random.default_rng((_REPLAY_STREAM, self.seed, self.policy_version))
        drawn = fresh[stream.integers(len(fresh))]
        return self.train_once([drawn], progress=progress, is_replay=True)

    def begin(self, batches: Sequence[Batch], *, progress: float, is_replay: bool = False) -> None:
        """Renews the target network if it is due, then begins an update.

        The target becomes the policy that actors were sent, with its moments and before new ones are merged. It keeps
        these moments: with newer ones, every merge would move the network that should not move.
        """
        settings = self.settings
        period = (
            settings.target_update_frequency
            * settings.buffer_batches
            * settings.uses_max
            * settings.minibatch_steps
        )
        if self.steps_since_target >= period:
            self.target.load_state_dict(self.policy.state_dict())
            self.target_moments = self.moments.copy()
            self.steps_since_target = 0
        lengths = np.concatenate([batch.lengths for batch in batches])
        self.steps_since_target += int(self.share.whole_lengths(lengths).sum())
        super().begin(batches, progress=progress, is_replay=is_replay)

    def reference_outputs(self, observations: np.ndarray) -> np.ndarray:
        """Returns the target network's distributions, with the moments from when it was the policy."""
        return self.evaluate(self.target, observations, self.target_moments)

    def surrogate(
        self, log_probs: torch.Tensor, samples: Tensors
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns min(r·Â, clip(r, 1 − ε, 1 + ε)·Â) with r = clip(μ/π_target, 0, c)·π/μ: π/π_target but for c."""
        of_target = self.distribution.log_prob(samples["old_outputs"], samples["actions"])
        log_weights = (samples["log_probs"] - of_target).clamp(max=math.log(IMPORTANCE_CLIP))
        log_ratios = log_weights + (log_probs - samples["log_probs"])
        surrogate, slopes = clipped_surrogate(
            log_ratios.clamp(max=_LOG_RATIO_MAX), samples["advantages"], self.settings.clip
        )
        return surrogate, slopes * (log_ratios <= _LOG_RATIO_MAX)

    def finish(
        self, samples: TrainingSamples, losses: Sequence[LossMeans], *, is_replay: bool = False
    ) -> Update:
        """Moves to the next version, and adapts β, which never falls below a fraction of its initial value."""
        update = super().finish(samples, losses, is_replay=is_replay)
        adapted = adapted_kl_coefficient(
            self.kl_coefficient, kl=update.metrics.kl, kl_target=self.settings.kl_target
        )
        self.kl_coefficient = max(adapted, _KL_COEFFICIENT_SHARE_MIN * self.settings.kl_coefficient)
        return update

    def set_state(self, state: State) -> None:
        """Continues from a state. Kept minibatches are not part of a state, so there is nothing to replay at first.

        Raises:
            CheckpointError: The state belongs to another network or algorithm.
        """
        super().set_state(state)
        self._buffer.clear()

    def networks(self) -> dict[str, torch.nn.Module]:
        """Returns every network of a state by name, including the target network."""
        return super().networks() | {"target": self.target}

    def all_moments(self) -> dict[str, RunningMoments]:
        """Returns all moments of a state by name, including the target network's."""
        return super().all_moments() | {"target_moments": self.target_moments}
