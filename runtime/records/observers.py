"""Interfaces for watching a run: a log of its events, observers of its rounds, displays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from runtime.experiment.schema import Experiment
    from runtime.records.rows import RoundRow


class EventSink(Protocol):
    """Records events other than finished rounds."""

    def append(self, kind: str, **fields: Any) -> None:
        """Records one event; ``fields`` are JSON values."""


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
