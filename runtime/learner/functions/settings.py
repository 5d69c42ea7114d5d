"""Settings of learners that are functions: unsupported combinations, and their updaters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from runtime.experiment.algorithm import ALGORITHMS
from runtime.experiment.learner import LearnerFunctionSettings
from runtime.experiment.section import Field

if TYPE_CHECKING:
    from runtime.learner.updaters import Updater


class FunctionSettings(LearnerFunctionSettings):
    """Settings of the function that makes each update."""

    is_exact: ClassVar[bool] = True

    def contradictions(self, experiment: Any) -> Iterator[str]:
        """Yields a message for each combination of values that cannot work."""
        yield from _problems(experiment)

    def make(self, learner: Any, remote: Any) -> Updater:
        """Makes the updater."""
        from runtime.learner.functions.function import FunctionUpdater

        return FunctionUpdater(learner, remote)


class StellarisSettings(LearnerFunctionSettings):
    """Settings of several learner functions."""

    has_gradients: ClassVar[bool] = True

    learners: Annotated[int, Field(ge=1, le=1000)] = Field(
        4, description="gradients computed in parallel"
    )
    staleness_decay: Annotated[float, Field(gt=0, le=1)] | None = Field(
        0.9,
        description="d, by which the bound on staleness shrinks with each update; null = no bound",
    )
    learning_rate_root: Annotated[float, Field(gt=0, le=1000)] | None = Field(
        3.0,
        description="v: a gradient that is s versions old gets s^(−1/v) of the learning rate; null = all "
        "of it",
    )
    truncation: Annotated[float, Field(gt=0, le=1000)] | None = Field(
        1.0,
        description="ρ: importance ratios are capped at ρ, or at the least ratio of all learners if "
        "larger; null = no cap",
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
                    kind
                    for kind, settings in ALGORITHMS.settings.items()
                    if settings.has_truncated_loss
                )
                + ", or learner.kind = instance | function"
            )
        yield from _problems(experiment)

    def make(self, learner: Any, remote: Any) -> Updater:
        """Makes the updater."""
        from runtime.learner.functions.stellaris import StellarisUpdater

        return StellarisUpdater(learner, remote, self)


def _problems(experiment: Any) -> Iterator[str]:
    """Yields a message for each value that no function learner supports, with updates or gradients."""
    learner = experiment.learner
    algorithm = experiment.algorithm
    kind = f"learner.kind = {learner.kind}"
    if learner.device == "cuda":
        yield (
            f"learner.device = 'cuda': a function has no GPU ({kind}); allowed: auto | cpu, or "
            "learner.kind = instance"
        )
    if algorithm.is_asynchronous:
        yield (
            f"algorithm.rounds = {algorithm.rounds or 'null (asynchronous)'}: each update is an invocation "
            f"({kind}), too dear for the few trajectories that an asynchronous one trains on; "
            "allowed: synchronous, or learner.kind = instance"
        )
    if learner.function_timeout_s > learner.update_timeout_s:
        yield (
            f"learner.function_timeout_s = {learner.function_timeout_s} is longer than learner.update_timeout_s = "
            f"{learner.update_timeout_s}, which ends the run; allowed: 1 to {min(900, learner.update_timeout_s)}"
        )
