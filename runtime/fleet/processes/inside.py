"""First steps of a process started by `runtime.fleet.processes.child`."""

from __future__ import annotations

import ctypes
import os
import queue
import signal
import sys
import threading
from multiprocessing.connection import Connection

_PR_SET_PDEATHSIG = 1


def connect(control_fd: int) -> tuple[Connection, queue.SimpleQueue[bytes]]:
    """Returns the connection for answers, and the incoming messages.

    When the other end hangs up, this process and its children end, even in the middle of a step.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        # Also works inside a C call that blocks other threads.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
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
        # Also if what came is no message: nobody would answer.
        os.killpg(0, signal.SIGKILL)
