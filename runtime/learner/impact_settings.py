"""Settings of IMPACT, without torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar

from runtime.settings.algorithm import AlgorithmSettings, unused_kl_target
from runtime.settings.section import Count, Field, NonNegative, Positive, Unused


class ImpactSettings(AlgorithmSettings):
    """Settings of IMPACT."""

    title: ClassVar[str] = "IMPACT"
    learner: ClassVar[str] = "runtime.learner.impact:Impact"
    is_off_policy: ClassVar[bool] = True

    minibatch_steps: Count = Field(512, description="maximum samples per gradient step, in whole fragments; at least "
                                   "one fragment")
    learning_rate: Positive = Field(5e-4, description="Adam's step size")
    entropy_coefficient: NonNegative = Field(0.01, description="weight of the entropy bonus")
    clip: Positive = Field(0.4, description="ε: the probability ratio is clipped to 1 ± ε")
    kl_coefficient: NonNegative = Field(1.0, description="initial β of the adaptive KL penalty toward the target "
                                        "network; 0 = no penalty")
    kl_target: Positive = Field(0.01, description="target KL per update for adapting β, in nats")
    importance_clip: Positive = Field(2.0, description="μ/π_target is clipped to 0 … this")
    target_update_frequency: Positive = Field(
        1.0, description="the target network becomes the policy after this many times buffer_batches · uses_max · "
        "minibatch_steps trained samples")
    buffer_batches: Annotated[int, Field(ge=1, le=1000)] = Field(
        8, description="N, minibatches kept for replay; the oldest is dropped")
    uses_max: Annotated[int, Field(ge=1, le=1000)] = Field(
        2, description="K, maximum uses of a minibatch, including the first; one in synchronous "
        "rounds")

    def unused(self, prefix: str) -> Iterator[Unused]:
        """Also yields the KL target if there is no penalty to adapt."""
        yield from super().unused(prefix)
        yield from unused_kl_target(self.kl_coefficient, prefix)
