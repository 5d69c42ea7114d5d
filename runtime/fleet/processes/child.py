"""One of our modules in its own process, as seen by the process that starts it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

DEATH_PATIENCE_S = 1.0
"""Seconds in which a process that has closed its connection should end."""
_ROOT = Path(__file__).resolve().parents[3]


class Child:
    """Runs a module, whose first argument is its end of a socket; the module calls `inside.connect`.

    It has its own session: only this process reacts to Ctrl-C at the terminal, and its children can be ended with it.

    Attributes:
        connection: The other end.
        process_id: Id of the process and its group.
        stdin: Its standard input, if that is a pipe.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        variables: Mapping[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
        output: int | IO[bytes] | None = subprocess.DEVNULL,
        descriptors: Sequence[int] = (),
        python: str | None = None,
    ) -> None:
        """Starts the process, which ends with the calling thread.

        It imports from the same places as this process, like `multiprocessing`, including a script's folder. Another
        interpreter imports its own packages, and those in ``PYTHONPATH``.

        Args:
            module: As for ``python -m``.
            arguments: Those after the first one.
            variables: Environment variables in addition to this process's.
            stdin: ``DEVNULL`` or ``PIPE``.
            output: File for its output. Not a pipe, which an environment's children would keep open.
            descriptors: Inherited files, with the same numbers.
            python: Path of another interpreter; None = this one.

        Raises:
            OSError: It cannot be started.
        """
        own = [] if python else [str(_ROOT), *sys.path]
        path = os.pathsep.join(filter(None, [*own, os.environ.get("PYTHONPATH")]))
        ours, theirs = socket.socketpair()
        with ours, theirs:
            self._popen = subprocess.Popen(
                [python or sys.executable, "-m", module, str(theirs.fileno()), *arguments],
                pass_fds=(theirs.fileno(), *descriptors),
                stdin=stdin,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, **(variables or {}), "PYTHONPATH": path},
            )
            self.connection = Connection(ours.detach())
        self.process_id, self.stdin = self._popen.pid, self._popen.stdin

    @property
    def exit_code(self) -> int | None:
        """Returns its exit code, negative for a signal; None while it lives."""
        return self._popen.poll()

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Waits for its end, and returns its exit code; None if it still lives."""
        with suppress(subprocess.TimeoutExpired):
            return self._popen.wait(timeout_s)
        return None

    def end(self, patience_s: float = 0.0) -> int:
        """Kills it after ``patience_s``, with its children, and returns its exit code."""
        self.wait(patience_s)
        self.kill()
        return self._popen.wait()

    def kill(self) -> None:
        """Kills it and its children, without waiting for their end."""
        # If it ended by itself, its session is empty.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process_id, signal.SIGKILL)
        self._popen.kill()


def how_it_ended(exit_code: int) -> str:
    """Returns the name of the signal that ended a process, or its exit code, for people."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    with suppress(ValueError):
        return signal.Signals(-exit_code).name
    return f"signal {-exit_code}"
