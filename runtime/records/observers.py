"""Watching a run: the log of its events, observers of its rounds, displays."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from runtime.records.files import append

if TYPE_CHECKING:
    from runtime.experiment.schema import Experiment
    from runtime.records.rows import RoundRow


class EventSink(Protocol):
    """Records events other than finished rounds."""

    def append(self, kind: str, **fields: Any) -> None:
        """Records one event; ``fields`` are JSON values."""


def _utc_now() -> str:
    """Returns the time in UTC, ISO 8601 to the millisecond."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")


class EventLog:
    """Writes `events.jsonl`, and passes each event to listeners."""

    def __init__(self, path: Path, now: Callable[[], str] = _utc_now) -> None:
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


class Observer:
    """Observes a run. Gets each finished round once it is on disk. A subclass overrides the methods that it needs."""

    def on_round_end(self, row: RoundRow) -> None:
        """Called when a finished round and its checkpoint are on disk."""

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """Called when the run has ended for any reason and its summary is on disk."""


class Display(Observer):
    """Shows a run while it runs; this one shows nothing."""

    def started(self, experiment: Experiment, facts: Mapping[str, str]) -> None:
        """Shows the run that is about to start."""

    def event(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Shows an event other than a finished round."""

    def close(self) -> None:
        """Ends the display. May be called before `started`."""
