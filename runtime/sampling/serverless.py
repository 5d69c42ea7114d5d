"""Samples with serverless actors: a fleet runs them, a cache carries their data, a meter bills them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

from lambda_actor.errors import CacheError, WireError
from lambda_actor.events import LATE
from runtime.cost.model import INIT_SECONDS_MAX
from runtime.ports.fleet import Cache, Fleet, Outcome
from runtime.ports.money import CostMeter
from runtime.ports.sampling import Actor, Ended, Trajectory
from runtime.sampling.trajectories import decode_trajectory


class ServerlessSampler:
    """A `runtime.ports.sampling.Sampler`; only this waits for the fleet and takes from the cache."""

    def __init__(
        self,
        fleet: Fleet,
        cache: Cache,
        meter: CostMeter,
        *,
        clock: Callable[[], float] = time.monotonic,
        give_up_timeout_s: float = 10.0,
    ) -> None:
        """Starts nothing yet.

        Args:
            meter: Settles each actor when it ends. Callers reserve the worst cases of actors that they start.
            clock: Monotonic seconds.
            give_up_timeout_s: Longest wait for the end of an abandoned actor.
        """
        self._fleet, self._cache, self._meter, self._clock = fleet, cache, meter, clock
        self._give_up_timeout_s = give_up_timeout_s
        self._in_flight: dict[str, Actor] = {}
        self._taken: dict[str, bytes | None] = {}
        self._delivered: dict[str, int] = {}
        self._given_up_s: dict[str, float] = {}
        self._outcomes: deque[Outcome] = deque()
        self._late = 0
        self._versions: list[int] = []
        self._episodes: set[str] = set()

    @property
    def concurrency(self) -> int:
        """Returns how many actors really run at once."""
        return self._fleet.concurrency

    @property
    def in_flight(self) -> Mapping[str, Actor]:
        """Returns actors that have not ended, by invocation id, in starting order."""
        return self._in_flight

    @property
    def awaited(self) -> list[Actor]:
        """Returns actors whose trajectories may still arrive, in starting order."""
        return [
            actor
            for one, actor in self._in_flight.items()
            if one not in self._given_up_s and one not in self._delivered
        ]

    def publish(self, policy_version: int, weights: bytes) -> None:
        """Publishes these weights, and drops those that no actor in flight can request."""
        self._cache.publish_weights(policy_version, weights)
        needed = {policy_version, *(actor.policy_version for actor in self._in_flight.values())}
        for old in [version for version in self._versions if version not in needed]:
            self._cache.forget_weights(old)
        self._versions = [
            version for version in self._versions if version in needed and version != policy_version
        ]
        self._versions.append(policy_version)

    def start(self, actors: Sequence[Actor]) -> None:
        """Starts these actors, whose worst cases are already reserved."""
        episodes = {actor.episode_id: actor.episode.data for actor in actors if actor.episode}
        self._episodes.update(episodes)
        self._cache.publish_episodes(episodes)
        self._in_flight.update({actor.invocation_id: actor for actor in actors})
        self._cache.expect([actor.invocation_id for actor in actors])
        self._fleet.start([actor.invocation for actor in actors])

    def next(self, timeout_s: float) -> Ended | None:
        """Returns the next actor that ended, settled; None if none did within ``timeout_s``."""
        if (outcome := self._known()) is None:
            self._outcomes.extend(self._fleet.wait(timeout_s))
            outcome = self._known()
        if outcome is not None:
            return self._ended(outcome)
        for invocation_id, since_s in self._given_up_s.items():
            if self._clock() - since_s >= self._give_up_timeout_s:
                return self._ended(self._deaf(invocation_id))
        return None

    def _known(self) -> Outcome | None:
        """Returns the next outcome from the fleet, without duplicates."""
        while self._outcomes:
            if (outcome := self._outcomes.popleft()).invocation_id in self._in_flight:
                return outcome
        return None

    def deliver(self, actor: Actor) -> Trajectory | None:
        """Stops waiting for an actor, and returns its trajectory if it was already accepted.

        Otherwise its door is closed, and the actor is abandoned. In both cases its end is still to come.

        Raises:
            WireError: An accepted trajectory is unusable.
        """
        taken = self._take(actor.invocation_id)
        if taken is None:
            self._give_up([actor])
            return None
        del self._taken[actor.invocation_id]
        self._delivered[actor.invocation_id] = len(taken)
        return decode_trajectory(taken, actor)

    def give_up_all(self) -> Iterator[Ended]:
        """Abandons all actors, and yields each as it ends. Those that do not end soon are billed to their limit."""
        with suppress(CacheError):
            for invocation_id in self._in_flight:
                # An actor that the fleet cannot end asks the cache whether it is still wanted.
                self._take(invocation_id)
        self._give_up(list(self._in_flight.values()))
        until_s = self._clock() + self._give_up_timeout_s
        while self._in_flight and (left_s := until_s - self._clock()) > 0:
            if (ended := self.next(left_s)) is not None:
                yield ended
        for invocation_id in list(self._in_flight):
            yield self._ended(self._deaf(invocation_id))

    def tidy(self) -> int:
        """Makes the cache drop unneeded data, and returns the number of trajectories that arrived too late since."""
        late, self._late = self._late, 0
        continued = {actor.episode_id for actor in self._in_flight.values()}
        self._cache.discard_episodes(sorted(self._episodes - continued))
        self._episodes &= continued
        return late

    def _give_up(self, actors: Sequence[Actor]) -> None:
        now_s = self._clock()
        self._given_up_s.update({actor.invocation_id: now_s for actor in actors})
        self._fleet.abandon([actor.invocation_id for actor in actors])

    def _deaf(self, invocation_id: str) -> Outcome:
        return Outcome(
            invocation_id,
            "abandoned",
            error="did not end when it was given up",
            billed_s=self._in_flight[invocation_id].spec.timeout_s,
            init_s=INIT_SECONDS_MAX,
        )

    def _ended(self, outcome: Outcome) -> Ended:
        invocation_id = outcome.invocation_id
        actor = self._in_flight.pop(invocation_id)
        was_given_up = self._given_up_s.pop(invocation_id, None) is not None
        delivered_bytes = self._delivered.pop(invocation_id, None)
        taken = None if delivered_bytes is not None else self._take(invocation_id)
        self._taken.pop(invocation_id, None)
        seconds = self._settle(actor, outcome, len(taken or b"") + (delivered_bytes or 0))
        trajectory, reason = None, ""
        if delivered_bytes is None and "prewarm" not in actor.spec.event:
            try:
                trajectory = None if taken is None else decode_trajectory(taken, actor)
                reason = self._reason(outcome) if taken is None else ""
            except WireError as error:
                reason = f"{type(error).__name__}: {error}"
        return Ended(
            actor,
            outcome,
            trajectory,
            reason,
            seconds,
            was_given_up=was_given_up,
            was_delivered=delivered_bytes is not None,
        )

    def _take(self, invocation_id: str) -> bytes | None:
        """Closes an actor's door, and returns its submission, even if it failed afterwards."""
        if invocation_id not in self._taken:
            self._taken[invocation_id] = self._cache.take(invocation_id)
        return self._taken[invocation_id]

    def _reason(self, outcome: Outcome) -> str:
        """Returns why an actor has no trajectory."""
        if outcome.status != "ok" or outcome.response is None:
            return outcome.error
        if outcome.response["status"] != LATE:
            return "its trajectory was accepted, but is not in the cache any more"
        self._late += 1
        return "its trajectory came too late"

    def _settle(self, actor: Actor, outcome: Outcome, trajectory_bytes: int) -> float | None:
        episode_bytes = len(actor.episode.data) if actor.episode else 0
        seconds = self._meter.settle(
            actor.work,
            outcome,
            traffic_bytes=actor.spec.weights_bytes + trajectory_bytes + episode_bytes,
            answer_bytes=trajectory_bytes,
        )
        return seconds if outcome.was_started else None
