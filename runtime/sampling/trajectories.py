"""Decodes trajectories, and checks that they match their actors' requests."""

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
    """Decodes a trajectory message, and checks it against the actor that sent it.

    Raises:
        WireError: The message is damaged, or is not the requested trajectory.
    """
    if actor.spec.event.get("is_kept"):
        return _kept(data, actor)
    is_pixels = actor.spec.spaces.is_pixels
    trajectory = wire.decode(
        data, wire.Kind.FRAME_TRAJECTORY if is_pixels else wire.Kind.TRAJECTORY
    )
    whose = f"trajectory of slot {actor.number}"
    _check_shapes(trajectory, actor, whose)
    _check_values(trajectory, actor, whose)
    if is_pixels:
        _check_frames(trajectory, actor, whose)
    return trajectory


def _kept(data: bytes, actor: Actor) -> Trajectory:
    """Metadata of a trajectory that remains where it was played."""
    trajectory, whose = (
        wire.decode(data, wire.Kind.KEPT_TRAJECTORY),
        f"trajectory of slot {actor.number}",
    )
    steps, steps_max = int(trajectory["steps"]), actor.spec.event["fragment_steps"]
    _check_identity(trajectory, actor, whose)
    if steps != steps_max and not (
        actor.spec.event.get("drop_unfinished") and 0 < steps < steps_max
    ):
        raise SchemaError(f"{whose}: it has {steps} steps, asked for were {steps_max}")
    _check_episodes(trajectory, steps, whose)
    return trajectory


def _check_identity(
    trajectory: Trajectory,
    actor: Actor,
    whose: str,
    *,
    found: Mapping[str, Any] = {},
    asked: Mapping[str, Any] = {},
) -> None:
    """Checks the trajectory's origin, and the named values ``found`` against those ``asked`` for."""
    numbers = {name: int(trajectory[name]) for name in ("slot", "round_index", "policy_version")}
    found = {
        "invocation_id": wire.field_text(trajectory["invocation_id"]),
        **numbers,
        "continued_episode": bytes(trajectory["continued_episode"]),
        **found,
    }
    event = actor.spec.event
    asked = {
        "invocation_id": actor.invocation_id,
        "slot": actor.number,
        "round_index": event["round_index"],
        "policy_version": event["policy_version"],
        "continued_episode": actor.episode_id.encode(),
        **asked,
    }
    for name, value in asked.items():
        if found[name] != value:
            raise SchemaError(f"{whose}: {name} is {found[name]}, asked for was {value}")


def _check_shapes(trajectory: Trajectory, actor: Actor, whose: str) -> None:
    spaces = actor.spec.spaces
    steps = (
        len(trajectory["rewards"])
        if _dropped_rightly(trajectory, actor)
        else actor.spec.event["fragment_steps"]
    )
    observations = "observation_frames" if spaces.is_pixels else "observations"
    _check_identity(
        trajectory,
        actor,
        whose,
        found={
            observations: trajectory[observations].shape,
            "actions": (trajectory["actions"].dtype.name, *trajectory["actions"].shape),
        },
        asked={
            observations: (
                steps,
                spaces.frame_stack if spaces.is_pixels else spaces.observation_size,
            ),
            "actions": ("int64" if spaces.is_discrete else "float32", steps, *spaces.action_shape),
        },
    )


def _dropped_rightly(trajectory: Trajectory, actor: Actor) -> bool:
    """Returns whether it lacks the steps of its last episode, as requested, and ends with the previous one."""
    ends = trajectory["terminated"] | trajectory["truncated"]
    return bool(
        actor.spec.event.get("drop_unfinished")
        and 0 < len(ends) < actor.spec.event["fragment_steps"]
        and ends[-1]
    )


def _check_values(trajectory: Trajectory, actor: Actor, whose: str) -> None:
    spaces, steps = actor.spec.spaces, len(trajectory["rewards"])
    actions, bootstrap_steps = trajectory["actions"], trajectory["bootstrap_steps"]
    if not spaces.has_choices(actions):
        raise SchemaError(
            f"{whose}: actions are {actions.min()} to {actions.max()}, allowed are 0 to "
            f"{' and '.join(str(one - 1) for one in spaces.choice_counts)}"
        )
    masks = trajectory.get("action_masks")
    if (found := None if masks is None else masks.shape) != (
        wanted := (steps, spaces.output_size) if spaces.has_action_mask else None
    ):
        raise SchemaError(
            f"{whose}: action_masks are {found or 'not there'}, asked for were {wanted or 'none'}"
        )
    if masks is not None and not spaces.are_allowed(actions, masks):
        raise SchemaError(f"{whose}: an action is one that its mask forbids")
    if (
        not ((bootstrap_steps >= 0) & (bootstrap_steps < steps)).all()
        or (np.diff(bootstrap_steps) <= 0).any()
    ):
        raise SchemaError(f"{whose}: bootstrap_steps are not increasing steps of the fragment")
    _check_episodes(trajectory, steps, whose)
    _check_finite(
        trajectory,
        whose,
        "observations",
        "actions",
        "log_probs",
        "rewards",
        "bootstrap_observations",
    )


def _check_episodes(trajectory: Trajectory, steps: int, whose: str) -> None:
    if trajectory["open_episode"].nbytes > EPISODE_BYTES_MAX:
        raise SchemaError(
            f"{whose}: open_episode has {trajectory['open_episode'].nbytes} bytes; allowed: up to "
            f"{EPISODE_BYTES_MAX}"
        )
    if len(trajectory["episode_returns"]) > steps:
        raise SchemaError(
            f"{whose}: {len(trajectory['episode_returns'])} episodes ended in {steps} steps"
        )
    _check_finite(trajectory, whose, "episode_returns")


def _check_finite(trajectory: Trajectory, whose: str, *names: str) -> None:
    for name in names:
        if name in trajectory and not np.isfinite(trajectory[name]).all():
            raise SchemaError(f"{whose}: {name} is not finite")


def _check_frames(trajectory: Trajectory, actor: Actor, whose: str) -> None:
    spaces, shape = actor.spec.spaces, tuple(int(length) for length in trajectory["frames_shape"])
    # Before inflating: a few bytes may expand enormously.
    frames_max = 2 * actor.spec.event["fragment_steps"] + spaces.frame_stack
    if shape[1:] != spaces.frame_shape or shape[0] > frames_max:
        raise SchemaError(
            f"{whose}: frames are {shape}, asked for were {spaces.frame_shape}, at most {frames_max}"
        )
    frames = unpack_frames(trajectory)
    if not np.isfinite(floats(frames, spaces)).all():
        raise SchemaError(f"{whose}: the vectors in its frames are not finite")
    for name in ("observation_frames", "bootstrap_frames"):
        if not ((trajectory[name] >= 0) & (trajectory[name] < len(frames))).all():
            raise SchemaError(
                f"{whose}: {name} name others than the {len(frames)} frames that are there"
            )
