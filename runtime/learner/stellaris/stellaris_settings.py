"""Settings of Stellaris: unsupported combinations, and its updater."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from runtime.learner.remote.function_settings import UNREAD, function_problems
from runtime.ports.learning import Updater
from runtime.settings.algorithm import ALGORITHMS
from runtime.settings.updater import StellarisSection


class StellarisSettings(StellarisSection):
    """Settings of several learner functions."""

    title: ClassVar[str] = "parallel learner functions"
    has_instance: ClassVar[bool] = False
    has_gradients: ClassVar[bool] = True
    is_tabled: ClassVar[bool] = True
    sections: ClassVar[tuple[str, ...]] = ("function",)
    unread: ClassVar[tuple[str, ...]] = UNREAD

    @property
    def functions_at_once(self) -> int:
        """Returns the number of its learners."""
        return self.learners

    def contradictions(self, experiment: Any) -> Iterator[str]:
        """Yields a message for each combination of values that cannot work."""
        algorithm = experiment.algorithm
        if not algorithm.chosen.has_truncated_loss:
            yield (
                f"algorithm.kind = {algorithm.kind} has no truncated loss, and updates that learner.kind = "
                "stellaris does not know; allowed: "
                + " | ".join(
                    kind for kind, one in ALGORITHMS.settings.items() if one.has_truncated_loss
                )
                + ", or learner.kind = instance | function"
            )
        yield from function_problems(experiment)

    def make(self, learner: Any, remote: Any) -> Updater:
        """Makes the updater."""
        from runtime.learner.stellaris.updater import StellarisUpdater

        return StellarisUpdater(learner, remote, self)
