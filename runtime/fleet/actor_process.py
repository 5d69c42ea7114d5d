"""One process of the local fleet: runs the very handler that Lambda runs, an actor's or a learner's, event by event.

Speaks length-prefixed JSON over an inherited socket, and ends with the fleet; see `runtime.processes.inside`.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

from lambda_actor.errors import told
from runtime.errors import ERROR_CHARACTERS_MAX, one_line
from runtime.processes.inside import connect
from runtime.settings.kinds import load

Handler = Callable[[Mapping[str, Any], object], dict[str, Any]]


def main(control_fd: int, name: str) -> None:
    """Serves events with a handler, ``module:function``, until the fleet hangs up."""
    connection, events = connect(control_fd)
    try:
        handler: Handler = load(name)
    except BaseException as error:
        _send(connection, {"failed": _described(error)})
        return
    _send(connection, {"ready": True, "init_cpu_s": time.process_time()})
    process_id = os.getpid()
    while True:
        reply = serve(handler, json.loads(events.get()))
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


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
