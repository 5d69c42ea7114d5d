"""Settings that all algorithms share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from runtime.experiment.kinds import Kinds
from runtime.experiment.section import (
    OPEN,
    Count,
    Field,
    NonNegative,
    Open,
    Positive,
    Section,
    Share,
)


class AlgorithmSettings(Section):
    """Base of every algorithm's settings. Subclasses may change defaults and add keys.

    Attributes:
        title: The algorithm's name for people.
        learner: Import path of its learner, ``module:class``; imported only when a learner is made.
        is_off_policy: Whether it may train on samples of older policies.
        has_truncated_loss: Whether its learner cuts ratios at ``log_caps``, as ``learner.kind = stellaris`` needs.
    """

    learner: ClassVar[str]
    is_off_policy: ClassVar[bool] = False
    has_truncated_loss: ClassVar[bool] = False

    kind: str = Field("", description="training algorithm")
    rounds: Literal["synchronous", "asynchronous"] | None = Field(
        None,
        description="synchronous = actors have the newest policy, and the update waits for all; "
        "asynchronous = neither waits; null = asynchronous for impact and impala",
    )
    staleness_max: Open[Count] = Field(
        OPEN,
        description="in asynchronous rounds, most versions that a trajectory's policy may lag; staler "
        "ones are dropped; null = four times a round's most actors, at least 32",
    )
    learning_rate: Positive = Field(3e-4, description="Adam's step size")
    adam_epsilon: Positive = Field(1e-5, description="Adam's ε; torch and RLlib have 1e-8")
    learning_rate_schedule: Literal["constant", "linear"] = Field(
        "constant",
        description="linear = falls to 0 at stop.max_steps or stop.max_rounds, whichever comes first",
    )
    discount: Share = Field(0.99, description="γ, per step")
    minibatch_steps: Count = Field(
        256,
        description="most samples per gradient step (impact, impala: whole fragments, at least one)",
    )
    entropy_coefficient: NonNegative = Field(0.0, description="weight of the entropy bonus")
    value_coefficient: NonNegative = Field(
        1.0, description="weight of the value loss ½(V − target)²"
    )
    max_gradient_norm: Positive | None = Field(
        0.5,
        description="clips the gradients of policy and critic separately; null = no clipping",
    )
    normalize_observations: Open[bool] = Field(
        OPEN,
        description="by running moments, except pixels and entries that can only be 0 or 1; null = true "
        "if there are others",
    )
    normalize_rewards: bool = Field(
        False,
        description="divide rewards by the running deviation of discounted returns, and clip them to ±10; "
        "reported returns do not change",
    )

    @property
    def is_asynchronous(self) -> bool:
        """Returns whether rounds are asynchronous."""
        return self.rounds == "asynchronous" or (self.rounds is None and self.is_off_policy)

    @property
    def passes(self) -> int:
        """Returns how often an update trains on each of its samples."""
        return 1

    def contradictions(self, experiment: Any) -> Iterator[str]:
        """Yields a message for each combination of values that cannot work."""
        algorithm = experiment.algorithm
        stop = experiment.stop
        if not self.is_off_policy and algorithm.rounds == "asynchronous":
            yield (
                f"algorithm.rounds = 'asynchronous': {algorithm.kind} trains on what its newest policy sampled, and "
                "on nothing else; allowed: synchronous | null, or algorithm.kind = "
                + " | ".join(
                    kind for kind, settings in ALGORITHMS.settings.items() if settings.is_off_policy
                )
            )
        if (
            self.learning_rate_schedule == "linear"
            and stop.max_rounds is None
            and stop.max_steps is None
        ):
            yield (
                "algorithm.learning_rate_schedule = linear needs an end: set stop.max_steps or stop.max_rounds"
            )


ALGORITHMS = Kinds(
    "algorithm",
    AlgorithmSettings,
    "training algorithm",
    own=AlgorithmSettings.model_fields.keys() - {"kind", "rounds", "staleness_max"},
)
