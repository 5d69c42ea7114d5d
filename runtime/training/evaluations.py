"""When the policy is evaluated during training: beside it, and decided on at a round that is fixed in advance."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from runtime.ports.learning import State
from runtime.ports.money import WorkTimes
from runtime.ports.run import Evaluation, PolicyEvaluator
from runtime.training.progress import Progress

_LAG_SHARE = 4
"""An evaluation decides after a quarter of ``evaluation.every_rounds``, but not before the next round's end."""
_PLAUSIBLE_SHARE = 0.5
"""A hit is plausible once a training episode has gone this share of the way from the first returns to the target.

Best actions do better than sampled ones, most of all early in a training: when Hopper's evaluations reach 3,000, its
training episodes average 1,900 (docs/design/performance.md).
"""


@dataclass(frozen=True)
class Decided:
    """What became of evaluations in one round; all None in a round without one.

    Attributes:
        evaluation: The one that decided, the last one if there were two.
        policy_round: The round after which its policy was taken.
        seconds: CPU-seconds of all that decided.
        work_s: For how long they would count in the bill if everything waited for them.
        modelled_s: For how long they do: what did not fit into the time in which the learner waited for actors.
    """

    evaluation: Evaluation | None = None
    policy_round: int | None = None
    seconds: float | None = None
    work_s: float | None = None
    modelled_s: float | None = None


@dataclass(frozen=True)
class BestPolicy:
    """The policy whose evaluation had the highest mean return so far; of equal ones the first.

    Attributes:
        weights: A WEIGHTS message.
        return_mean: Of the evaluation.
        round_index: The round that left this policy.
    """

    weights: bytes
    return_mean: float
    round_index: int


@dataclass
class _Pending:
    """An evaluation that is under way."""

    round_index: int
    weights: bytes
    idle_s: float = 0.0


