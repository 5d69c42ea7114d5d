"""What a process that `runtime.processes.child` has started does first."""

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
    """Returns the connection to answer on, and the messages that come.

    When the other end hangs up, this process ends, with what it has started, even in the middle of a step.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        # Also inside a C call that never lets another thread run.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # Else a program that this process starts would keep it open after this process' end.
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
