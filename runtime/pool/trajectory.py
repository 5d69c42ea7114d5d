"""A trajectory of a pool's actor, for a trainer of your own."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from lambda_actor.frames import stack_frames, unpack_frames
from lambda_actor.wire import field_text

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Trajectory:
    """A fragment of ``T`` steps: the rest of an open episode, then others, the last one left open again.

    Attributes:
        call: Number of its call, from 1.
        slot: Its place in that call, from 0.
        policy_version: Number of the acting policy; see `ActorPool.policy_version`.
        observations: Before each step, float32 ``[T, O]``; pixels uint8 ``[T, F·C, H, W]``.
        actions: As chosen by the policy: float32 ``[T, A]``, which the environment gets clipped to its bounds; for
            Discrete int64 ``[T]`` from 0; or int64 ``[T, A]``.
        log_probs: Log-probabilities of these actions, float32 ``[T]``; of continuous ones before clipping.
        rewards: From the environment, float64 ``[T]``.
        terminated: Whether the episode ended with that step in a terminal state, bool ``[T]``.
        truncated: Whether it was cut off there, bool ``[T]``.
        bootstrap_steps: Steps after which the return continues elsewhere, int64 ``[K]``: truncated ones, and the last
            step of an episode left open.
        bootstrap_observations: Observations after these, ``[K, …]`` like ``observations``.
        episode_returns: Returns of episodes that ended here, including their earlier fragments, float64 ``[E]``.
        episode_lengths: Their steps, int64 ``[E]``.
        action_masks: Allowed values of each choice, bool ``[T, M]``; None without masks.
        continued_episode: Call and slot of the trajectory whose last episode this one begins with, such as ``3-0``;
            empty if it begins with a new episode.
    """

    call: int
    slot: int
    policy_version: int
    observations: Array
    actions: Array
    log_probs: Array
    rewards: Array
    terminated: Array
    truncated: Array
    bootstrap_steps: Array
    bootstrap_observations: Array
    episode_returns: Array
    episode_lengths: Array
    action_masks: Array | None = None
    continued_episode: str = ""

    def __len__(self) -> int:
        """Returns the number of steps."""
        return len(self.rewards)

    def to_bytes(self) -> bytes:
        """Encodes it for another process; see `from_bytes`."""
        file = io.BytesIO()
        np.savez(file, **{name: value for name, value in vars(self).items() if value is not None})
        return file.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Trajectory:
        """Decodes what `to_bytes` encoded."""
        with np.load(io.BytesIO(data)) as arrays:
            return cls(
                **{name: array if array.ndim else array.item() for name, array in arrays.items()}
            )

    @property
    def next_observations(self) -> Array:
        """Returns observations after each step, like ``observations``; zeros after terminal states."""
        after = np.concatenate([self.observations[1:], np.zeros_like(self.observations[:1])])
        after[self.terminated] = 0
        after[self.bootstrap_steps] = self.bootstrap_observations
        return after


def for_trainers(trajectory: Mapping[str, Array]) -> Trajectory:
    """Makes one from a decoded trajectory message, with stacked pixel frames."""
    content: dict[str, Any] = dict(trajectory) | {
        "call": int(trajectory["round_index"]),
        "slot": int(trajectory["slot"]),
        "policy_version": int(trajectory["policy_version"]),
        "continued_episode": field_text(trajectory["continued_episode"]),
    }
    if "frames" in trajectory:
        frames = unpack_frames(trajectory)
        content["observations"] = stack_frames(frames, trajectory["observation_frames"])
        content["bootstrap_observations"] = stack_frames(frames, trajectory["bootstrap_frames"])
    names = [field.name for field in fields(Trajectory) if field.name in content]
    return Trajectory(**{name: content[name] for name in names})