class Evaluations:
    """Begins evaluations, one at a time, and takes their results at rounds that timing has no part in.

    Without a target they are begun every so many rounds. With one they are begun as soon as a hit is plausible by the
    training episodes' returns, and then one after the other; where no training episode tells, every so many rounds.
    After the last round its policy is evaluated in any case.

    Attributes:
        kept: The policy that reached the target; None before.
        best: The best evaluated one; None before the first evaluation.
    """

    def __init__(
        self,
        evaluator: PolicyEvaluator,
        progress: Progress,
        *,
        every_rounds: int,
        has_whole_episodes: bool,
        times: WorkTimes,
    ) -> None:
        """Starts with no evaluation.

        Args:
            evaluator: Evaluates one policy at a time.
            progress: Is told the results, and knows the target.
            every_rounds: Rounds between evaluations; 0 for none.
            has_whole_episodes: Whether the returns of training episodes compare with an evaluation's.
            times: For how long an evaluation counts in the bill.
        """
        self._evaluator, self._progress, self._times = evaluator, progress, times
        self._every_rounds, self._has_whole_episodes = every_rounds, has_whole_episodes
        self._lag = max(1, every_rounds // _LAG_SHARE)
        self._pending: _Pending | None = None
        self._first_return: float | None = None
        self._best_episodes: deque[float | None] = deque(maxlen=max(1, every_rounds))
        self.kept: bytes | None = None
        self.best: BestPolicy | None = None

    def may_take_time(self, round_index: int, *, steps_max: int) -> bool:
        """Whether an evaluation may be due in a round of so many environment steps at most."""
        return self._every_rounds > 0 and (
            self._decides(round_index) or self._progress.is_last(round_index, steps_more=steps_max))

    def begin_again(self) -> None:
        """Begins what a resumed run had under way."""
        if self._pending is not None:
            self._evaluator.begin(self._pending.weights, self._pending.round_index)

    def end_round(
        self,
        round_index: int,
        weights: Callable[[], bytes],
        *,
        returns: Sequence[float],
        idle_s: float,
        limit_s: float,
    ) -> Decided:
        """Takes the result that is due at the end of this round, and begins the next evaluation.

        Args:
            weights: Gives the policy that this round leaves.
            returns: Of the training episodes that ended in this round.
            idle_s: Modelled seconds of this round in which the learner had nothing to do.
            limit_s: Longest that may be waited for results.

        Raises:
            BudgetError: An evaluation took longer than ``limit_s``.
        """
        if self._every_rounds == 0:
            return Decided()
        self._observe(returns)
        is_last, decided = self._progress.is_last(round_index), Decided()
        if (pending := self._pending) is not None:
            pending.idle_s += idle_s
            if is_last or self._decides(round_index):
                decided = self._decide(round_index, pending, limit_s)
        if self.kept is None and self._pending is None and (is_last or self._is_due(round_index)):
            self._pending = _Pending(round_index, weights())
            self._evaluator.begin(self._pending.weights, round_index)
            if is_last:
                before, decided = decided, self._decide(
                    round_index, self._pending, limit_s - (decided.seconds or 0.0))
                decided = replace(decided, seconds=(decided.seconds or 0.0) + (before.seconds or 0.0),
                                  work_s=(decided.work_s or 0.0) + (before.work_s or 0.0),
                                  modelled_s=(decided.modelled_s or 0.0) + (before.modelled_s or 0.0))
        return decided

    def _decide(self, round_index: int, pending: _Pending, limit_s: float) -> Decided:
        evaluation = self._evaluator.result(max(limit_s, 0.001))
        self._pending = None
        self._progress.evaluated(evaluation.return_mean, policy_round=pending.round_index, decided_round=round_index)
        if self._progress.is_target_reached(evaluation.return_mean):
            self.kept = pending.weights
        if self.best is None or evaluation.return_mean > self.best.return_mean:
            self.best = BestPolicy(pending.weights, evaluation.return_mean, pending.round_index)
        work_s = self._times.evaluate_s(sum(evaluation.lengths) + evaluation.steps_before, evaluation.seconds)
        return Decided(evaluation, pending.round_index, evaluation.seconds, work_s,
                       max(0.0, work_s - pending.idle_s))

    def _observe(self, returns: Iterable[float]) -> None:
        """Notes the best training episode of a round, and how the first ones were."""
        found = list(returns) if self._has_whole_episodes else []
        if found and self._first_return is None:
            self._first_return = float(np.mean(found))
        self._best_episodes.append(max(found, default=None))

    def _decides(self, round_index: int) -> bool:
        """Whether what is under way decides at the end of this round."""
        return self._pending is not None and round_index >= self._pending.round_index + self._lag

    def _is_due(self, round_index: int) -> bool:
        target, first = self._progress.stop.target_return, self._first_return
        if target is None or first is None:
            return round_index % self._every_rounds == 0
        best = max((one for one in self._best_episodes if one is not None), default=first)
        return best - first >= _PLAUSIBLE_SHARE * (target - first)

    def get_state(self) -> State:
        """What is under way, what makes a hit plausible, and the best policy so far."""
        pending, best = self._pending, self.best
        found = {"weights": pending and pending.weights, "best_weights": best and best.weights}
        return State({name: np.frombuffer(weights, np.uint8) for name, weights in found.items() if weights}, {
            "round_index": pending and pending.round_index, "idle_s": pending.idle_s if pending else 0.0,
            "first_return": self._first_return, "best_episodes": list(self._best_episodes),
            "best_return_mean": best and best.return_mean, "best_round_index": best and best.round_index})

    def set_state(self, state: State) -> None:
        """Goes on from a state; `begin_again` begins what was under way."""
        values = state.values
        self._pending, self.best = None, None
        if values["round_index"] is not None:
            self._pending = _Pending(int(values["round_index"]), state.arrays["weights"].tobytes(),
                                     float(values["idle_s"]))
        self._first_return = values["first_return"]
        self._best_episodes = deque(values["best_episodes"], maxlen=self._best_episodes.maxlen)
        if values["best_round_index"] is not None:
            self.best = BestPolicy(state.arrays["best_weights"].tobytes(), float(values["best_return_mean"]),
                                   int(values["best_round_index"]))
