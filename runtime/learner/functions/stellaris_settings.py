"""Settings of Stellaris: unsupported combinations, and its updater."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from runtime.experiment.algorithm import ALGORITHMS
from runtime.experiment.learner import LearnerFunctionSettings
from runtime.experiment.section import Field
from runtime.learner.functions.function_settings import function_problems

if TYPE_CHECKING:
    from runtime.learner.in_place import InPlaceUpdater


class StellarisSettings(LearnerFunctionSettings):
    """Settings of several learner functions."""

    has_gradients: ClassVar[bool] = True

    learners: Annotated[int, Field(ge=1, le=1000)] = Field(
        4, description="gradients computed in parallel"
    )
    staleness_decay: Annotated[float, Field(gt=0, le=1)] | None = Field(
        0.9,
        description="d of the staleness bound, which shrinks with each update; null = no bound, gradients are "
        "applied as they arrive",
    )
    learning_rate_root: Annotated[float, Field(gt=0, le=1000)] | None = Field(
        3.0,
        description="v: a gradient that is s versions old gets the learning rate times s^(−1/v); null = the whole "
        "learning rate",
    )
    truncation: Annotated[float, Field(gt=0, le=1000)] | None = Field(
        1.0,
        description="ρ: importance ratios are capped at ρ, or at the least ratio of all learners if larger; null "
        "= no cap",
    )

    @property
    def functions_at_once(self) -> int:
        """Returns the number of its learners."""
        return self.learners

    def contradictions(self, experiment: Any) -> Iterator[str]:
        """Yields a message for each combination of values that cannot work."""
        algorithm = experiment.algorithm
        if not algorithm.has_truncated_loss:
            yield (
                f"algorithm.kind = {algorithm.kind} has no truncated loss, and updates that learner.kind = "
                "stellaris does not know; allowed: "
                + " | ".join(
                    kind for kind, one in ALGORITHMS.settings.items() if one.has_truncated_loss
                )
                + ", or learner.kind = instance | function"
            )
        yield from function_problems(experiment)

    def make(self, learner: Any, remote: Any) -> InPlaceUpdater:
        """Makes the updater."""
        from runtime.learner.functions.stellaris import StellarisUpdater

        return StellarisUpdater(learner, remote, self)
