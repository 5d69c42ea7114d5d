"""How long this process has waited for something other than a CPU while environments played.

An environment waits if it sleeps, asks a server, or has a child process compute. CPU seconds leave that out, and AWS
Lambda bills it. Wall seconds count other people's work on a busy machine. So a wait is what the clock shows, less CPU
seconds, and less the seconds in the queue for a CPU, which Linux tells. It does not tell them of a child process: one
that finds the machine busy is waited for longer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

QUEUE = Path("/proc/thread-self/schedstat")
_NEGLIGIBLE = 0.05
"""A wait of a smaller share of the CPU seconds counts as none: page faults, say."""
_SUSPICIOUS, _SUSPICIOUS_S = 10.0, 0.1
"""Where the queue is not known, nothing is counted, and so many times the CPU seconds may be a wait."""


def queued_s() -> float | None:
    """Returns the seconds that this thread has been in the queue for a CPU; None if the kernel does not tell."""
    try:
        ran, queued, *_ = map(int, QUEUE.read_text().split())
    except (OSError, ValueError):
        return None
    return queued / 1e9 if ran else None


class Waits:
    """Adds up waits; None if there may be some, and nobody can tell."""

    def __init__(self) -> None:
        self._seconds: float | None = 0.0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """A block whose waits count."""
        # A thread that loses its CPU between two readings has rather waited too little.
        queued, cpu_s, wall_s = queued_s(), time.process_time(), time.perf_counter()
        try:
            yield
        finally:
            wall_s, cpu_s, after = time.perf_counter() - wall_s, time.process_time() - cpu_s, queued_s()
            self._add(wall_s, cpu_s, None if queued is None or after is None else after - queued)

    def take(self) -> float | None:
        """Returns the seconds since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def _add(self, wall_s: float, cpu_s: float, queue_s: float | None) -> None:
        found = wall_s - cpu_s - (queue_s or 0.0)
        if queue_s is None:
            if wall_s > _SUSPICIOUS * cpu_s + _SUSPICIOUS_S:
                self._seconds = None
        elif found > _NEGLIGIBLE * cpu_s and self._seconds is not None:
            self._seconds += found


waits = Waits()
"""Those of the environments that `lambda_actor.handler` plays."""
