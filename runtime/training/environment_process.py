"""A process with one environment, in which trials and evaluations play.

    python -m runtime.training.environment_process CONTROL_FD MADE

An environment that raises, hangs, prints without end or ends its process harms nothing else. The two ends exchange JSON
over an inherited socket. The process ends when the other end does.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import wait
from typing import Any

import numpy as np

from lambda_actor import trial
from lambda_actor.environments import ActorEnvironment, make_environment
from lambda_actor.errors import ActorError
from runtime.errors import ERROR_CHARACTERS_MAX, one_line
from runtime.fleet import ACTOR_VARIABLES
from runtime.fleet.processes import DEATH_PATIENCE_S, Child, connect, how_it_ended
from runtime.training.evaluation import Evaluator, WorldsEvaluator, evaluate_and_confirm

_POLL_S = 0.25
"""Seconds between looks at a process that says nothing."""
_OUTPUT_BYTES = 2**16
"""Bytes of output that are kept for its last line."""
_MAKING = "being imported and made"


class TaskError(Exception):
    """A task failed; the message is for people."""


class EnvironmentProcess:
    """The process, as seen by the one that starts it.

    Attributes:
        about: How a message about the environment begins.
    """

    def __init__(
        self, environment_id: str, preprocessing: str, options: Mapping[str, Any] | None
    ) -> None:
        """Starts it; the arguments are those of `make_environment`."""
        self.about = f"environment.id = {environment_id!r}: "
        self._doing, self._last_output = _MAKING, b""
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        self._output = open(reading, "rb", buffering=0)  # noqa: SIM115
        try:
            self._child = Child(
                "runtime.training.environment_process",
                json.dumps([environment_id, preprocessing, options or {}]),
                variables=ACTOR_VARIABLES,
                output=writing,
            )
        finally:
            os.close(writing)
        self._sources: list[Any] = [self._child.connection, self._output]

    @property
    def exit_code(self) -> int | None:
        """Its exit code, negative for a signal; None while it lives."""
        return self._child.exit_code

    @property
    def last_line(self) -> str:
        """The last line of its output, to append to a message; "" if there is none."""
        lines = self._last_output.decode(errors="replace").strip().splitlines()
        return f"; the last line there: {one_line(lines[-1])}" if lines else ""

    def run(self, task: str, **values: Any) -> Iterator[tuple[str, Any]]:
        """Runs a task of `_Tasks`; yields kind and value of its messages, and last ``answer``.

        Several times a second, it yields a message or ``waiting``.

        Raises:
            TaskError: It raised, or its process ended.
        """
        connection = self._child.connection
        kind: str = ""
        value: Any = None
        try:
            connection.send_bytes(json.dumps({"task": task, **values}).encode())
            while kind != "answer":
                ready: list[Any] = wait(self._sources, _POLL_S)
                if self._output in ready:
                    self._listen()
                kind, value = "waiting", None
                if connection in ready:
                    [(kind, value)] = json.loads(connection.recv_bytes()).items()
                elif not ready and self._child.exit_code is not None:
                    raise EOFError
                if kind == "error":
                    raise TaskError(value)
                if kind == "doing":
                    self._doing = value
                yield kind, value
        except (EOFError, OSError):
            how = how_it_ended(self._child.end(DEATH_PATIENCE_S))
            while self._listen():
                pass
            raise TaskError(
                f"{self.about}it ended its process ({how}), while it was {self._doing}{self.last_line}"
            ) from None

    def _listen(self) -> bool:
        """Reads a part of its output, and keeps only the end; returns whether there was any."""
        data = self._output.read(_OUTPUT_BYTES)
        if data == b"":
            # All writers have closed it.
            self._sources = [self._child.connection]
        self._last_output = (self._last_output + (data or b""))[-_OUTPUT_BYTES:]
        return bool(data)

    def end(self) -> None:
        """Ends it, with all processes that the environment started."""
        self._child.end()

    def close(self) -> None:
        """Ends it, and forgets its output. No task may be running."""
        self.end()
        self._output.close()


# In the other process


class _Tasks:
    """The tasks of the process: each public method is one."""

    def __init__(self, made: str, say: Callable[[str, Any], None]) -> None:
        """Takes the arguments of `make_environment`, and the function that sends a message."""
        self._made, self._say = json.loads(made), say
        self._spare: list[_Reporting] = []
        self._evaluator: Evaluator | WorldsEvaluator | None = None

    def _make(self) -> Any:
        if self._spare:
            return self._spare.pop()
        self._say("doing", _MAKING)
        return _Reporting(make_environment(*self._made), self._say)

    def make(self) -> dict[str, Any]:
        """Makes the environment; returns its properties."""
        environment = self._make()
        self._spare.append(environment)
        return trial.facts(environment) | {"spaces": dataclasses.asdict(environment.spaces)}

    def play(self, steps: int) -> dict[str, Any]:
        """Plays, and measures the seconds of a step."""
        environment, began_s = self._make(), time.monotonic()
        played = trial.play(environment, self._make, steps=steps)
        seconds = time.monotonic() - began_s
        return played | {"step_s": seconds / max(1, _Reporting.steps_total)}

    def go_on(self, **played: Any) -> dict[str, str]:
        """Continues the episode of another process."""
        return trial.go_on(self._make(), **played)

    def evaluate(
        self, weights: str, round_index: int, target_return: float | None, **settings: Any
    ) -> dict[str, Any]:
        """Evaluates a policy, a WEIGHTS message in Base64; the rest are arguments of `Evaluator`."""
        began_s = time.process_time()
        if self._evaluator is None:
            self._evaluator = self._make_evaluator(settings)
        self._say("doing", "being evaluated")
        evaluation = evaluate_and_confirm(
            self._evaluator, base64.b64decode(weights), round_index, target_return
        )
        return vars(evaluation) | {"seconds": time.process_time() - began_s}

    def try_worlds(self) -> dict[str, Any]:
        """Tries a batched environment; returns its properties."""
        from runtime.gmi.worlds.playing import try_worlds

        self._say("doing", _MAKING)
        options = self._made[2]
        return try_worlds(options["worlds"], options["device"])

    def _make_evaluator(self, settings: dict[str, Any]) -> Evaluator | WorldsEvaluator:
        options = self._made[2]
        if "worlds" in options:
            return WorldsEvaluator(options["worlds"], options["device"], **settings)
        return Evaluator(make_environment(*self._made), **settings)


class _Reporting:
    """An environment that reports each call before it makes it, and counts the steps of all."""

    steps_total = 0

    def __init__(self, environment: ActorEnvironment, say: Callable[[str, Any], None]) -> None:
        self._environment, self._say, self._step = environment, say, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)

    def reset(self, seed: int) -> np.ndarray:
        self._step = 0
        self._say("doing", f"in reset(seed={seed})")
        return self._environment.reset(seed)

    def step(self, action: np.ndarray | int) -> tuple[np.ndarray, float, bool, bool]:
        self._step += 1
        _Reporting.steps_total += 1
        self._say("doing", f"in step {self._step} of an episode")
        return self._environment.step(action)


def main(control_fd: int, made: str) -> None:
    """Runs tasks until the other end closes the connection."""
    connection, requests = connect(control_fd)
    process_id, environment_id = os.getpid(), json.loads(made)[0]

    def say(kind: str, value: Any) -> None:
        # Forked copies of this process must not send messages.
        if os.getpid() == process_id:
            connection.send_bytes(json.dumps({kind: value}).encode())

    tasks = _Tasks(made, say)
    while True:
        request = json.loads(requests.get())
        task = request.pop("task")
        try:
            say("answer", getattr(tasks, task)(**request))
        except (Exception, SystemExit) as error:
            is_clear = isinstance(error, ActorError) and task in ("make", "evaluate", "try_worlds")
            said = str(error) if is_clear else trial.explained(environment_id, error)
            say("error", one_line(said, ERROR_CHARACTERS_MAX))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
