"""A function that does what its event says."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any


def handler(event: dict[str, Any], context: Any) -> Any:
    """Does what ``event["do"]`` names; returns the values that the test checks."""
    return _ACTIONS[event["do"]](event, context)


def _tell(event: dict[str, Any], context: Any) -> dict[str, Any]:
    return {
        "process_id": os.getpid(),
        "variables": dict(os.environ),
        "arn": context.invoked_function_arn,
        "remaining_ms": context.get_remaining_time_in_millis(),
    }


def _print(event: dict[str, Any], context: Any) -> str:
    print(event["text"])
    return "x" * event.get("answer_bytes", 0)


def _hold_the_lock(event: dict[str, Any], context: Any) -> None:
    Path(event["path"]).touch()
    ctypes.PyDLL(None).sleep(event["seconds"])


def _write(event: dict[str, Any], context: Any) -> str:
    """Returns the error; empty if there was none."""
    try:
        Path(event["path"]).write_bytes(bytes(event["bytes"]))
    except OSError as error:
        return f"{event['path']}: {error.strerror}"
    return ""


def _lock(event: dict[str, Any], context: Any) -> str:
    try:
        multiprocessing.Lock()
    except OSError as error:
        return type(error).__name__
    return ""


_ACTIONS = {
    "echo": lambda event, context: event,
    "length": lambda event, context: {"length": len(event["text"])},
    "tell": _tell,
    "print": _print,
    "sleep": lambda event, context: time.sleep(event["seconds"]),
    "hold the lock": _hold_the_lock,
    "write": _write,
    "lock": _lock,
    "take memory": lambda event, context: len(bytearray(os.urandom(16) * (event["mib"] * 2**16))),
}
