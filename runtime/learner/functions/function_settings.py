"""Settings of a learner that is a function: unsupported combinations, and its updater."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from runtime.experiment.learner import LearnerFunctionSettings

if TYPE_CHECKING:
    from runtime.learner.in_place import InPlaceUpdater


class FunctionSettings(LearnerFunctionSettings):
    """Settings of the function that makes each update."""

    is_exact: ClassVar[bool] = True

    def contradictions(self, experiment: Any) -> Iterator[str]:
        """Yields a message for each combination of values that cannot work."""
        yield from function_problems(experiment)

    def make(self, learner: Any, remote: Any) -> InPlaceUpdater:
        """Makes the updater."""
        from runtime.learner.functions.function import FunctionUpdater

        return FunctionUpdater(learner, remote)


def function_problems(experiment: Any) -> Iterator[str]:
    """Yields a message for each value that no function learner supports, with updates or gradients."""
    learner, algorithm = experiment.learner, experiment.algorithm
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
