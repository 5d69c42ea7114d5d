"""Decodes trajectories, and checks that they are those that were requested."""

from __future__ import annotations

from lambda_actor import wire
from lambda_actor.errors import SchemaError
from runtime.fleet.actors import Actor, Trajectory


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
