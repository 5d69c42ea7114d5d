"""A process with one environment, in which trials and evaluations play.

    python -m runtime.training.environment_process CONTROL_FD NAME TASKS MADE

An environment that raises, hangs, prints without end or ends its process harms nothing else. The two ends exchange JSON
over an inherited socket. The process ends when the other end does.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from multiprocessing.connection import wait
from typing import Any

from lambda_actor import trial
from lambda_actor.errors import ActorError
from runtime.errors import ERROR_CHARACTERS_MAX, one_line
from runtime.experiment.kinds import load
from runtime.fleet import ACTOR_VARIABLES
from runtime.fleet.processes import DEATH_PATIENCE_S, Child, connect, how_it_ended

_POLL_S = 0.25
"""Seconds between looks at a process that says nothing."""
_OUTPUT_BYTES = 2**16
"""Bytes of output that are kept for its last line."""
MAKING = "being imported and made"


class TaskError(Exception):
    """A task failed; the message is for people."""


class EnvironmentProcess:
    """The process, as seen by the one that starts it.

    Attributes:
        about: How a message about the environment begins.
    """

    def __init__(self, environment_id: str, tasks: str, *made: Any) -> None:
        """Starts it.

        Args:
            environment_id: For people.
            tasks: Import path of the class of its tasks: each public method is one.
            made: JSON values that the class takes, after the function that sends a message.
        """
        self.about = f"environment.id = {environment_id!r}: "
        self._doing = ""
        self._last_output = b""
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        self._output = open(reading, "rb", buffering=0)  # noqa: SIM115
        try:
            self._child = Child(
                "runtime.training.environment_process",
                environment_id,
                tasks,
                json.dumps(made),
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
        """Runs a task; yields kind and value of its messages, and last ``answer``.

        Several times a second, it yields a message or ``waiting``.

        Raises:
            TaskError: It raised, or its process ended.
        """
        connection = self._child.connection
        kind: str = ""
        value: Any = None
        self._doing = self._doing or MAKING
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
        """Ends it once the environment is closed, with all processes that it started."""
        if not self._doing:
            # Without a task, it has no environment.
            self._child.kill()
        self._child.close()

    def close(self) -> None:
        """Ends it, and forgets its output. No task may be running."""
        self.end()
        self._output.close()


def main(control_fd: int, environment_id: str, tasks_path: str, made: str) -> None:
    """In the other process: runs tasks until the other end closes the connection."""
    connection, requests = connect(control_fd, is_guarded=True)
    process_id = os.getpid()

    def say(kind: str, value: Any) -> None:
        # Forked copies of this process must not send messages.
        if os.getpid() == process_id:
            connection.send_bytes(json.dumps({kind: value}).encode())

    tasks = load(tasks_path)(say, *json.loads(made))
    while True:
        request = json.loads(requests.get())
        task = request.pop("task")
        try:
            say("answer", getattr(tasks, task)(**request))
        except (Exception, SystemExit) as error:
            is_clear = isinstance(error, ActorError) and task not in tasks.unclear
            said = str(error) if is_clear else trial.explained(environment_id, error)
            say("error", one_line(said, ERROR_CHARACTERS_MAX))


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
