"""Settings of IMPACT, without torch."""

from __future__ import annotations

from typing import Annotated, ClassVar

from runtime.experiment.algorithm import AlgorithmSettings
from runtime.experiment.section import (
    Count,
    Field,
    NonNegative,
    Positive,
)


class ImpactSettings(AlgorithmSettings):
    """Settings of IMPACT."""

    learner: ClassVar[str] = "runtime.learner.impact:Impact"
    is_off_policy: ClassVar[bool] = True

    minibatch_steps: Count = Field(
        512,
        description="most samples per gradient step (IMPACT, IMPALA: whole fragments, at least one)",
    )
    learning_rate: Positive = Field(5e-4, description="Adam's step size, with ε = 1e-5")
    entropy_coefficient: NonNegative = Field(0.01, description="weight of the entropy bonus")
    clip: Positive = Field(0.4, description="ε: the probability ratio is clipped to 1 ± ε")
    kl_coefficient: NonNegative = Field(
        1.0,
        description="initial β of the adaptive KL penalty (IMPACT: towards the target network); 0 = no penalty",
    )
    kl_target: Positive = Field(0.01, description="KL per update that β adapts to, nats")
    target_update_frequency: Positive = Field(
        1.0,
        description="the target network is replaced after training on this × buffer_batches · uses_max · "
        "minibatch_steps samples",
    )
    buffer_batches: Annotated[int, Field(ge=1, le=1000)] = Field(
        8, description="N, minibatches kept for replay; the oldest is dropped"
    )
    uses_max: Annotated[int, Field(ge=1, le=1000)] = Field(
        2, description="K, most times that a minibatch is trained on; 1 in synchronous rounds"
    )
