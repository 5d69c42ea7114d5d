"""The rehearsal's clock, which all its processes share: an hour of a deployment passes in a minute or so.

Since it was last set, it runs ``rate`` times as fast as the wall clock. It never runs back. Only the rehearsal sets it.
"""

from __future__ import annotations

import os
from pathlib import Path
from time import time

PATH_VARIABLE = "REHEARSAL_CLOCK"


class Clock:
    """Reads the clock from a file: wall time, clock time at that moment, and rate."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of_this_process(cls) -> Clock:
        """Returns the clock that the environment names."""
        return cls(Path(os.environ[PATH_VARIABLE]))

    def now(self) -> float:
        """Returns seconds since 1970."""
        wall_s, clock_s, rate = self._read()
        return clock_s + (time() - wall_s) * rate

    def start(self) -> None:
        """Starts at the wall clock's time and rate."""
        self._write(time(), time(), 1.0)

    def set_rate(self, rate: float) -> None:
        wall_s, clock_s, before = self._read()
        if rate != before:
            now_s = time()
            self._write(now_s, clock_s + (now_s - wall_s) * before, rate)

    def advance(self, seconds: float) -> None:
        """Skips time."""
        wall_s, clock_s, rate = self._read()
        self._write(wall_s, clock_s + seconds, rate)

    def _read(self) -> tuple[float, float, float]:
        wall_s, clock_s, rate = map(float, self.path.read_text().split())
        return wall_s, clock_s, rate

    def _write(self, *numbers: float) -> None:
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(" ".join(map(repr, numbers)))
        temporary.replace(self.path)
