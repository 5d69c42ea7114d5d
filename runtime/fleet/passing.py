"""What fleets have in common that hand on what another one does."""

from __future__ import annotations

from collections.abc import Sequence

from runtime.ports.fleet import Fleet, Invocation, Outcome


class PassingFleet:
    """A fleet that hands on what another one does; a subclass changes what starts, or what ended."""

    def __init__(self, fleet: Fleet) -> None:
        """Takes a fleet, which it closes with itself."""
        self._fleet = fleet
        self.concurrency = fleet.concurrency

    def start(self, invocations: Sequence[Invocation]) -> None:
        """Starts these."""
        self._fleet.start(invocations)

    def wait(self, timeout_s: float) -> list[Outcome]:
        """Returns what ended since the last call, as `_passed` makes it."""
        return [self._passed(outcome) for outcome in self._fleet.wait(timeout_s)]

    def abandon(self, invocation_ids: Sequence[str]) -> None:
        """Gives these up; see the fleet that runs them."""
        self._fleet.abandon(invocation_ids)

    def close(self) -> None:
        """Ends everything; idempotent."""
        self._fleet.close()

    def _passed(self, outcome: Outcome) -> Outcome:
        """The outcome that is told instead."""
        raise NotImplementedError
