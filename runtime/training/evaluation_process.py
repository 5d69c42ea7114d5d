"""Evaluates policies in another process, so that neither the learner nor the actors' rounds wait for it."""

from __future__ import annotations

import base64
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from lambda_actor.errors import UnusableEnvironmentError
from runtime import machine
from runtime.errors import BudgetError, RunError
from runtime.records.observers import EventSink
from runtime.training.environment_process import EnvironmentProcess, TaskError
from runtime.training.evaluation import Evaluation

_KILLED = "the evaluation's process was killed (SIGKILL); the usual reason is too little memory"


class EvaluationProcess:
    """A `runtime.training.evaluations.PolicyEvaluator` whose process starts when first needed."""

    def __init__(
        self,
        start: Callable[[], EnvironmentProcess],
        events: EventSink,
        *,
        target_return: float | None,
        **settings: Any,
    ) -> None:
        """Prepares evaluations without starting a process.

        Args:
            start: Starts it.
            events: Records that one was killed.
            target_return: Return that fresh episodes confirm, which did not influence the choice; None for none.
            settings: Arguments of `runtime.training.evaluation.Evaluator`.
        """
        self._start_process = start
        self._events = events
        self._target_return = target_return
        self._settings = settings
        self._process: EnvironmentProcess | None = None
        self._first_bytes = 0
        self._memory_bytes = 0
        self._thread = ThreadPoolExecutor(1, "evaluation")

    def begin(self, weights: bytes, round_index: int) -> None:
        """Begins to evaluate a policy; only one evaluation runs at a time."""
        self._weights = base64.b64encode(weights).decode()
        self._round_index = round_index
        self._is_repeated = False
        grown_bytes = self._memory_bytes - self._first_bytes
        if self._process is not None and grown_bytes > machine.growth_max_bytes(2):
            self._events.append(
                "process_replaced",
                reason=f"the evaluation's memory grew by {grown_bytes / 2**20:,.0f} MiB",
            )
            self._replace()
        self._start()

    def _replace(self) -> None:
        assert self._process is not None
        self._process.close()
        self._process = None
        self._first_bytes = 0

    def _start(self) -> None:
        # Not in the thread: the kernel ends the process when the thread that started it ends.
        self._process = self._process or self._start_process()
        self._answer: Future[Evaluation] = self._thread.submit(self._evaluate, self._process)

    def result(self, timeout_s: float) -> Evaluation:
        """Waits for the current evaluation. If it fails, it is repeated once in a new process.

        Raises:
            BudgetError: It takes longer than ``timeout_s``.
            UnusableEnvironmentError: The environment raised, or ended its process, in the repetition too.
            RunError: The repetition's process was killed as well.
        """
        assert self._process is not None
        deadline_s = time.monotonic() + timeout_s
        try:
            return self._answer.result(timeout_s)
        except TimeoutError:
            raise BudgetError(
                f"the evaluation took longer than the {timeout_s:.1f} s that were left of "
                "learner.update_timeout_s; raise that"
            ) from None
        except TaskError as error:
            is_killed = self._process.exit_code == -signal.SIGKILL
            reason = _KILLED if is_killed else str(error)
            if self._is_repeated and is_killed:
                raise RunError(f"{reason}. So was the one that repeated it") from None
            if self._is_repeated:
                raise UnusableEnvironmentError(reason) from None
        self._is_repeated = True
        self._events.append("evaluation_repeated", policy_round=self._round_index, reason=reason)
        self._replace()
        self._start()
        return self.result(deadline_s - time.monotonic())

    def close(self) -> None:
        """Ends the process immediately."""
        if self._process is not None:
            self._process.end()
            self._thread.shutdown()
            self._process.close()

    def _evaluate(self, process: EnvironmentProcess) -> Evaluation:
        evaluation = self._ask(process, fresh=None)
        if self._target_return is None or evaluation.return_mean < self._target_return:
            return evaluation
        confirmed = self._ask(process, fresh=self._round_index)
        return replace(
            confirmed,
            seconds=evaluation.seconds + confirmed.seconds,
            steps_before=sum(evaluation.lengths),
        )

    def _ask(self, process: EnvironmentProcess, *, fresh: int | None) -> Evaluation:
        *_, (_, value) = process.run(
            "evaluate", weights=self._weights, fresh=fresh, **self._settings
        )
        # Batched environments do not say.
        self._memory_bytes = value.get("memory_bytes", 0)
        self._first_bytes = self._first_bytes or self._memory_bytes
        return Evaluation(tuple(value["returns"]), tuple(value["lengths"]), value["seconds"])
