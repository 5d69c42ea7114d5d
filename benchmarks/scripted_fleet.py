"""A fleet with a clock of its own, so that a seed repeats its asynchronous run; for `same_learning.py`."""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence

from lambda_actor.handler import handler
from nitro_rl import FleetSettings, FleetSetup, Invocation, Outcome

UPDATE_S = 0.4
"""Scripted seconds of an update. Actors take one second on average."""


class ScriptedSettings(FleetSettings):
    """Settings of the scripted fleet, which has no keys."""

    def make(self, setup: FleetSetup) -> ScriptedFleet:
        """Makes the fleet."""
        return ScriptedFleet(setup.concurrency)


class ScriptedFleet:
    """Runs actors in this process, in the order in which they end by its clock; one in ten crashes.

    The clock moves when the learner waits, and by `UPDATE_S` for each new policy version.
    """

    def __init__(self, concurrency: int) -> None:
        self.concurrency = concurrency
        self._now_s, self._version = 0.0, 0
        self._running: list[tuple[float, str, bool, Invocation]] = []
        self._ended: list[Outcome] = []

    def start(self, invocations: Sequence[Invocation]) -> None:
        """Starts these; draws how long each takes and whether it crashes."""
        for one in invocations:
            version = one.event.get("policy_version", self._version)
            self._now_s += UPDATE_S * (version - self._version)
            self._version = version
            draws = random.Random(f"{one.event['round_index']} {one.event['slot']}")
            end_s = self._now_s + draws.uniform(0.1, 1.9)
            heapq.heappush(self._running, (end_s, one.invocation_id, draws.random() < 0.1, one))

    def wait(self, timeout_s: float) -> list[Outcome]:
        """Returns what has ended; if that is nothing and it may wait, moves its clock to the next end."""
        if timeout_s > 0.0 and self._running and not self._ended:
            self._now_s = max(self._now_s, self._running[0][0])
        while self._running and self._running[0][0] <= self._now_s:
            _, name, is_crash, one = heapq.heappop(self._running)
            if is_crash:
                self._ended.append(Outcome(name, "crashed", error="as scripted"))
            else:
                self._ended.append(Outcome(name, "ok", handler(one.event, None), billed_s=1.0))
        ended, self._ended = self._ended, []
        return ended

    def abandon(self, invocation_ids: Sequence[str]) -> None:
        """Ends these now."""
        for one in [one for one in self._running if one[1] in invocation_ids]:
            self._running.remove(one)
            self._ended.append(Outcome(one[1], "abandoned", error="given up"))
        heapq.heapify(self._running)

    def close(self) -> None:
        """Forgets everything."""
        self._running.clear()
