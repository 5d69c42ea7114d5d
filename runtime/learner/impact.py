"""IMPACT, to be read from top to bottom: PPO's clipping around a target network, for samples of older policies.

Luo et al. 2020, in the form that RLlib's APPO gives it: V-trace for the target network's policy with c̄ = ρ̄ = 1, a
surrogate clipped around that policy, an adaptive KL penalty towards it, and a circular buffer of minibatches. As there,
advantages are not normalised. See docs/decisions/0010-off-policy.md.

Paper: Nitro §8.2.1 and Table 1.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from runtime.interfaces import Batch, State, Update
from runtime.learner.actor_critic import Tensors
from runtime.learner.normaliser import RunningMoments
from runtime.learner.off_policy import OffPolicy

_REPLAY_STREAM = 0x4EA1
_KL_COEFFICIENT_SHARE_MIN = 1e-3
"""β does not fall below this share of its initial value: halved at each of a thousand updates it would stay at 0."""
_LOG_RATIO_MAX = 20.0
"""Far beyond any clip; the exponential of more would make the gradient infinite, and then everything."""


@dataclass
class _Kept:
    """A minibatch of the circular buffer and how often it was trained on."""

    minibatch: Batch
    uses: int


class Impact(OffPolicy):
    """The IMPACT learner; `update` trains on new trajectories and keeps them for `replay`."""

    _counters = (*OffPolicy._counters, "steps_since_target")

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """See `ActorCritic`; the algorithm is also resolved."""
        super().__init__(*arguments, **options)
        self.kl_coefficient = self._settings.kl_coefficient
        self.target, self.target_moments = copy.deepcopy(self.policy), self.moments.copy()
        self.steps_since_target = 0
        self._buffer: deque[_Kept] = deque(maxlen=self._settings.buffer_batches)

    def update(self, batch: Batch, *, progress: float) -> Update:
        """See `runtime.interfaces.Learner.update`."""
        minibatches = self._minibatches(batch)
        update = self._train_once(minibatches, progress=progress)
        self._adapt_kl_coefficient(update.metrics.kl)
        self._buffer.extend(_Kept(minibatch, uses=1) for minibatch in minibatches)
        return update

    def replay(self, *, progress: float) -> Update | None:
        """See `runtime.interfaces.Learner.replay`: one minibatch, drawn from those that may still be used."""
        fresh = [kept for kept in self._buffer if kept.uses < self._settings.uses_max and self._is_fresh(kept)]
        self._buffer = deque(fresh, maxlen=self._buffer.maxlen)
        if not fresh:
            return None
        stream = np.random.default_rng((_REPLAY_STREAM, self._seed, self.policy_version))
        drawn = fresh[stream.integers(len(fresh))]
        drawn.uses += 1
        update = self._train_once([drawn.minibatch], progress=progress, is_replay=True)
        self._adapt_kl_coefficient(update.metrics.kl)
        return update

    def _is_fresh(self, kept: _Kept) -> bool:
        return self.policy_version - int(kept.minibatch.policy_versions.min()) <= self._algorithm.staleness_max

    def _before_update(self, env_steps: int) -> None:
        """Renews the target network when it is due: before an update, so that it becomes what actors were sent."""
        settings = self._settings
        period = (settings.target_update_frequency * settings.buffer_batches * settings.uses_max
                  * settings.minibatch_steps)
        if self.steps_since_target >= period:
            self.target.load_state_dict(self.policy.state_dict())
            self.target_moments = self.moments.copy()
            self.steps_since_target = 0
        self.steps_since_target += env_steps

    def _reference_outputs(self, observations: np.ndarray) -> np.ndarray:
        """The target network's, with the moments that it had when it was the policy."""
        return self._evaluated(self.target, observations, self.target_moments)

    def _surrogate(self, outputs: torch.Tensor, samples: Tensors) -> torch.Tensor:
        """min(r·Â, clip(r, 1 − ε, 1 + ε)·Â) with r = clip(μ/π_target, 0, c)·π/μ, which is π/π_target but for c."""
        of_target = self._distribution.log_prob(samples["old_outputs"], samples["actions"])
        log_weight = (samples["log_probs"] - of_target).clamp(max=math.log(self._settings.importance_clip))
        log_ratio = self._distribution.log_prob(outputs, samples["actions"]) - samples["log_probs"]
        ratio = torch.exp((log_weight + log_ratio).clamp(max=_LOG_RATIO_MAX))
        clipped = ratio.clamp(1.0 - self._settings.clip, 1.0 + self._settings.clip)
        return torch.minimum(ratio * samples["advantages"], clipped * samples["advantages"])

    def _kl(self, samples: Tensors) -> float:
        """KL(π_target ‖ π)."""
        return self._kl_at_present(samples)

    def _adapt_kl_coefficient(self, kl: float) -> None:
        super()._adapt_kl_coefficient(kl)
        self.kl_coefficient = max(self.kl_coefficient, _KL_COEFFICIENT_SHARE_MIN * self._settings.kl_coefficient)

    def set_state(self, state: State) -> None:
        """What is kept for being replayed is no part of a state: after a resumption there is none.

        Raises:
            CheckpointError: The state belongs to another network or algorithm.
        """
        super().set_state(state)
        self._buffer.clear()

    def _networks(self) -> dict[str, torch.nn.Module]:
        return super()._networks() | {"target": self.target}

    def _all_moments(self) -> dict[str, RunningMoments]:
        return super()._all_moments() | {"target_moments": self.target_moments}
