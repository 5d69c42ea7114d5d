"""Measures how long this process waits for something other than a CPU while environments play.

An environment waits if it sleeps, asks a server, or lets a child process compute. AWS Lambda bills these seconds, but
CPU seconds leave them out, and wall seconds include other work on a busy machine. So a wait is wall seconds, minus CPU
seconds, minus the seconds in the queue for a CPU, which Linux reports. The queue of a child process is unknown: on a
busy machine, its time there counts as a wait.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

QUEUE = Path("/proc/thread-self/schedstat")
_NEGLIGIBLE = 0.05
"""A smaller share of the CPU seconds counts as no wait, such as page faults."""
_SUSPICIOUS = 10.0
_SUSPICIOUS_S = 0.1
"""Without a known queue, nothing is counted. Wall seconds above this multiple of the CPU seconds may be a wait."""


def queued_s() -> float | None:
    """Returns the seconds that this thread has been in the queue for a CPU; None if it is unknown."""
    try:
        ran, queued, *_ = map(int, QUEUE.read_text().split())
    except (OSError, ValueError):
        return None
    return queued / 1e9 if ran else None


class Waits:
    """Adds up waits; None if there may be some of unknown length."""

    def __init__(self) -> None:
        self._seconds: float | None = 0.0

    @contextmanager
    def counted(self) -> Iterator[None]:
        """A block whose waits count."""
        # If the thread loses its CPU between two readings, the wait comes out too short, never too long.
        queued = queued_s()
        cpu_s = time.process_time()
        wall_s = time.perf_counter()
        try:
            yield
        finally:
            wall_s = time.perf_counter() - wall_s
            cpu_s = time.process_time() - cpu_s
            after = queued_s()
            self._add(wall_s, cpu_s, None if queued is None or after is None else after - queued)

    def take(self) -> float | None:
        """Returns the seconds since the last call."""
        seconds = self._seconds
        self._seconds = 0.0
        return seconds

    def _add(self, wall_s: float, cpu_s: float, queue_s: float | None) -> None:
        waited_s = wall_s - cpu_s - (queue_s or 0.0)
        if queue_s is None:
            if wall_s > _SUSPICIOUS * cpu_s + _SUSPICIOUS_S:
                self._seconds = None
        elif waited_s > _NEGLIGIBLE * cpu_s and self._seconds is not None:
            self._seconds += waited_s


waits = Waits()
"""Waits of the environments that `lambda_actor.handler` plays."""
