"""IMPALA: an actor-critic whose actors need not have the newest policy.

Espeholt et al. 2018: values and advantages by V-trace with c̄ = ρ̄ = 1, policy gradient −log π·Â, entropy bonus. As in
RLlib, losses are means over the samples and advantages are not normalised.
"""

from __future__ import annotations

import numpy as np
import torch

from runtime.interfaces import Batch, Update
from runtime.learner.actor_critic import Tensors
from runtime.learner.off_policy import OffPolicy


class Impala(OffPolicy):
    """The IMPALA learner; each sample is trained on once, whichever version acted."""

    def update(self, batch: Batch, *, progress: float) -> Update:
        """See `runtime.interfaces.Learner.update`."""
        return self._train_once(self._minibatches(batch), progress=progress)

    def _reference_outputs(self, observations: np.ndarray) -> np.ndarray:
        """The present policy's."""
        return self._evaluated(self.policy, observations)

    def _surrogate(self, outputs: torch.Tensor, samples: Tensors) -> torch.Tensor:
        """log π(a|s)·Â, whose Â contains ρ; its gradient is that of Espeholt et al. 2018, §4.2."""
        return self._distribution.log_prob(outputs, samples["actions"]) * samples["advantages"]

    def _kl(self, samples: Tensors) -> float:
        """KL(μ ‖ π) of the acting policies, estimated by log μ − log π of the actions that they took.

        The acting policies' distributions are not known any more; the estimate may be a little below 0.
        """
        return self._mean_at_present(
            lambda outputs, part: part["log_probs"] - self._distribution.log_prob(outputs, part["actions"]), samples)
