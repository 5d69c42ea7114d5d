"""A process of the local fleet, which runs the same handler as Lambda, an actor's or a learner's.

It may serve several events at once. It speaks length-prefixed JSON over an inherited socket, and ends with the fleet;
see `runtime.fleet.processes`.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

from lambda_actor.errors import describe_error
from lambda_actor.waiting import waits
from runtime import machine
from runtime.errors import ERROR_CHARACTERS_MAX, one_line
from runtime.experiment.kinds import load
from runtime.fleet.processes import connect

Handler = Callable[[Mapping[str, Any], object], dict[str, Any]]
_Several = Callable[[Sequence[Mapping[str, Any]], object], Sequence[dict[str, Any] | BaseException]]


def main(control_fd: int, name: str, is_together: bool) -> None:
    """Serves events with a handler, ``module:function``, until the fleet hangs up.

    Args:
        is_together: Whether the handler takes several events; otherwise each message has one.
    """
    # Its own process has used none yet.
    start_cpu_s = time.process_time()
    connection, events = connect(control_fd, is_guarded=True)
    try:
        handler = load(name)
    except BaseException as error:
        _send(connection, {"failed": _described(error)})
        return
    _send(connection, {"ready": True, "init_cpu_s": start_cpu_s + time.process_time()})
    process_id = os.getpid()
    while True:
        asked = json.loads(events.get())
        replies = _serve_together(handler, asked) if is_together else [serve(handler, asked[0])]
        if os.getpid() != process_id:
            # The environment forked, and this is the child.
            os._exit(0)
        for reply in replies:
            _send(connection, reply)


def serve(handler: Handler, event: dict[str, Any]) -> dict[str, Any]:
    """Calls a handler, and returns its response or exception, the CPU seconds used, and the waits."""
    return _serve_together(lambda events, context: [handler(events[0], context)], [event])[0]


def _serve_together(handler: _Several, events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Calls a handler with several events, which share the seconds evenly."""
    started_cpu_s, _ = time.process_time(), waits.take()
    try:
        answers = handler(events, None)
    except BaseException as raised:
        answers = [raised] * len(events)
    cpu_s = (time.process_time() - started_cpu_s) / len(events)
    waited_s = None if (found := waits.take()) is None else found / len(events)
    measured = {"cpu_s": cpu_s, "waited_s": waited_s, "memory_bytes": machine.own_memory_bytes()}
    return [_reply(answer) | measured for answer in answers]


def _reply(answer: dict[str, Any] | BaseException) -> dict[str, Any]:
    if isinstance(answer, BaseException):
        traceback.print_exception(answer)
        error_type = type(answer).__name__
        return {"response": None, "error": _described(answer), "error_type": error_type}
    return {"response": answer, "error": "", "error_type": ""}


def _described(error: BaseException) -> str:
    return one_line(describe_error(error), ERROR_CHARACTERS_MAX)


def _send(connection: Connection, message: dict[str, Any]) -> None:
    connection.send_bytes(json.dumps(message).encode())


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3] == "together")
