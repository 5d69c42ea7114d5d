"""A module of ours in a process of its own, as seen by the process that starts it."""

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
"""Seconds until a process that has closed its connection has ended and can tell how."""
_ROOT = Path(__file__).resolve().parents[2]


class Child:
    """Runs a module, whose first argument is its end of a socket; the module calls `runtime.processes.inside.connect`.

    It has a session of its own: Ctrl-C at the terminal is for this process to act on, and what it starts can be ended
    with it.

    Attributes:
        connection: The other end.
        process_id: Its id, and its group's.
        stdin: What it reads, if that is a pipe.
    """

    def __init__(self, module: str, *arguments: str, variables: Mapping[str, str] | None = None,
                 stdin: int = subprocess.DEVNULL, output: int | IO[bytes] | None = subprocess.DEVNULL,
                 descriptors: Sequence[int] = (), python: str | None = None) -> None:
        """Starts it. It ends with the thread that calls this.

        It imports from wherever this process does, as `multiprocessing` has it: also from the folder of a script.
        Another interpreter imports its own packages, and what ``PYTHONPATH`` has.

        Args:
            module: As ``python -m`` takes it.
            arguments: After the first one.
            variables: Of the environment, besides this process'.
            stdin: ``DEVNULL`` or ``PIPE``.
            output: Takes what it prints. A file, not a pipe: what an environment starts would keep a pipe open.
            descriptors: Of files that it inherits, under the same numbers.
            python: Another interpreter's path; None = this one.

        Raises:
            OSError: It cannot be started.
        """
        own = [] if python else [str(_ROOT), *sys.path]
        path = os.pathsep.join(filter(None, [*own, os.environ.get("PYTHONPATH")]))
        ours, theirs = socket.socketpair()
        with ours, theirs:
            self._popen = subprocess.Popen(
                [python or sys.executable, "-m", module, str(theirs.fileno()), *arguments],
                pass_fds=(theirs.fileno(), *descriptors), stdin=stdin, stdout=output, stderr=output,
                start_new_session=True, env={**os.environ, **(variables or {}), "PYTHONPATH": path})
            self.connection = Connection(ours.detach())
        self.process_id, self.stdin = self._popen.pid, self._popen.stdin

    @property
    def exit_code(self) -> int | None:
        """How it ended, negative for a signal; None while it lives."""
        return self._popen.poll()

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Waits for its end; returns its exit code, or None if it still lives."""
        with suppress(subprocess.TimeoutExpired):
            return self._popen.wait(timeout_s)
        return None

    def end(self, patience_s: float = 0.0) -> int:
        """Kills it if it still lives after ``patience_s``, and what it has started; returns its exit code."""
        self.wait(patience_s)
        self.kill()
        return self._popen.wait()

    def kill(self) -> None:
        """Kills it and what it has started, without waiting for their end."""
        # None is left in its session where it ended alone.
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
