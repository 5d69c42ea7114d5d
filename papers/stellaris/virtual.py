"""Stellaris' learner functions in virtual time: they run here one at a time, in an order set by recorded durations.

So any number of functions can run on one core, and equal seeds give equal runs. A file of durations has

    {"about": {…}, "start_s": [1.9, …], "gradient_s": {"1024": [0.04, …], …}}

in CPU seconds of one core: of start-ups until a first gradient can begin, and of gradients, by the samples of their
minibatch. `papers.stellaris.record` writes it. ``about`` is for people.
"""

from __future__ import annotations

import heapq
import json
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from papers.pricing import lambda_speed
from runtime.errors import ExperimentError, one_line
from runtime.experiment.fleet import FleetSettings
from runtime.experiment.section import Field
from runtime.fleet import FleetSetup
from runtime.fleet.interfaces import Invocation
from runtime.learner.functions.settings import StellarisSettings
from runtime.money.work import Outcome

_US = 1_000_000


class VirtualSettings(StellarisSettings):
    """Settings of Stellaris in virtual time."""

    durations: str = Field(
        "papers/stellaris/hopper_durations.json",
        description="file of papers.stellaris.record, relative to the working directory",
    )

    def functions_fleet(self) -> VirtualFleetSettings:
        """Returns the fleet of its learner functions."""
        return VirtualFleetSettings(durations=self.durations)


class VirtualFleetSettings(FleetSettings):
    """Settings of a fleet in virtual time."""

    durations: str

    def make(self, setup: FleetSetup) -> VirtualFleet:
        """Makes the fleet.

        Raises:
            ExperimentError: The durations cannot be read.
        """
        # Imported late: torch takes seconds to import.
        from runtime.learner.functions.handler import handler

        durations = Durations.read(Path(self.durations))
        speed = lambda_speed(setup.memory_mib)
        return VirtualFleet(
            handler, lambda event: durations.of(event) / speed, timeout_s=setup.timeout_s
        )


class Durations:
    """Draws from recorded durations, with a random number for each invocation. Their order does not matter."""

    def __init__(self, start_s: Sequence[float], gradient_s: Mapping[int, Sequence[float]]) -> None:
        """Takes recorded seconds: of start-ups, and of gradients by the samples of their minibatch."""
        self._start_s, self._gradient_s = start_s, gradient_s
        self._started: set[int] = set()

    @classmethod
    def read(cls, path: Path, *, is_warm: bool = False) -> Durations:
        """Reads a file of durations.

        Args:
            is_warm: Whether the learners have started before.

        Raises:
            ExperimentError: It cannot be read, or does not hold durations.
        """
        try:
            found = json.loads(path.read_text())
            return cls(
                [0.0] if is_warm else found["start_s"],
                {int(key): one for key, one in found["gradient_s"].items()},
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ExperimentError(
                f"durations = {str(path)!r} cannot be read: {one_line(repr(error))}; allowed: a file that "
                "papers.stellaris.record has written"
            ) from None

    def of(self, event: Mapping[str, Any]) -> float:
        """Returns the recorded seconds of an invocation; a learner starts once, before its first gradient.

        If its number of samples was not recorded, the nearest one counts.
        """
        seed, update, slot = event["learner"]["seed"], event["update"], event["slot"]
        samples = len(event["indices"])
        recorded = self._gradient_s[min(self._gradient_s, key=lambda one: abs(one - samples))]
        found = random.Random(f"gradient {seed} {update} {event['job']}").choice(recorded)
        if update == 0 and slot not in self._started:
            self._started.add(slot)
            found += random.Random(f"start {seed} {slot}").choice(self._start_s)
        return found

    def update_s(
        self, seed: int, update: int, gradients: int, *, samples: int, learners: int
    ) -> tuple[float, list[float]]:
        """Returns how long an update takes, and each of its gradients; the first free learner gets the next one.

        Args:
            update: Number of the policy version at its start.
            samples: Number in a minibatch.
        """
        free, found = [(0.0, slot) for slot in range(learners)], list[float]()
        for job in range(gradients):
            begins_s, slot = heapq.heappop(free)
            event = {"learner": {"seed": seed}, "update": update, "slot": slot, "job": job}
            found.append(self.of({**event, "indices": range(samples)}))
            heapq.heappush(free, (begins_s + found[-1], slot))
        return max(free)[0], found


class VirtualFleet:
    """Runs a handler in this process, one call at a time; see `runtime.fleet.interfaces.Fleet`.

    Time is in whole microseconds, so sums are exact, and the order of ends does not depend on when a run begins.
    """

    concurrency = 1_000
    """Learners start at most one gradient each, so that nothing needs to be queued."""

    def __init__(
        self,
        handler: Callable[[Mapping[str, Any], object], Mapping[str, Any]],
        duration_s: Callable[[Mapping[str, Any]], float],
        *,
        timeout_s: float,
    ) -> None:
        """Starts at 0, with no invocations.

        Args:
            handler: Function to invoke.
            duration_s: Returns an event's duration in seconds.
            timeout_s: Longer invocations are not run, and end as timed out.
        """
        self._handler, self._duration_s, self._timeout_s = handler, duration_s, timeout_s
        self._now_us = self._started = 0
        self._running: list[tuple[int, int, Outcome]] = []

    def start(self, invocations: Sequence[Invocation]) -> None:
        """Runs these, to end later."""
        for one in invocations:
            outcome = self._outcome(one, self._duration_s(one.event))
            self._started += 1
            ends_us = self._now_us + round(outcome.billed_s * _US)
            heapq.heappush(self._running, (ends_us, self._started, outcome))

    def wait(self, timeout_s: float) -> list[Outcome]:
        """Returns the next end at once, and moves virtual time there, whatever ``timeout_s``."""
        if not self._running:
            return []
        self._now_us, _, outcome = heapq.heappop(self._running)
        return [outcome]

    def abandon(self, invocation_ids: Sequence[str]) -> None:
        """Does nothing: they have run."""

    def close(self) -> None:
        """Forgets everything."""
        self._running.clear()

    def _outcome(self, one: Invocation, duration_s: float) -> Outcome:
        if duration_s > self._timeout_s:
            told = f"timed out after {self._timeout_s:g} s"
            return Outcome(one.invocation_id, "timeout", error=told, billed_s=self._timeout_s)
        try:
            response = self._handler(one.event, None)
        except Exception as error:
            told = one_line(repr(error))
            return Outcome(one.invocation_id, "error", error=told, billed_s=duration_s)
        return Outcome(one.invocation_id, "ok", response, billed_s=duration_s)
