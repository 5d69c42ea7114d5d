"""How a part is measured: point by point, within a time, and on from where it was stopped."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from runtime.records.files import write_atomically

LIMIT_S = 600.0
"""Seconds that a part may take."""
OUT_OF_TIME = "out of time"
_MAY_DIFFER = ("command", "date")
Point = Mapping[str, Any]
"""What is measured: settings by their name, which JSON can hold."""


class NotMeasuredError(Exception):
    """A point cannot be measured; the text says why."""


def name_of(point: Point) -> str:
    """Returns a point in words."""
    return ", ".join(f"{key} {value}" for key, value in point.items())


def read(path: Path) -> dict[str, Any]:
    """Returns what was found so far; empty if nothing was."""
    return json.loads(path.read_text()) if path.exists() else {}


def measure_part(
    path: Path, head: Mapping[str, Any], points: Sequence[Point], measure: Callable[[Point, float], Mapping[str, Any]],
    *, limit_s: float = LIMIT_S, clock: Callable[[], float] = time.monotonic, say: Callable[[str], None] = print,
) -> None:
    """Measures what is missing of a part, and writes it down point by point.

    A point is begun only if there is time for one that takes as long as any did. Nothing is written as long as
    nothing could be measured.

    Args:
        path: Where the results are.
        head: Where the results come from. What was measured with another GPU, commit or version is replaced.
        measure: Measures a point within so many seconds; may raise `NotMeasuredError`.
        limit_s: Seconds for all points.
    """
    part, found, end_s, last_s = path.stem, read(path), clock() + limit_s, 0.0
    if differing := [key for key in head if key not in _MAY_DIFFER and found.get(key) != head[key]]:
        if found:
            say(f"{part}: what was measured with another {' and another '.join(differing)} is replaced")
        found = {**head, "points": []}
    done = [row["point"] for row in found["points"]]
    waiting = [point for point in points if point not in done]
    reasons = {name_of(point): OUT_OF_TIME for point in waiting}
    for point in waiting:
        name, began_s = name_of(point), clock()
        if end_s - began_s <= last_s:
            break
        try:
            row = measure(point, end_s - began_s)
        except NotMeasuredError as error:
            reasons[name] = str(error)
            say(f"{part}: not measured: {name}: {error}")
        else:
            del reasons[name]
            found["points"].append({"point": point, **row})
            say(f"{part}: {name}: {json.dumps(row)[:200]}")
        last_s = max(last_s, clock() - began_s)
        if found["points"]:
            write_atomically(path, (json.dumps({**found, "not_measured": reasons}, indent=1) + "\n").encode())
    if late := list(reasons.values()).count(OUT_OF_TIME):
        say(f"{part}: cut after {limit_s:g} s, without {late} of {len(points)} points; the same command goes on")
