"""The event log: everything in a run except finished rounds."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from runtime.records.files import append


def utc_now() -> str:
    """Returns the time in UTC, ISO 8601 to the millisecond."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


class EventLog:
    """Writes `events.jsonl`, and passes each event to listeners."""

    def __init__(self, path: Path, now: Callable[[], str] = utc_now) -> None:
        """Appends to the events in ``path``, if any.

        Args:
            path: The file.
            now: Returns the time, ISO 8601.
        """
        self._path = path
        self._now = now
        self._listeners: list[Callable[[str, Mapping[str, Any]], None]] = []

    def listen(self, listener: Callable[[str, Mapping[str, Any]], None]) -> None:
        """Calls ``listener`` with the kind and the fields of every later event, once written."""
        self._listeners.append(listener)

    def append(self, kind: str, **fields: Any) -> None:
        """Writes one event.

        Args:
            kind: What happened.
            **fields: JSON values with details.

        Raises:
            ValueError: A number is not finite.
            OSError: The file cannot be written.
        """
        event = {"time": self._now(), "event": kind, **fields}
        append(self._path, json.dumps(event, allow_nan=False).encode() + b"\n", is_synced=False)
        for listener in self._listeners:
            listener(kind, fields)
