"""Actors of a flight, what they bring, and counts of those that ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from lambda_actor import wire
from lambda_actor.errors import SchemaError
from runtime.fleet.interfaces import Invocation
from runtime.money.work import Outcome, Work

if TYPE_CHECKING:
    from lambda_actor.spaces import Spaces


Trajectory = Mapping[str, np.ndarray]
"""A decoded trajectory message: the fields of `lambda_actor.wire`'s schema by name."""


@dataclass(frozen=True)
class OpenEpisodeRecord:
    """An open episode waiting for an actor: its id and its EPISODE message."""

    episode_id: str
    data: bytes = field(repr=False)


@dataclass(frozen=True)
class ActorSpec:
    """Common properties of the actors of one policy version.

    Attributes:
        event: The event without ``invocation_id``, ``slot`` and ``episode_id``.
        spaces: Spaces that the arrays of its trajectory must fit.
        weights_bytes: Size of the weights that it fetches.
        timeout_s: Maximum billed seconds, without its start-up.
    """

    event: Mapping[str, Any]
    spaces: Spaces
    weights_bytes: int
    timeout_s: float


@dataclass(frozen=True)
class Actor:
    """One actor to start.

    Attributes:
        work: The meter's name for it: its slot, and the attempt for that slot.
        number: The ``slot`` of its event and its trajectory. With the round, it determines its random numbers.
        episode: The open episode that it continues; None for a fresh start.
    """

    invocation_id: str
    spec: ActorSpec
    work: Work
    number: int
    episode: OpenEpisodeRecord | None = None

    @property
    def episode_id(self) -> str:
        """The id of the episode that it continues; empty for a fresh start."""
        return self.episode.episode_id if self.episode else ""

    @property
    def policy_version(self) -> int:
        """The version of the policy that it rolls out."""
        return int(self.spec.event["policy_version"])

    @property
    def invocation(self) -> Invocation:
        """Returns the invocation for a fleet."""
        return Invocation(
            self.invocation_id,
            {
                **self.spec.event,
                "invocation_id": self.invocation_id,
                "slot": self.number,
                "episode_id": self.episode_id,
            },
        )


@dataclass
class ActorTally:
    """Counts of actor invocations that have ended.

    Attributes:
        billed_s: Billed seconds of all that started, cold starts included.
        cpu_s: Measured CPU seconds of all for which they are known.
        failed: Number of invocations that ended without an accepted trajectory.
        last_error: Text of the last failure, for users.
        late: Number of trajectories that arrived after they had been given up.
        waited_s: Seconds that their environments waited for something other than a CPU; None if unknown, as in AWS.
        lost_steps: Steps of those without an accepted trajectory; a whole fragment if unknown.
        replayed_steps: Steps that were repeated to continue open episodes, of those that answered; None if the
            environment does not replay.
    """

    billed_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    failed: int = 0
    last_error: str = ""
    late: int = 0
    waited_s: float | None = 0.0
    lost_steps: int = 0
    replayed_steps: int | None = None

    def add(
        self, actor: Actor, outcome: Outcome, seconds: float | None, *, is_lost: bool = False
    ) -> None:
        """Adds the seconds of an ended actor, and its steps if they are lost.

        Args:
            seconds: Billed seconds, a cold start included; None if it never started.
        """
        if outcome.cpu_s:
            self.cpu_s.append(outcome.cpu_s)
        if seconds is None:
            return
        self.billed_s.append(seconds)
        if outcome.is_metered or outcome.waited_s is None or self.waited_s is None:
            self.waited_s = None
        else:
            self.waited_s += outcome.waited_s
        answer = outcome.response or {}
        if is_lost:
            fragment_steps = int(actor.spec.event.get("fragment_steps", 0))
            self.lost_steps += int(answer.get("env_steps", fragment_steps))
        if (replayed_steps := answer.get("replayed_steps")) is not None:
            self.replayed_steps = (self.replayed_steps or 0) + replayed_steps


def decode_trajectory(data: bytes, actor: Actor) -> Trajectory:
    """Decodes the trajectory message of an actor, or of one that remains where it was played, its metadata.

    Raises:
        WireError: The message is damaged, or is not the requested trajectory.
    """
    event = actor.spec.event
    is_kept = event.get("is_kept", False)
    kind = wire.Kind.FRAME_TRAJECTORY if actor.spec.spaces.is_pixels else wire.Kind.TRAJECTORY
    trajectory = wire.decode(data, wire.Kind.KEPT_TRAJECTORY if is_kept else kind)
    steps = int(trajectory["steps"]) if is_kept else len(trajectory["rewards"])
    if event.get("drop_unfinished") and 0 < steps < event["fragment_steps"]:
        # It lacks its last episode, which could not be left open.
        steps = event["fragment_steps"]
    found = {
        "invocation_id": wire.field_text(trajectory["invocation_id"]),
        "slot": int(trajectory["slot"]),
        "round_index": int(trajectory["round_index"]),
        "policy_version": int(trajectory["policy_version"]),
        "continued_episode": wire.field_text(trajectory["continued_episode"]),
        "steps": steps,
    }
    requested = {
        "invocation_id": actor.invocation_id,
        "slot": actor.number,
        "round_index": event["round_index"],
        "policy_version": event["policy_version"],
        "continued_episode": actor.episode_id,
        "steps": event["fragment_steps"],
    }
    for name, value in requested.items():
        if found[name] != value:
            raise SchemaError(
                f"trajectory of slot {actor.number}: {name} is {found[name]}, requested was {value}"
            )
    return trajectory
