"""Fleets that wrap another one: one carries messages in requests and responses, one shields calls from signals."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from lambda_actor.inline import LATE, from_text, to_text
from runtime.fleet.interfaces import Fleet, Invocation
from runtime.money.work import Outcome

_TRAJECTORY = "trajectory"
_SIGNAL_LATENCY_S = 0.25


class PassingFleet:
    """A fleet that passes on calls and outcomes; subclasses change them.

    Attributes:
        inside: The fleet that it wraps.
    """

    def __init__(self, fleet: Fleet) -> None:
        """Wraps a fleet, which it also closes."""
        self.inside = fleet
        self.concurrency = fleet.concurrency

    def start(self, invocations: Sequence[Invocation]) -> None:
        """Starts these."""
        self.inside.start(invocations)

    def wait(self, timeout_s: float) -> list[Outcome]:
        """Returns what ended since the last call, through `_passed`."""
        return [self._passed(outcome) for outcome in self.inside.wait(timeout_s)]

    def abandon(self, invocation_ids: Sequence[str]) -> None:
        """Abandons these; see the wrapped fleet."""
        self.inside.abandon(invocation_ids)

    def close(self) -> None:
        """Ends everything; idempotent."""
        self.inside.close()

    def _passed(self, outcome: Outcome) -> Outcome:
        """Returns the outcome to report instead."""
        return outcome


class ShieldedFleet(PassingFleet):
    """A fleet whose calls no signal cuts, so that no lock stays held."""

    def __init__(self, fleet: Fleet, shield: Callable[[], AbstractContextManager[None]]) -> None:
        """Shields a fleet's calls with blocks that a signal does not cut."""
        super().__init__(fleet)
        self._shield = shield
        self._outcomes: list[Outcome] = []

    def start(self, invocations: Sequence[Invocation]) -> None:
        """Starts these."""
        with self._shield():
            super().start(invocations)

    def wait(self, timeout_s: float) -> list[Outcome]:
        """Waits in slices, between which a signal takes effect."""
        until_s = time.monotonic() + timeout_s
        while True:
            left_s = until_s - time.monotonic()
            slice_s = 0.0 if self._outcomes else max(0.0, min(left_s, _SIGNAL_LATENCY_S))
            with self._shield():
                # Stored until returned, because a signal takes effect at the block's end.
                self._outcomes += super().wait(slice_s)
            if self._outcomes or left_s <= 0:
                outcomes, self._outcomes = self._outcomes, []
                return outcomes

    def abandon(self, invocation_ids: Sequence[str]) -> None:
        """Abandons these."""
        with self._shield():
            super().abandon(invocation_ids)

    def close(self) -> None:
        """Ends everything."""
        with self._shield():
            super().close()


class InlineFleet(PassingFleet):
    """Puts messages into the events of another fleet, and takes them from its outcomes.

    It is a `Fleet` and, because it carries the messages, also the run's `Cache`. It cannot
    reach a running actor: an abandoned one plays until its time limit at most.
    """

    def __init__(self, fleet: Fleet) -> None:
        """Carries messages for a fleet, which it also closes."""
        super().__init__(fleet)
        self._weights: dict[int, str] = {}
        self._episodes: dict[str, str] = {}
        self._doors: dict[str, bytes | None] = {}

    # The fleet

    def start(self, invocations: Sequence[Invocation]) -> None:
        """Starts these actors with everything they would fetch."""
        super().start([self._loaded(invocation) for invocation in invocations])

    # The cache

    def publish_weights(self, policy_version: int, weights: bytes) -> None:
        """Keeps a policy version for its actors."""
        self._weights[policy_version] = to_text(weights)

    def forget_weights(self, policy_version: int) -> None:
        """Drops a version that no actor will need."""
        self._weights.pop(policy_version, None)

    def publish_episodes(self, episodes: Mapping[str, bytes]) -> None:
        """Keeps open episodes for the actors that continue them."""
        self._episodes.update({episode_id: to_text(data) for episode_id, data in episodes.items()})

    def discard_episodes(self, episode_ids: Iterable[str]) -> None:
        """Drops episodes that no actor will continue."""
        for episode_id in episode_ids:
            self._episodes.pop(episode_id, None)

    def expect(self, invocation_ids: Iterable[str]) -> None:
        """Accepts one trajectory for each of these invocations."""
        self._doors.update(dict.fromkeys(invocation_ids))

    def take(self, invocation_id: str) -> bytes | None:
        """Stops accepting from one invocation, and returns its trajectory if it has arrived."""
        return self._doors.pop(invocation_id, None)

    def _loaded(self, invocation: Invocation) -> Invocation:
        event = invocation.event
        return replace(
            invocation,
            event={
                **event,
                "weights": self._weights[event["policy_version"]],
                "episode": self._episodes.get(event["episode_id"], ""),
            },
        )

    def _passed(self, outcome: Outcome) -> Outcome:
        """Returns the outcome without its trajectory, which is kept until taken."""
        if outcome.response is None or _TRAJECTORY not in outcome.response:
            return outcome
        response: dict[str, Any] = dict(outcome.response)
        text = response.pop(_TRAJECTORY)
        if outcome.invocation_id not in self._doors:
            return replace(outcome, response=response | {"status": LATE})
        self._doors[outcome.invocation_id] = from_text(text)
        return replace(outcome, response=response)
