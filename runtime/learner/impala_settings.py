"""Settings of IMPALA, without torch."""

from __future__ import annotations

from typing import ClassVar

from runtime.experiment.algorithm import AlgorithmSettings
from runtime.experiment.section import Count, Field, NonNegative, Positive


class ImpalaSettings(AlgorithmSettings):
    """Settings of IMPALA."""

    learner: ClassVar[str] = "runtime.learner.impala:Impala"
    is_off_policy: ClassVar[bool] = True

    minibatch_steps: Count = Field(
        512,
        description="most samples per gradient step (IMPACT, IMPALA: whole fragments, at least one)",
    )
    learning_rate: Positive = Field(6e-4, description="Adam's step size, with ε = 1e-5")
    entropy_coefficient: NonNegative = Field(0.01, description="weight of the entropy bonus")
    value_coefficient: NonNegative = Field(
        0.5, description="weight of the value loss ½(V − target)²"
    )
