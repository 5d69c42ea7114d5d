"""A process in which an environment's code runs: whatever that does there, the process that trains goes on."""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import IO

from runtime.fleet.local import process_variables

_PR_SET_PDEATHSIG = 1


class EnvironmentProcess:
    """Runs a module, whose first argument is its end of a socket.

    Attributes:
        connection: The other end.
    """

    def __init__(self, module: str, *arguments: str, output: int | IO[bytes] = subprocess.DEVNULL) -> None:
        """Starts it. It ends with the thread that calls this.

        Args:
            module: Of this package; it calls `connect`.
            arguments: After the first one.
            output: Takes what it prints. A file, not a pipe: what the environment starts would keep a pipe open.

        Raises:
            OSError: It cannot be started.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, str(theirs.fileno()), *arguments], pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=process_variables(), start_new_session=True)
        self.connection = Connection(ours.detach())

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def end(self, patience_s: float = 0.0) -> str:
        """Kills it after ``patience_s``, with what it has started; returns how it ended, for people."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(patience_s)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        code = self._process.wait()
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def connect(control_fd: int) -> tuple[Connection, queue.SimpleQueue[bytes]]:
    """Called first in such a process: returns the connection to answer on, and the messages that have come.

    When the other end hangs up, this process ends, with what it has started, even in the middle of a step.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        # Also inside a C call that never lets another thread run.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # Else a program that the environment starts would keep it open after this process' end.
    os.set_inheritable(control_fd, False)
    connection = Connection(control_fd)
    messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, messages), daemon=True).start()
    return connection, messages


def _listen(connection: Connection, messages: queue.SimpleQueue[bytes]) -> None:
    with suppress(EOFError, OSError):
        while True:
            messages.put(connection.recv_bytes())
    os.killpg(0, signal.SIGKILL)
