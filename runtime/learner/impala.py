"""IMPALA: an actor-critic whose actors may have older policies.

Espeholt et al. 2018: values and advantages by V-trace with c̄ = ρ̄ = 1, policy gradient −log π·Â, entropy bonus. As in
RLlib, losses are means over the samples and advantages are not normalized.
"""

from __future__ import annotations

import numpy as np
import torch

from runtime.learner.batch import Tensors
from runtime.learner.interfaces import Batch, TrainingSamples, Update
from runtime.learner.off_policy import OffPolicy
from runtime.learner.settings import ImpalaSettings


class Impala(OffPolicy[ImpalaSettings]):
    """The IMPALA learner. It trains on each sample once, whichever version acted."""

    def update(self, batch: Batch, *, progress: float) -> Update:
        """Makes one step on each minibatch of the batch's fragments."""
        return self.train_once(self.minibatches(batch), progress=progress)

    def reference_outputs(self, observations: np.ndarray) -> np.ndarray:
        """Returns the current policy's distributions."""
        return self.evaluate(self.policy, observations)

    def surrogate(
        self, log_probs: torch.Tensor, samples: Tensors
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns log π(a|s)·Â, where Â contains ρ. Its gradient is in Espeholt et al. 2018, §4.2."""
        return log_probs * samples["advantages"], samples["advantages"]

    def kl(self, samples: TrainingSamples) -> float:
        """Returns KL(μ ‖ π) of the acting policies, estimated as log μ − log π of the actions taken.

        The acting policies' distributions are no longer known. The estimate may be slightly below 0.
        """
        return self.mean_at_present(
            lambda outputs, part: (
                part["log_probs"] - self.distribution.log_prob(outputs, part["actions"])
            ),
            samples,
        )
