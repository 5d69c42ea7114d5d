"""One process of the local fleet: runs the very handler that Lambda runs, an actor's or a learner's, event by event.

Speaks length-prefixed JSON over an inherited socket. Ends when the fleet closes that socket, and at once, even in the
middle of a rollout, when the process that holds the other end of the lifeline pipe dies.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

from lambda_actor.errors import told
from runtime.errors import ERROR_CHARACTERS_MAX, one_line

Handler = Callable[[Mapping[str, Any], object], dict[str, Any]]

_PR_SET_PDEATHSIG = 1


def main(control_fd: int, lifeline_fd: int, name: str) -> None:
    """Serves events with a handler, ``module:function``, until the fleet hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        # Also inside a C call that never lets another thread run.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for fd in (control_fd, lifeline_fd):
        # Else a program that the environment starts would keep them open after this process' end.
        os.set_inheritable(fd, False)
    threading.Thread(target=_die_with_parent, args=(lifeline_fd,), daemon=True).start()
    connection = Connection(control_fd)
    try:
        module, _, function = name.partition(":")
        handler: Handler = getattr(import_module(module), function)
    except BaseException as error:
        _send(connection, {"failed": _described(error)})
        return
    _send(connection, {"ready": True, "init_cpu_s": time.process_time()})
    process_id = os.getpid()
    while True:
        try:
            event = json.loads(connection.recv_bytes())
        except (EOFError, OSError):
            return
        reply = serve(handler, event)
        if os.getpid() != process_id:
            # The environment forked, and this is the copy.
            os._exit(0)
        _send(connection, reply)


def serve(handler: Handler, event: dict[str, Any]) -> dict[str, Any]:
    """Calls a handler; returns its response or what it raised, and the CPU seconds that it took."""
    started_cpu_s = time.process_time()
    try:
        response, error = handler(event, None), ""
    except BaseException as raised:
        traceback.print_exc()
        response, error = None, _described(raised)
    return {"response": response, "error": error, "cpu_s": time.process_time() - started_cpu_s}


def _described(error: BaseException) -> str:
    return one_line(told(error), ERROR_CHARACTERS_MAX)


def _send(connection: Connection, message: dict[str, Any]) -> None:
    connection.send_bytes(json.dumps(message).encode())


def _die_with_parent(lifeline_fd: int) -> None:
    os.read(lifeline_fd, 1)
    if os.getpgrp() == os.getpid():
        # With what the environment has started.
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
