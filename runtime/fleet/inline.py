"""A fleet without a cache: weights travel in requests, trajectories in responses; ``cache.kind = none``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lambda_actor.inline import LATE, from_text, to_text
from runtime.fleet.interfaces import Fleet, Invocation
from runtime.money.work import Outcome

_TRAJECTORY = "trajectory"


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
        if "prewarm" in event:
            return invocation
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
