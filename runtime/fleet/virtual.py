"""A fleet in virtual time: an invocation runs here when it starts, and ends after a given virtual duration.

So any number of functions can run on one core, in an order set by durations instead of clocks.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from runtime.errors import one_line
from runtime.ports.fleet import Invocation, Outcome

_US = 1_000_000


class VirtualFleet:
    """Runs a handler in this process, one call at a time; see `runtime.ports.fleet.Fleet`.

    Time is in whole microseconds, so sums are exact, and the order of ends does not depend on when a run begins.
    """

    def __init__(
        self,
        handler: Callable[[Mapping[str, Any], object], Mapping[str, Any]],
        duration_s: Callable[[Mapping[str, Any]], float],
        *,
        concurrency: int,
        timeout_s: float = math.inf,
    ) -> None:
        """Starts at 0, with no invocations.

        Args:
            handler: Function to invoke.
            duration_s: Returns an event's duration in seconds.
            concurrency: Invocations at once; others are queued.
            timeout_s: Longer invocations are not run, and end as timed out.
        """
        self._handler, self._duration_s, self.concurrency = handler, duration_s, concurrency
        self._timeout_s, self._now_us = timeout_s, 0
        self._queue: deque[Invocation] = deque()
        self._running: list[tuple[int, int, Outcome]] = []
        self._started = 0

    @property
    def now_s(self) -> float:
        """Returns virtual seconds since the fleet was made."""
        return self._now_us / _US

    def start(self, invocations: Sequence[Invocation]) -> None:
        """Starts these, or queues them."""
        self._queue.extend(invocations)
        self._fill()

    def wait(self, timeout_s: float) -> list[Outcome]:
        """Returns the next end at once, and moves virtual time there, whatever ``timeout_s``."""
        if not self._running:
            return []
        self._now_us, _, outcome = heapq.heappop(self._running)
        self._fill()
        return [outcome]

    def abandon(self, invocation_ids: Sequence[str]) -> None:
        """Abandons these now."""
        given_up = set(invocation_ids)
        for one in [one for one in self._queue if one.invocation_id in given_up]:
            self._queue.remove(one)
            self._push(0, Outcome(one.invocation_id, "abandoned", was_started=False))
        for entry in [entry for entry in self._running if entry[2].invocation_id in given_up]:
            end_us, _, outcome = entry
            self._running.remove(entry)
            billed_s = max(0.0, outcome.billed_s - (end_us - self._now_us) / _US)
            self._push(0, Outcome(outcome.invocation_id, "abandoned", billed_s=billed_s))
        heapq.heapify(self._running)

    def close(self) -> None:
        """Forgets everything."""
        self._queue.clear()
        self._running.clear()

    def _fill(self) -> None:
        while self._queue and len(self._running) < self.concurrency:
            one = self._queue.popleft()
            limit_s, duration_s = min(self._timeout_s, one.timeout_s), self._duration_s(one.event)
            billed_s = min(duration_s, limit_s)
            try:
                if duration_s > limit_s:
                    outcome = Outcome(
                        one.invocation_id,
                        "timeout",
                        error=f"timed out after {limit_s:g} s",
                        billed_s=billed_s,
                    )
                else:
                    outcome = Outcome(
                        one.invocation_id, "ok", self._handler(one.event, None), billed_s=billed_s
                    )
            except Exception as error:
                outcome = Outcome(
                    one.invocation_id, "error", error=one_line(repr(error)), billed_s=billed_s
                )
            self._push(round(billed_s * _US), outcome)

    def _push(self, lasts_us: int, outcome: Outcome) -> None:
        self._started += 1
        heapq.heappush(self._running, (self._now_us + lasts_us, self._started, outcome))
