"""Interfaces of a run: evaluation, callbacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from runtime.records.rows import RoundRow


@dataclass(frozen=True)
class Evaluation:
    """Whole episodes in a separate environment, played by `runtime.training.evaluation`.

    Attributes:
        returns: By episode.
        lengths: By episode, in steps.
        seconds: CPU-seconds that it took, including episodes that only led to these.
        steps_before: Steps of those leading episodes.
    """

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    seconds: float = field(default=0.0, compare=False)
    steps_before: int = field(default=0, compare=False)

    @property
    def return_mean(self) -> float:
        return float(np.mean(self.returns))


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


class RunControl(Protocol):
    """Actions that a callback may take on its run.

    Attributes:
        environment_kwargs: A copy of the arguments for the next round's environments.
    """

    @property
    def environment_kwargs(self) -> dict[str, Any]: ...

    def stop(self, reason: str) -> None:
        """Ends the run now, before the next round; its ``stop_reason`` is ``callback: `` and the reason."""

    def change_environment(self, **kwargs: Any) -> None:
        """Changes some of ``environment.kwargs`` from the next round on.

        Open episodes are dropped, because they began in another environment. Evaluations keep the kwargs of the
        experiment file, so their returns remain comparable.

        Raises:
            ValueError: They are not JSON values, or the rounds are asynchronous.
        """


class Callback:
    """A base class for callbacks of your own, which can observe a run, stop it, and change its environment.

    Methods do nothing unless a subclass overrides them. An exception ends the run. A resumed run calls a callback with
    the last finished round once more, after `load_state` has undone the first call's effects.
    """

    def on_evaluation(self, row: RoundRow, run: RunControl) -> None:
        """Called before `on_round_end` if an evaluation has ended: ``row.evaluation_return_mean``."""

    def on_round_end(self, row: RoundRow, run: RunControl) -> None:
        """Called when a finished round and its checkpoint are on disk."""

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """Called when the run has ended for any reason. ``summary`` is the content of ``summary.json``."""

    def state(self) -> Any:
        """Returns the state that later rounds depend on, as JSON values. Each checkpoint includes it."""
        return None

    def load_state(self, state: Any) -> None:
        """Continues from a result of `state`."""
