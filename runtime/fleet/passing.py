"""Base of fleets that wrap another one."""

from __future__ import annotations

from collections.abc import Sequence

from runtime.fleet.interfaces import Fleet, Invocation
from runtime.money.work import Outcome


class PassingFleet:
    """A fleet that passes on calls and outcomes; subclasses change them."""

    def __init__(self, fleet: Fleet) -> None:
        """Wraps a fleet, which it also closes."""
        self._fleet = fleet
        self.concurrency = fleet.concurrency

    def start(self, invocations: Sequence[Invocation]) -> None:
        """Starts these."""
        self._fleet.start(invocations)

    def wait(self, timeout_s: float) -> list[Outcome]:
        """Returns what ended since the last call, through `_passed`."""
        return [self._passed(outcome) for outcome in self._fleet.wait(timeout_s)]

    def abandon(self, invocation_ids: Sequence[str]) -> None:
        """Abandons these; see the wrapped fleet."""
        self._fleet.abandon(invocation_ids)

    def close(self) -> None:
        """Ends everything; idempotent."""
        self._fleet.close()

    def _passed(self, outcome: Outcome) -> Outcome:
        """Returns the outcome to report instead."""
        raise NotImplementedError
