"""Handlers for processes of the local fleet: each event names what they do, and answers say how it was served."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lambda_actor.waiting import waits

HANG_S = 9000
BURNT_CPU_S = 0.2


def handler(event: Mapping[str, Any], context: object) -> dict[str, Any]:
    """Serves one event."""
    return handler_together([event], context)[0]


def handler_together(events: Sequence[Mapping[str, Any]], context: object) -> list[dict[str, Any]]:
    """Serves several, and leaves a file for each."""
    for event in events:
        (Path(event["folder"]) / f"{event['do']}-{os.getpid()}-{event['name']}").touch()
        _ACTS[event["do"]]()
    return [{"process": os.getpid(), "together": [one["name"] for one in events]} for _ in events]


def _wait(seconds: float) -> None:
    # By the clock of the environment's waits.
    waits._seconds = seconds


def _burn() -> None:
    end_s = time.process_time() + BURNT_CPU_S
    while time.process_time() < end_s:
        pass


def _print() -> None:
    print(os.environ.get("FLEET_SECRET"), flush=True)


def _hang_with_a_program() -> None:
    subprocess.Popen(["sleep", str(HANG_S)])
    time.sleep(HANG_S)


_ACTS: dict[str, Callable[[], object]] = {
    "nothing": lambda: None,
    "wait": lambda: _wait(100.0),
    "wait long": lambda: _wait(200.0),
    "burn": _burn,
    "print": _print,
    "nap": lambda: time.sleep(0.3),
    "die": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "hang": lambda: time.sleep(HANG_S),
    # Holds the interpreter's lock, so no other thread of this process runs.
    "hang in C": lambda: ctypes.PyDLL(None).sleep(HANG_S),
    "hang with a program": _hang_with_a_program,
}
