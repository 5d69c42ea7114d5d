"""A process that evaluates policies, so that neither the learner nor the actors' rounds wait for it.

    python -m runtime.training.evaluation_process CONTROL_FD SETTINGS

It communicates over an inherited socket: a request is a round's number and a WEIGHTS message, the answer is JSON. It
ends when the process at the other end does.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

from lambda_actor.environments import make_environment
from lambda_actor.errors import ActorError, UnusableEnvironmentError, told
from runtime.errors import ERROR_CHARACTERS_MAX, BudgetError, RunError, one_line
from runtime.fleet import ACTOR_VARIABLES
from runtime.fleet.processes import (
    DEATH_PATIENCE_S,
    Child,
    connect,
    how_it_ended,
)
from runtime.training.evaluation import Evaluator, evaluate_and_confirm
from runtime.training.interfaces import Evaluation

_EPISODE_OVER = "episode_over"


class EvaluationProcess:
    """A `runtime.training.interfaces.PolicyEvaluator` whose process starts when first needed."""

    def __init__(
        self,
        environment_id: str,
        preprocessing: str,
        options: Mapping[str, Any] | None = None,
        *,
        episodes: int,
        seed: int,
        target_return: float | None,
        is_stochastic: bool = False,
        tell: Callable[[int, int, int], None] = lambda *_: None,
    ) -> None:
        """Prepares evaluations without starting a process.

        Args:
            preprocessing: The environment's, ``atari`` or ``none``.
            options: The environment's; see `lambda_actor.making.OPTIONS`.
            episodes: Episodes of an evaluation.
            seed: Seed of the start states and of sampled actions.
            is_stochastic: Sample the actions, as in training.
            target_return: Return to confirm when reached; None for none.
            tell: Called, also in another thread, when an evaluation begins, after each of its episodes and at its end,
                with the policy's round, the number of finished episodes, and their total; see `Display.evaluating`.
        """
        self._episodes, self._tell = episodes, tell
        self._settings = json.dumps(
            {
                "environment_id": environment_id,
                "preprocessing": preprocessing,
                "options": options or {},
                "episodes": episodes,
                "seed": seed,
                "is_stochastic": is_stochastic,
                "target_return": target_return,
            }
        )
        self._process: Child | None = None
        self._thread = ThreadPoolExecutor(1, "evaluation")
        self._answer: Future[Mapping[str, Any]] | None = None

    def begin(self, weights: bytes, round_index: int) -> None:
        """Begins to evaluate a policy; only one evaluation runs at a time."""
        self._asked, self._is_repeated = (weights, round_index), False
        self._start()

    def _start(self) -> None:
        # Not in the thread: the kernel ends the process when the thread that started it ends.
        if self._process is None:
            self._process = Child(
                "runtime.training.evaluation_process", self._settings, variables=ACTOR_VARIABLES
            )
        self._answer = self._thread.submit(self._ask, self._process.connection, *self._asked)

    def result(self, timeout_s: float) -> Evaluation:
        """Waits for the current evaluation. If its process is killed, it is repeated once in a new one.

        Raises:
            BudgetError: It takes longer than ``timeout_s``.
            UnusableEnvironmentError: The environment raised, or its process ended.
        """
        assert self._answer is not None
        assert self._process is not None
        deadline_s = time.monotonic() + timeout_s
        try:
            found = self._answer.result(timeout_s)
        except TimeoutError:
            raise BudgetError(
                f"the evaluation took longer than the {timeout_s:.1f} s that were left of "
                "learner.update_timeout_s; raise that"
            ) from None
        except (EOFError, OSError):
            code, self._process = self._process.end(DEATH_PATIENCE_S), None
            if code == -signal.SIGKILL and not self._is_repeated:
                self._is_repeated = True
                self._start()
                return self.result(deadline_s - time.monotonic())
            raise UnusableEnvironmentError(
                f"the process that evaluates the policy ended ({how_it_ended(code)})"
            ) from None
        if "error" in found:
            raise UnusableEnvironmentError(found["error"])
        return Evaluation(
            tuple(found["returns"]),
            tuple(found["lengths"]),
            found["seconds"],
            found["steps_before"],
        )

    def close(self) -> None:
        """Ends the process immediately."""
        if self._process is not None:
            self._process.end()
        self._thread.shutdown()

    def _ask(self, connection: Connection, weights: bytes, round_index: int) -> Mapping[str, Any]:
        self._tell(round_index, 0, self._episodes)
        connection.send_bytes(str(round_index).encode())
        connection.send_bytes(weights)
        done = 0
        message: dict[str, Any] = json.loads(connection.recv_bytes())
        while _EPISODE_OVER in message:
            done += 1
            # A hit is confirmed on the same number of fresh episodes.
            self._tell(round_index, done, self._episodes * (1 if done <= self._episodes else 2))
            message = json.loads(connection.recv_bytes())
        self._tell(round_index, done, done)
        return message


def main(control_fd: int, settings: Mapping[str, Any]) -> None:
    """Answers requests until the other end closes the connection."""
    connection, asked = connect(control_fd)
    evaluator: Evaluator | None = None

    def tell() -> None:
        connection.send_bytes(json.dumps({_EPISODE_OVER: True}).encode())

    while True:
        round_index, weights = int(asked.get()), asked.get()
        started_s = time.process_time()
        try:
            if evaluator is None:
                evaluator = Evaluator(
                    make_environment(
                        settings["environment_id"], settings["preprocessing"], settings["options"]
                    ),
                    settings["episodes"],
                    seed=settings["seed"],
                    is_stochastic=settings["is_stochastic"],
                    episode_over=tell,
                )
            evaluation = evaluate_and_confirm(
                evaluator, weights, round_index, settings["target_return"]
            )
            found: dict[str, Any] = {**vars(evaluation), "seconds": time.process_time() - started_s}
        except BaseException as error:
            said = str(error) if isinstance(error, ActorError | RunError) else told(error)
            found = {"error": one_line(said, ERROR_CHARACTERS_MAX)}
        connection.send_bytes(json.dumps(found).encode())


if __name__ == "__main__":
    main(int(sys.argv[1]), json.loads(sys.argv[2]))
