"""The other processes of a learner: started, told what to do, and ended."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import IO

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch exports it by its documentation alone

from runtime.errors import RunError
from runtime.learner.parallel.group import CHECK_S, TorchGroup, device_of, join_group, leave_group
from runtime.learner.parallel.tasks import END, Task, write_task
from runtime.processes.child import DEATH_PATIENCE_S, Child, how_it_ended

START_TIMEOUT_S = 120.0
_MODULE = "runtime.learner.parallel"
_HOST = "127.0.0.1"
_END_PATIENCE_S = 5.0
_ERROR_CHARACTERS_MAX = 500
_PIPE_BYTES = 2**20
_ENVIRONMENT = {
    # Nothing listens where another machine could reach it.
    "GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0",
    "NCCL_SOCKET_IFNAME": "lo",
    # NCCL's watchdog ends the process; here a process that ended is told from one that is slow, and the run is saved.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
}


@dataclass(frozen=True)
class _Other:
    """One of the other processes, what it is told through, and where its errors go."""

    child: Child
    tasks: IO[bytes]
    log: IO[bytes]


class LearnerProcesses:
    """The group's other processes, 1 to ``size`` − 1; they live and die with this one."""

    def __init__(self, size: int, *, device: str, timeout_s: float) -> None:
        """Starts them; returns when all are connected. Call it from a thread that outlives them.

        Args:
            size: Processes in all, this one included.
            device: ``cpu``, or ``cuda``: then each has a GPU of its own.
            timeout_s: Seconds that the slowest may stay behind the fastest.

        Raises:
            RunError: They do not start.
        """
        self.device = device_of(device, 0)
        self._size, self._is_in_step, self._has_joined = size, True, False
        self._others: list[_Other] = []
        self.group = TorchGroup(0, size, timeout_s=timeout_s, check=self._check, explain=self._explained)
        try:
            for name, value in _ENVIRONMENT.items():
                os.environ.setdefault(name, value)
            # Bound here, so that it is reached from this machine only.
            listener = socket.create_server((_HOST, 0))
            port = listener.getsockname()[1]
            self._store: TCPStore | None = TCPStore(
                _HOST, port, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=START_TIMEOUT_S),
                master_listen_fd=listener.detach())
            for rank in range(1, size):
                self._start(rank, port, device, timeout_s)
            self._await_all_started()
            join_group(0, size, device, self._store, timeout_s)
            self._has_joined = True
        except BaseException as error:
            self._is_in_step = False
            self.close()
            if isinstance(error, OSError | RuntimeError):
                raise RunError(f"the learner's processes do not start: {error}") from error
            raise

    def tell(self, task: Task) -> None:
        """Has all others do a task for which nobody needs anybody.

        Raises:
            RunError: One is gone, or an earlier task was not finished together.
        """
        with self.together(task):
            pass

    @contextmanager
    def together(self, task: Task) -> Iterator[None]:
        """Has all others do a task while the block does it here; a block that raises is the last one.

        Raises:
            RunError: One is gone, or an earlier task was not finished together.
        """
        if not self._is_in_step:
            raise RunError("the learner's processes stopped in the middle of an update")
        self._is_in_step = False
        try:
            for other in self._others:
                write_task(task, other.tasks)
        except OSError as error:
            raise self._explained(str(error)) from error
        yield
        self._is_in_step = True

    def process_ids(self) -> list[int]:
        """Returns the others' process ids."""
        return [other.child.process_id for other in self._others]

    def close(self) -> None:
        """Ends them, whatever they do; idempotent."""
        if self._is_in_step:
            with suppress(RunError):
                self.tell(END)
        if not self._is_in_step:
            for other in self._others:
                other.child.kill()
        try:
            if self._has_joined:
                leave_group(is_in_step=self._is_in_step)
        finally:
            self._is_in_step = self._has_joined = False
            self._end_all()

    def _end_all(self) -> None:
        for other in self._others:
            with suppress(OSError):
                other.tasks.close()
            other.child.end(_END_PATIENCE_S)
            other.child.connection.close()
            other.log.close()
        self._others, self._store = [], None

    def _start(self, rank: int, port: int, device: str, timeout_s: float) -> None:
        log = tempfile.TemporaryFile()  # noqa: SIM115
        child = Child(_MODULE, device, str(timeout_s), stdin=subprocess.PIPE, output=log, variables={
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(self._size), "MASTER_ADDR": _HOST,
            "MASTER_PORT": str(port)})
        assert child.stdin is not None, "it is a pipe"
        self._others.append(_Other(child, child.stdin, log))
        with suppress(OSError, AttributeError):
            # Larger where the system has and allows that: batches of a whole round go through it.
            fcntl.fcntl(child.stdin, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def _await_all_started(self) -> None:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        for other in self._others:
            with suppress(EOFError):
                if other.child.connection.poll(max(0.0, deadline_s - time.monotonic())):
                    other.child.connection.recv_bytes()
                    continue
            raise self._explained(f"not started after {START_TIMEOUT_S:g} s")

    def _check(self) -> None:
        if any(other.child.exit_code is not None for other in self._others):
            raise self._explained("")

    def _explained(self, otherwise: str) -> RunError:
        """Which of them ended, and why; ``otherwise`` if all live, also a moment later."""
        deadline_s = time.monotonic() + DEATH_PATIENCE_S
        while all(other.child.exit_code is None for other in self._others) and time.monotonic() < deadline_s:
            time.sleep(CHECK_S / 4)
        ended = [f"process {number} of {self._size} {_ending(code, other.log)}"
                 for number, other in enumerate(self._others, start=2) if (code := other.child.exit_code) is not None]
        return RunError("the learner lost "
                        + ("; ".join(ended) if ended else f"the contact between its processes: {otherwise}"))


def _ending(code: int, log: IO[bytes]) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").split("\n")
    text = next((line.strip() for line in reversed(lines) if line.strip()), "")[:_ERROR_CHARACTERS_MAX]
    how = f"{'killed by' if code < 0 else 'ended with'} {how_it_ended(code)}"
    return f"({how}{f': {text}' if text else ''})"
