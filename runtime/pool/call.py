"""A call of a pool, and its row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from runtime.fleet import actors as sampling
from runtime.fleet.actors import ActorSpec
from runtime.fleet.flight import Group
from runtime.records.rows import COLUMNS
from runtime.training.finished_round import episode_columns, tally_columns
from runtime.training.updating import RoundTraining


@dataclass(eq=False)
class Call:
    """A call of a pool.

    Attributes:
        number: From 1.
        actors: Requested actors.
        error: Why some actors returned nothing; empty if all did, or until it has ended.
        has_ended: Whether all its results have arrived.
    """

    number: int
    actors: int
    spec: ActorSpec = field(repr=False)
    group: Group = field(repr=False)
    is_streamed: bool = field(repr=False)
    began_s: float = field(repr=False)
    error: str = ""
    has_ended: bool = False
    is_given_up: bool = field(default=False, repr=False)
    handed_over: int = field(default=0, repr=False)
    reserved_usd: float = field(default=0.0, repr=False)

    @property
    def came(self) -> list[sampling.Trajectory]:
        """Returns its trajectories in the order of their slots."""
        return sorted(self.group.came, key=lambda one: int(one["slot"]))


def missing(call: Call) -> str:
    """Returns the error about a call some of whose actors returned nothing, without the cause."""
    return (
        f"{call.actors - len(call.group.came)} of the {call.actors} actors of call {call.number} brought nothing; the "
        "last error: "
    )


def row_of(
    call: Call,
    came: list[sampling.Trajectory],
    *,
    replayed_steps: int | None,
    dropped: int,
    seconds: float,
    standing_usd: float,
) -> dict[str, Any]:
    """Returns a call's metrics, without total steps and dollars; the training is unknown.

    Args:
        seconds: Seconds that no earlier row has.
    """
    sampled = RoundTraining(
        trajectories=len(came),
        env_steps=sum(len(one["rewards"]) for one in came),
        replayed_steps=replayed_steps,
    )
    sampled.add_episodes(came)
    return {
        **dict.fromkeys(COLUMNS),
        **episode_columns(sampled),
        **tally_columns(call.group.tally),
        "round_index": call.number,
        "policy_version": int(call.spec.event["policy_version"]),
        "actor_count_wanted": call.actors,
        "actor_count": call.actors,
        "episodes_dropped": dropped or None,
        "updates": 0,
        "staleness_mean": 0.0,
        "staleness_max": 0,
        "replayed_fraction": 0.0,
        "collect_s": seconds,
        "learn_s": 0.0,
        "round_s": seconds,
        "actors_cost_usd": call.group.usd,
        "provisioned_cost_usd": 0.0,
        "learner_cost_usd": 0.0,
        "infrastructure_cost_usd": standing_usd,
        "round_cost_usd": call.group.usd + standing_usd,
        "round_reserved_usd": call.reserved_usd,
    }
