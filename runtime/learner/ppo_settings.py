"""Settings of PPO, without torch."""

from __future__ import annotations

from typing import ClassVar

from runtime.experiment.algorithm import AlgorithmSettings
from runtime.experiment.section import (
    Count,
    Field,
    NonNegative,
    Positive,
    Share,
)


class PpoSettings(AlgorithmSettings):
    """Settings of PPO."""

    learner: ClassVar[str] = "runtime.learner.ppo:Ppo"
    has_truncated_loss: ClassVar[bool] = True

    epochs: Count = Field(10, description="passes over each batch")
    gae_lambda: Share = Field(0.95, description="λ of generalized advantage estimation")
    clip: Positive = Field(0.2, description="ε: the probability ratio is clipped to 1 ± ε")
    kl_coefficient: NonNegative = Field(
        0.0,
        description="initial β of the adaptive KL penalty (IMPACT: towards the target network); 0 = no penalty",
    )
    kl_target: Positive = Field(0.01, description="KL per update that β adapts to, nats")

    @property
    def passes(self) -> int:
        """Number of epochs."""
        return self.epochs
