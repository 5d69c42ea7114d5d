"""The events of functions, and their answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lambda_actor.errors import EventError

ACCEPTED, LATE = "accepted", "late"
"""What became of a trajectory: an answer's ``status``."""


def check_event(event: Mapping[str, Any], fields: Mapping[str, type]) -> None:
    """Checks that an event has these fields with these types. It may have others.

    Raises:
        EventError: A field is missing or of the wrong type.
    """
    for name, kind in fields.items():
        if name not in event:
            raise EventError(f"the event lacks {name!r}")
        if type(event[name]) is not kind:
            raise EventError(f"the event's {name!r} is {event[name]!r:.80}, not a {kind.__name__}")
