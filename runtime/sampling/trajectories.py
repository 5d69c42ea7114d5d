"""Decodes trajectories and checks that they are what their actors were asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lambda_actor import wire
from lambda_actor.errors import SchemaError
from lambda_actor.frames import floats, unpack_frames
from lambda_actor.rollout import EPISODE_BYTES_MAX
from runtime.ports.sampling import Actor, Trajectory


def decode_trajectory(data: bytes, actor: Actor) -> Trajectory:
    """Decodes a trajectory message and checks it against the actor that sent it.

    Raises:
        WireError: The message is damaged, or it is not the trajectory that this actor was asked for.
    """
    is_pixels = actor.spec.spaces.is_pixels
    trajectory = wire.decode(data, wire.Kind.FRAME_TRAJECTORY if is_pixels else wire.Kind.TRAJECTORY)
    whose = f"trajectory of slot {actor.number}"
    _check_identity(trajectory, actor, whose)
    _check_values(trajectory, actor, whose)
    if is_pixels:
        _check_frames(trajectory, actor, whose)
    return trajectory


def _check_identity(trajectory: Trajectory, actor: Actor, whose: str) -> None:
    event, spaces = actor.spec.event, actor.spec.spaces
    steps = len(trajectory["rewards"]) if _dropped_rightly(trajectory, actor) else event["fragment_steps"]
    observations = "observation_frames" if spaces.is_pixels else "observations"
    found: Mapping[str, Any] = {
        "invocation_id": wire.field_text(trajectory["invocation_id"]),
        "slot": int(trajectory["slot"]), "round_index": int(trajectory["round_index"]),
        "policy_version": int(trajectory["policy_version"]),
        "continued_episode": bytes(trajectory["continued_episode"]),
        observations: trajectory[observations].shape,
        "actions": (trajectory["actions"].dtype.name, *trajectory["actions"].shape),
    }
    asked: Mapping[str, Any] = {
        "invocation_id": actor.invocation_id, "slot": actor.number, "round_index": event["round_index"],
        "policy_version": event["policy_version"], "continued_episode": actor.episode_id.encode(),
        observations: (steps, spaces.frame_stack if spaces.is_pixels else spaces.observation_size),
        "actions": ("int64" if spaces.is_discrete else "float32", steps, *spaces.action_shape),
    }
    for name, value in asked.items():
        if found[name] != value:
            raise SchemaError(f"{whose}: {name} is {found[name]}, asked for was {value}")


def _dropped_rightly(trajectory: Trajectory, actor: Actor) -> bool:
    """Whether it lacks the steps of its last episode, as it was asked to, and ends with the one before."""
    ends = trajectory["terminated"] | trajectory["truncated"]
    return bool(actor.spec.event.get("drop_unfinished") and 0 < len(ends) < actor.spec.event["fragment_steps"]
                and ends[-1])


def _check_values(trajectory: Trajectory, actor: Actor, whose: str) -> None:
    spaces, steps = actor.spec.spaces, len(trajectory["rewards"])
    actions, bootstrap_steps = trajectory["actions"], trajectory["bootstrap_steps"]
    if not spaces.has_choices(actions):
        raise SchemaError(f"{whose}: actions are {actions.min()} to {actions.max()}, allowed are 0 to "
                          f"{' and '.join(str(one - 1) for one in spaces.choice_counts)}")
    if not ((bootstrap_steps >= 0) & (bootstrap_steps < steps)).all() or (np.diff(bootstrap_steps) <= 0).any():
        raise SchemaError(f"{whose}: bootstrap_steps are not increasing steps of the fragment")
    if trajectory["open_episode"].nbytes > EPISODE_BYTES_MAX:
        raise SchemaError(f"{whose}: open_episode has {trajectory['open_episode'].nbytes} bytes; allowed: up to "
                          f"{EPISODE_BYTES_MAX}")
    if len(trajectory["episode_returns"]) > steps:
        raise SchemaError(f"{whose}: {len(trajectory['episode_returns'])} episodes ended in {steps} steps")
    for name in ("observations", "actions", "log_probs", "rewards", "bootstrap_observations", "episode_returns"):
        if name in trajectory and not np.isfinite(trajectory[name]).all():
            raise SchemaError(f"{whose}: {name} is not finite")


def _check_frames(trajectory: Trajectory, actor: Actor, whose: str) -> None:
    spaces, shape = actor.spec.spaces, tuple(int(length) for length in trajectory["frames_shape"])
    # Before they are inflated: a few bytes may say that they are many.
    frames_max = 2 * actor.spec.event["fragment_steps"] + spaces.frame_stack
    if shape[1:] != spaces.frame_shape or shape[0] > frames_max:
        raise SchemaError(f"{whose}: frames are {shape}, asked for were {spaces.frame_shape}, at most {frames_max}")
    frames = unpack_frames(trajectory)
    if not np.isfinite(floats(frames, spaces)).all():
        raise SchemaError(f"{whose}: the vectors in its frames are not finite")
    for name in ("observation_frames", "bootstrap_frames"):
        if not ((trajectory[name] >= 0) & (trajectory[name] < len(frames))).all():
            raise SchemaError(f"{whose}: {name} name others than the {len(frames)} frames that are there")
