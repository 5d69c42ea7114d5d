"""Formats tables, dollars and times for the commands' output."""

from __future__ import annotations

import datetime
import textwrap
from collections.abc import Sequence

from runtime.show.terminal import COLUMNS


def table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Returns a table's lines: columns fit their contents, the last one wraps; none if there are only headings."""
    if len(rows) < 2:
        return []
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    indent = sum(widths) + 2 * len(widths)
    lines = []
    for row in rows:
        start = "".join(cell.ljust(width + 2) for cell, width in zip(row[:-1], widths, strict=True))
        room = max(COLUMNS - indent, 24)
        wrapped = textwrap.wrap(row[-1], room, break_on_hyphens=False, break_long_words=False) or [
            ""
        ]
        lines += [(start + wrapped[0]).rstrip(), *(" " * indent + rest for rest in wrapped[1:])]
    return lines


def usd_text(usd: float) -> str:
    """Returns dollars with four digits after the point below $100, otherwise two."""
    return f"${usd:,.4f}" if usd < 100 else f"${usd:,.2f}"


def duration_text(seconds: float) -> str:
    """Returns a duration in its two largest units, or in one if it is short."""
    minutes = int(seconds // 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return (
        f"{hours} h {minutes} min"
        if hours
        else f"{minutes} min"
        if minutes
        else f"{max(0, int(seconds))} s"
    )


def ago_text(seconds: float) -> str:
    """Returns how long ago something was."""
    return f"{duration_text(seconds)} ago"


def iso(at_s: float) -> str:
    """Returns a time, in seconds since 1970, in UTC as ISO 8601."""
    return datetime.datetime.fromtimestamp(at_s, datetime.UTC).isoformat(timespec="seconds")
