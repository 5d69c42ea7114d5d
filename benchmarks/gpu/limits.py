"""Measures a part point by point, within a time limit, and continues where it was stopped."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from runtime.records.files import write_atomically

LIMIT_S = 720.0
"""Seconds that all parts may take together."""
OUT_OF_TIME = "out of time"
_MAY_DIFFER = ("command", "date")
Point = Mapping[str, Any]
"""A measurement: settings by name, in types that JSON can hold."""


class NotMeasuredError(Exception):
    """A point cannot be measured. The message says why."""


def name_of(point: Point) -> str:
    """Returns a point's name."""
    return ", ".join(f"{key} {value}" for key, value in point.items())


def read(path: Path) -> dict[str, Any]:
    """Returns the results so far; may be empty."""
    return json.loads(path.read_text()) if path.exists() else {}


def measure_part(
    path: Path,
    head: Mapping[str, Any],
    points: Sequence[Point],
    measure: Callable[[Point, float], Mapping[str, Any]],
    *,
    limit_s: float = LIMIT_S,
    clock: Callable[[], float] = time.monotonic,
    say: Callable[[str], None] = print,
) -> None:
    """Measures a part's missing points, and writes each result.

    A point starts only if there is time for the longest point so far. Nothing is written until a point is measured.

    Args:
        path: File of the results.
        head: Origin of the results. Results of another GPU, commit or version are replaced.
        measure: Measures a point within a number of seconds; may raise `NotMeasuredError`.
        limit_s: Seconds for all points.
    """
    part, found, end_s, last_s = path.stem, read(path), clock() + limit_s, 0.0
    if differing := [key for key in head if key not in _MAY_DIFFER and found.get(key) != head[key]]:
        if found:
            say(
                f"{part}: what was measured with another {' and another '.join(differing)} is replaced"
            )
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
            write_atomically(
                path, (json.dumps({**found, "not_measured": reasons}, indent=1) + "\n").encode()
            )
    if late := list(reasons.values()).count(OUT_OF_TIME):
        say(
            f"{part}: cut after {limit_s:g} s, without {late} of {len(points)} points; the same command continues"
        )
