"""Child processes: none outlives this one, however it ends, and none can bring it down.

`Child` starts one of our modules, which first calls `connect`. `GuardedProgram` starts other programs.
"""

from __future__ import annotations

import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

from lambda_actor.guarding import CLOSE_S, close_environments, end_with_parent, guard

DEATH_PATIENCE_S = 1.0
"""Seconds in which a process that has closed its connection should end."""
_ROOT = Path(__file__).resolve().parents[2]
_STOP_TIMEOUT_S = 5.0
_HUNG_UP = signal.SIGUSR1
# Ends the program when standard input ends. Only this process holds the other end, so it ends with this process,
# however that dies. The shell itself ends with the program.
_GUARDIAN = """
exec 3<&0
cd "$GUARDED_DIRECTORY"
"$@" 3<&- & program=$!
echo $program >pid
{
cat <&3 >/dev/null; touch ending
[ -e ended ] || eval "$GUARDED_FAREWELL" || kill -9 $program
rm -rf "$GUARDED_DIRECTORY"
} 2>/dev/null &
wait $program
[ -e ending ] || [ ! -d "$GUARDED_DIRECTORY" ] || touch ended
"""


class Child:
    """Runs a module, whose first argument is its end of a socket; the module calls `connect`.

    It has its own session: only this process reacts to Ctrl-C at the terminal, and its children can be ended with it.

    Attributes:
        connection: The other end.
        process_id: Id of the process and its group.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        variables: Mapping[str, str] | None = None,
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
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, **(variables or {}), "PYTHONPATH": path},
            )
            self.connection = Connection(ours.detach())
        self.process_id = self._popen.pid

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
        """Ends it after ``patience_s``, with its children, and returns its exit code."""
        self.wait(patience_s)
        self.kill()
        self.wait(_STOP_TIMEOUT_S)
        # If its guard has ended everything, its session is empty.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process_id, signal.SIGKILL)
        self._popen.kill()
        return self._popen.wait()

    def close(self) -> int:
        """Ends it after it has closed its environments, and returns its exit code."""
        self.hang_up()
        return self.end(CLOSE_S + DEATH_PATIENCE_S)

    def hang_up(self) -> None:
        """Makes it close its environments and end. Its last messages may still come."""
        with suppress(OSError), socket.socket(fileno=os.dup(self.connection.fileno())) as ours:
            ours.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        """Begins to end it and its children."""
        self._popen.terminate()


def how_it_ended(exit_code: int) -> str:
    """Returns the name of the signal that ended a process, or its exit code, for people."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    with suppress(ValueError):
        return signal.Signals(-exit_code).name
    return f"signal {-exit_code}"


def connect(
    control_fd: int, *, is_guarded: bool = False
) -> tuple[Connection, queue.SimpleQueue[bytes]]:
    """Begins a process that `Child` started: returns the connection for answers, and the incoming messages.

    When the other end hangs up, this process closes its environments, even in the middle of a step. Then it ends with
    its children; also if that takes longer than `CLOSE_S`.

    Args:
        control_fd: The socket's descriptor.
        is_guarded: Whether it runs user code; see `lambda_actor.guarding`.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(_HUNG_UP, _leave)
    if is_guarded:
        guard()
        os.setpgid(0, 0)
    end_with_parent()
    # Otherwise a child program would keep it open after this process ends.
    os.set_inheritable(control_fd, False)
    connection = Connection(control_fd)
    messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(connection, messages), daemon=True).start()
    return connection, messages


def _listen(connection: Connection, messages: queue.SimpleQueue[bytes]) -> None:
    try:
        while True:
            messages.put(connection.recv_bytes())
    finally:
        # Also if what came is no message: nobody would answer. Some simulators can be closed only where they were made.
        signal.pthread_kill(threading.main_thread().ident or 0, _HUNG_UP)
        time.sleep(CLOSE_S)
        os.killpg(0, signal.SIGKILL)


def _leave(number: int, frame: object) -> None:
    """Closes the environments and ends this process."""
    try:
        close_environments()
    finally:
        os.killpg(0, signal.SIGKILL)


class GuardedProgram:
    """A program under a guardian; the program and its directory are gone after `end`, or when this process ends."""

    def __init__(
        self, command: Sequence[str], directory: Path, log: IO[bytes], *, farewell: str = "false"
    ) -> None:
        """Starts it.

        Args:
            command: The program and its arguments.
            directory: Its working directory, which the guardian removes.
            log: File for its output.
            farewell: Shell command that ends the program cleanly, run in its directory; if it fails, the program is
                killed.

        Raises:
            OSError: The guardian cannot be started.
        """
        self._directory = directory
        self._guardian = subprocess.Popen(
            ["/bin/sh", "-c", _GUARDIAN, "sh", *command],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "GUARDED_DIRECTORY": str(directory), "GUARDED_FAREWELL": farewell},
        )

    @property
    def is_alive(self) -> bool:
        return self._guardian.poll() is None

    def end(self) -> None:
        """Ends the program and removes its directory; idempotent."""
        if self._guardian.stdin and not self._guardian.stdin.closed:
            self._guardian.stdin.close()
        try:
            self._guardian.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            # Its other half was killed, so do its work here.
            with suppress(OSError, ValueError):
                os.kill(int((self._directory / "pid").read_text()), signal.SIGKILL)
            self._guardian.kill()
            self._guardian.wait()
        # Twice, because the guardian's other half may write its file while the directory is removed.
        for _ in range(2):
            shutil.rmtree(self._directory, ignore_errors=True)


def socket_parent(*wanted: str, bytes_max: int = 60) -> str:
    """Returns the first of these directories, that for temporary files, and /tmp in which a socket's path is short."""
    for parent in (*wanted, tempfile.gettempdir()):
        if len(os.fsencode(parent)) <= bytes_max:
            return parent
    return "/tmp"
