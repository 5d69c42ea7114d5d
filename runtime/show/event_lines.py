"""Describes events of a running run, one line each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

_QUIET = ("run_started", "run_ended", "actor_replaced")
"""Each replacement follows a displayed failure."""
_ALIKE_SHOWN = 3
_SENTENCES = {
    "round_fitted": "round {round_index} gets {granted} of the {wanted} actors wanted: {reason}",
    "limits_tightened": "round {round_index}: the ${free_usd:.4f} left cannot hold a round at its time limits, "
    "so each now reserves a quarter more than the last ones took",
    "reservation_forfeited": "the run was killed: ${usd:.5f} of ${reserved_usd:.5f} reserved are spent",
    "waits_unknown": "the environment waits for something, or this machine is very busy. This system does not tell "
    "which, so dollars leave waits out",
}
"""Events described in a sentence; all others by their fields."""
_NUMBER = re.compile(r"0x[0-9a-f]+|[0-9][0-9.]*")


class EventLines:
    """Formats events as lines; only the first few with the same error, which may occur in every actor."""

    def __init__(self) -> None:
        self._seen: Counter[tuple[str, str]] = Counter()

    def line(self, kind: str, fields: Mapping[str, Any]) -> str | None:
        """Returns None to show nothing."""
        # At a run's end, some actors are always in flight.
        is_usual_end = kind == "actors_abandoned" and fields["reason"] == "the run ends"
        if kind in _QUIET or is_usual_end:
            return None
        if kind in _SENTENCES:
            return f"! {_SENTENCES[kind].format(**fields)}"
        name = kind.replace("_", " ")
        if fields.get("error"):
            # Errors that differ only in a time or an address look the same to people.
            alike = kind, _NUMBER.sub("#", str(fields["error"]))
            self._seen[alike] += 1
            if self._seen[alike] > _ALIKE_SHOWN:
                return None
            if self._seen[alike] == _ALIKE_SHOWN:
                name += " (more like this are only in events.jsonl)"
        words = (
            f"{key} {f'{value:.4g}' if isinstance(value, float) else value}"
            for key, value in fields.items()
            if value is not None
        )
        return f"! {name}: {', '.join(words)}"
