"""When to evaluate the policy during training: in parallel, with the result due at a fixed later round."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from runtime.records.state import State
from runtime.training.evaluation import Evaluation
from runtime.training.progress import Progress

_LAG_SHARE = 4
"""An evaluation decides after a quarter of ``evaluation.every_rounds``, but not before the next round's end."""
_PLAUSIBLE_SHARE = 0.5
"""A hit is plausible after a training episode has covered this share of the distance from first returns to target.

Best actions do better than sampled ones, most of all early in training: when Hopper's evaluations reach 3,000, its
training episodes average 1,900.
"""


class PolicyEvaluator(Protocol):
    """Evaluates policies during training, one at a time."""

    def begin(self, weights: bytes, round_index: int) -> None:
        """Starts to evaluate the policy after a round. Returns at once."""

    def result(self, timeout_s: float) -> Evaluation:
        """Waits for the started evaluation.

        Raises:
            BudgetError: It takes longer than ``timeout_s``.
            ActorError: The environment cannot be played.
        """


@dataclass(frozen=True)
class Decided:
    """Evaluations that were decided in one round; all None if there were none.

    Attributes:
        evaluation: The one that decided; the last if there were two.
        policy_round: The round whose policy was evaluated.
        seconds: CPU-seconds of all that decided.
        steps: Environment steps of all that decided, confirmations included.
    """

    evaluation: Evaluation | None = None
    policy_round: int | None = None
    seconds: float | None = None
    steps: int | None = None


@dataclass(frozen=True)
class BestPolicy:
    """The policy with the highest mean return in an evaluation; the earliest if tied.

    Attributes:
        weights: A WEIGHTS message.
        return_mean: The evaluation's mean return.
        round_index: The round that left this policy.
    """

    weights: bytes
    return_mean: float
    round_index: int


@dataclass
class _Pending:
    """An evaluation in progress."""

    round_index: int
    weights: bytes


class Evaluations:
    """Begins evaluations, one at a time, and collects their results at rounds that do not depend on timing.

    They begin every ``every_rounds`` rounds, and one after another if training episodes of the last
    ``every_rounds`` rounds make it plausible that the target is reached. The last round's policy is always evaluated.

    Attributes:
        kept: The policy that reached the target; None before.
        best: The best evaluated policy; None before the first evaluation.
    """

    def __init__(
        self,
        evaluator: PolicyEvaluator,
        progress: Progress,
        *,
        every_rounds: int,
        has_whole_episodes: bool,
    ) -> None:
        """Starts with no evaluation.

        Args:
            evaluator: Evaluates one policy at a time.
            progress: Receives the results, and has the target.
            every_rounds: Rounds between evaluations; 0 for none.
            has_whole_episodes: Whether training returns are comparable with an evaluation's.
        """
        self._evaluator = evaluator
        self._progress = progress
        self._every_rounds = every_rounds
        self._has_whole_episodes = has_whole_episodes
        self._lag = max(1, every_rounds // _LAG_SHARE)
        self._pending: _Pending | None = None
        self._first_return: float | None = None
        self._best_episodes: deque[float | None] = deque(maxlen=max(1, every_rounds))
        self.kept: bytes | None = None
        self.best: BestPolicy | None = None

    def may_take_time(self, round_index: int, *, steps_max: int) -> bool:
        """Returns whether an evaluation may be due in a round of at most ``steps_max`` environment steps."""
        return self._every_rounds > 0 and (
            self._decides(round_index) or self._progress.is_last(round_index, steps_more=steps_max)
        )

    @property
    def pending_round(self) -> int | None:
        """The round whose policy is being evaluated; None if none is."""
        return None if self._pending is None else self._pending.round_index

    def begin_again(self) -> None:
        """Restarts a resumed run's evaluation in progress."""
        if self._pending is not None:
            self._evaluator.begin(self._pending.weights, self._pending.round_index)

    def end_round(
        self,
        round_index: int,
        weights: Callable[[], bytes],
        *,
        returns: Sequence[float],
        limit_s: float,
    ) -> Decided:
        """Collects the result that is due at the end of this round, and begins the next evaluation.

        Args:
            weights: Returns the policy that this round leaves.
            returns: Returns of the training episodes that ended in this round.
            limit_s: Longest wait for results.

        Raises:
            BudgetError: An evaluation took longer than ``limit_s``.
        """
        if self._every_rounds == 0:
            return Decided()
        self._observe(returns)
        is_last, decided = self._progress.is_last(round_index), Decided()
        if self._pending is not None and (is_last or self._decides(round_index)):
            decided = self._decide(round_index, self._pending, limit_s, decided)
        if self.kept is None and self._pending is None and (is_last or self._is_due(round_index)):
            self._pending = _Pending(round_index, weights())
            self.begin_again()
            if is_last:
                decided = self._decide(round_index, self._pending, limit_s, decided)
        return decided

    def _decide(
        self, round_index: int, pending: _Pending, limit_s: float, before: Decided
    ) -> Decided:
        before_s = before.seconds or 0.0
        evaluation = self._evaluator.result(max(limit_s - before_s, 0.001))
        self._pending = None
        self._progress.evaluated(
            evaluation.return_mean, policy_round=pending.round_index, decided_round=round_index
        )
        if self._progress.is_target_reached(evaluation.return_mean):
            self.kept = pending.weights
        if self.best is None or evaluation.return_mean > self.best.return_mean:
            self.best = BestPolicy(pending.weights, evaluation.return_mean, pending.round_index)
        steps = (before.steps or 0) + sum(evaluation.lengths) + evaluation.steps_before
        return Decided(evaluation, pending.round_index, before_s + evaluation.seconds, steps)

    def _observe(self, returns: Iterable[float]) -> None:
        """Records a round's best training episode, and the mean of the first returns."""
        found = list(returns) if self._has_whole_episodes else []
        if found and self._first_return is None:
            self._first_return = float(np.mean(found))
        self._best_episodes.append(max(found, default=None))

    def _decides(self, round_index: int) -> bool:
        """Returns whether the evaluation in progress decides at the end of this round."""
        return self._pending is not None and round_index >= self._pending.round_index + self._lag

    def _is_due(self, round_index: int) -> bool:
        target, first = self._progress.stop.target_return, self._first_return
        if round_index % self._every_rounds == 0:
            return True
        if target is None or first is None:
            return False
        best = max((one for one in self._best_episodes if one is not None), default=first)
        return best - first >= _PLAUSIBLE_SHARE * (target - first)

    def get_state(self) -> State:
        """Returns the evaluation in progress, the returns that make a hit plausible, and the best policy so far."""
        pending, best = self._pending, self.best
        found = {"weights": pending and pending.weights, "best_weights": best and best.weights}
        return State(
            {name: np.frombuffer(weights, np.uint8) for name, weights in found.items() if weights},
            {
                "round_index": pending and pending.round_index,
                "first_return": self._first_return,
                "best_episodes": list(self._best_episodes),
                "best_return_mean": best and best.return_mean,
                "best_round_index": best and best.round_index,
            },
        )

    def set_state(self, state: State) -> None:
        """Restores a state; `begin_again` restarts its evaluation."""
        values = state.values
        self._pending = None
        self.best = None
        if values["round_index"] is not None:
            self._pending = _Pending(values["round_index"], state.arrays["weights"].tobytes())
        self._first_return = values["first_return"]
        self._best_episodes = deque(values["best_episodes"], maxlen=self._best_episodes.maxlen)
        if values["best_round_index"] is not None:
            self.best = BestPolicy(
                state.arrays["best_weights"].tobytes(),
                values["best_return_mean"],
                values["best_round_index"],
            )
