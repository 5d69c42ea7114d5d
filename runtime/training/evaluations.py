"""When the policy is evaluated during training."""

from __future__ import annotations

import time
from collections.abc import Callable

from runtime.interfaces import Evaluation
from runtime.training.progress import Progress
from runtime.training.updating import TimeLimit


class Evaluations:
    """Evaluates every so many rounds, and after the last one."""

    def __init__(
        self,
        evaluate: Callable[[bytes], Evaluation],
        progress: Progress,
        *,
        every_rounds: int,
        time_limit: TimeLimit,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Plans the evaluations.

        Args:
            evaluate: Evaluates a policy that is given as a weights message.
            progress: Is told the result.
            every_rounds: Rounds between evaluations; 0 for none.
            clock: Monotonic seconds.
        """
        self._evaluate, self._progress, self._every_rounds = evaluate, progress, every_rounds
        self._time_limit, self._clock = time_limit, clock

    def may_take_time(self, round_index: int, *, steps_max: int) -> bool:
        """Whether an evaluation may be due in a round of so many environment steps at most."""
        return self._every_rounds > 0 and (
            round_index % self._every_rounds == 0 or self._progress.is_last(round_index, steps_more=steps_max))

    def if_due(
        self, round_index: int, weights: Callable[[], bytes], limit_s: float
    ) -> tuple[Evaluation | None, float | None]:
        """Evaluates the policy if that is due after this round.

        Returns:
            The evaluation and its seconds, or None and None.

        Raises:
            BudgetError: It took longer than ``limit_s``.
        """
        is_due = self._every_rounds > 0 and (
            round_index % self._every_rounds == 0 or self._progress.is_last(round_index))
        if not is_due:
            return None, None
        started_s = self._clock()
        with self._time_limit(max(limit_s, 0.001), "the evaluation"):
            evaluation = self._evaluate(weights())
        self._progress.evaluation_return_mean = evaluation.return_mean
        self._progress.evaluation_round = round_index
        return evaluation, self._clock() - started_s
