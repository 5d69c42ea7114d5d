"""Samples in this process, one actor after another: the real engine without fleet, cache and bill."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

from lambda_actor import wire
from lambda_actor.environments import ActorEnvironment
from lambda_actor.handler import trajectory_fields
from lambda_actor.policy import Policy
from lambda_actor.rollout import OpenEpisode, roll_out
from runtime.ports.fleet import Outcome
from runtime.ports.sampling import Actor, Ended, Trajectory
from runtime.sampling.trajectories import decode_trajectory


class InProcessSampler:
    """A `runtime.ports.sampling.Sampler` that rolls an actor out when asked for the next one to end."""

    concurrency = 1

    def __init__(
        self, environment: ActorEnvironment, *, clock: Callable[[], float] = time.process_time
    ) -> None:
        """Starts nothing yet.

        Args:
            environment: Rolls out all fragments, so it must be able to save its episodes.
            clock: Returns seconds, to measure an actor's time.
        """
        self._environment, self._clock = environment, clock
        self._policies: dict[int, Policy] = {}
        self._in_flight: dict[str, Actor] = {}
        self._given_up: deque[str] = deque()

    @property
    def in_flight(self) -> Mapping[str, Actor]:
        """Actors not yet rolled out, by invocation id, in the order of their start."""
        return self._in_flight

    @property
    def awaited(self) -> list[Actor]:
        """Actors whose trajectories may still come, in the order of their start."""
        return [actor for one, actor in self._in_flight.items() if one not in self._given_up]

    def publish(self, policy_version: int, weights: bytes) -> None:
        """Publishes these weights as ``policy_version``, and deletes versions that no actor in flight needs."""
        needed = {actor.policy_version for actor in self._in_flight.values()}
        self._policies = {
            version: policy for version, policy in self._policies.items() if version in needed
        }
        self._policies[policy_version] = Policy.from_bytes(weights)

    def start(self, actors: Sequence[Actor]) -> None:
        """Queues these actors."""
        self._in_flight.update({actor.invocation_id: actor for actor in actors})

    def next(self, timeout_s: float) -> Ended | None:
        """Rolls out the next actor; returns None if there is none. No time limit ends a rollout here."""
        if self._given_up:
            actor = self._in_flight.pop(self._given_up.popleft())
            outcome = Outcome(
                actor.invocation_id,
                "abandoned",
                error="given up before it began",
                was_started=False,
            )
            return Ended(actor, outcome, None, outcome.error, None, was_given_up=True)
        if not self._in_flight:
            return None
        actor = self._in_flight.pop(next(iter(self._in_flight)))
        started_s = self._clock()
        try:
            trajectory = self._roll_out(actor)
        except Exception as error:
            # Any exception of an environment, as in a separate process.
            outcome = Outcome(
                actor.invocation_id, "error", error=f"{type(error).__name__}: {error}"
            )
            return Ended(actor, outcome, None, outcome.error, self._clock() - started_s)
        seconds = self._clock() - started_s
        return Ended(
            actor, Outcome(actor.invocation_id, "ok", billed_s=seconds), trajectory, "", seconds
        )

    def deliver(self, actor: Actor) -> Trajectory | None:
        """Gives up an actor that has not been rolled out."""
        self._given_up.append(actor.invocation_id)
        return None

    def give_up_all(self) -> Iterator[Ended]:
        """Gives up all actors; yields each."""
        self._given_up.extend(one for one in self._in_flight if one not in self._given_up)
        while (ended := self.next(0.0)) is not None:
            yield ended

    def tidy(self) -> int:
        """Returns 0: ended actors leave nothing behind, and nothing arrives late."""
        return 0

    def _roll_out(self, actor: Actor) -> Trajectory:
        event = actor.invocation.event
        fragment = roll_out(
            self._environment,
            self._policies[actor.policy_version],
            fragment_steps=event["fragment_steps"],
            seed=event["seed"],
            round_index=event["round_index"],
            slot=event["slot"],
            open_episode=OpenEpisode.from_bytes(actor.episode.data) if actor.episode else None,
            truncate_at_fragment=event.get("truncate_at_fragment", False),
            drop_unfinished=event.get("drop_unfinished", False),
        )
        return decode_trajectory(
            wire.encode(fragment.kind, trajectory_fields(event, fragment)), actor
        )
