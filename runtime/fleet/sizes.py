"""Computes the sizes of an experiment's messages, because bytes through the cache are part of the bill."""

from __future__ import annotations

import bisect
import math

from lambda_actor.inline import FRAME_BYTES_MAX, PAYLOAD_BYTES_MAX, text_bytes
from lambda_actor.policy import parameter_shapes
from lambda_actor.rollout import EPISODE_BYTES_MAX
from lambda_actor.spaces import Spaces
from lambda_actor.wire import MESSAGE_BYTES_MAX
from runtime.errors import ExperimentError

TRAJECTORIES_MIB = 1024
"""Room for a round's waiting trajectories in the run's own cache."""
_HEADERS_BYTES = 4096


def traffic_bytes_max(spaces: Spaces, *, fragment_steps: int, network: str) -> int:
    """Returns the most bytes that one actor moves: weights and an episode in, a trajectory and an episode out.

    Args:
        spaces: The environment's.
        fragment_steps: ``actor.fragment_steps``.
        network: The text of a `lambda_actor.policy.Architecture`.
    """
    return (
        trajectory_bytes_max(spaces, fragment_steps=fragment_steps)
        + weights_bytes(spaces, network)
        + EPISODE_BYTES_MAX
    )


def trajectory_bytes_max(spaces: Spaces, *, fragment_steps: int) -> int:
    """Returns the largest size of a trajectory in bytes, including an open episode.

    Args:
        spaces: The environment's.
        fragment_steps: ``actor.fragment_steps``.
    """
    return _fragment_bytes_max(spaces, fragment_steps) + EPISODE_BYTES_MAX + _HEADERS_BYTES


def weights_bytes(spaces: Spaces, network: str) -> int:
    """Returns the bytes of a policy's weights, including log σ and the observations' moments.

    Args:
        spaces: The environment's.
        network: The text of a `lambda_actor.policy.Architecture`.
    """
    parameters = sum(math.prod(shape) for shape in parameter_shapes(spaces, network).values())
    return 4 * (parameters + spaces.action_size + 2 * spaces.vector_size)


def check_sizes(
    spaces: Spaces, *, environment_id: str, fragment_steps: int, network: str, cache_kind: str
) -> None:
    """Checks that no message is too large.

    Args:
        spaces: The environment's.
        environment_id: For people.
        fragment_steps: ``actor.fragment_steps``.
        network: The text of a `lambda_actor.policy.Architecture`.
        cache_kind: ``cache.kind``.

    Raises:
        ExperimentError: A message would be too large.
    """
    size = weights_bytes(spaces, network)
    if size > MESSAGE_BYTES_MAX:
        raise ExperimentError(
            f"environment.id = {environment_id!r}: a network for its observations of "
            f"{spaces.observation_size:,} numbers takes {size:,} bytes; allowed: up to {MESSAGE_BYTES_MAX:,}. "
            "A wrapper may make its observations smaller"
        )
    step_bytes = math.prod(spaces.frame_shape) if spaces.is_pixels else 4 * spaces.observation_size
    if fragment_steps * step_bytes > MESSAGE_BYTES_MAX:
        raise ExperimentError(
            f"actor.fragment_steps = {fragment_steps}: a fragment of {environment_id} takes "
            f"{fragment_steps * step_bytes:,} bytes and more; allowed: 1 to {MESSAGE_BYTES_MAX // step_bytes}"
        )
    if cache_kind == "none":
        _check_payloads(spaces, fragment_steps, size)


def _check_payloads(spaces: Spaces, fragment_steps: int, weights: int) -> None:
    """Checks that messages carried by AWS Lambda itself are not too large.

    Raises:
        ExperimentError: One is.
    """

    def room(message_bytes: int) -> int:
        return PAYLOAD_BYTES_MAX - FRAME_BYTES_MAX - text_bytes(message_bytes)

    if room(weights + EPISODE_BYTES_MAX + 2 * _HEADERS_BYTES) < 0:
        raise ExperimentError(
            f"cache.kind = none: a request has to hold weights of {weights:,} bytes and an open episode of up to "
            f"{EPISODE_BYTES_MAX:,}, a third more as text; AWS Lambda takes {PAYLOAD_BYTES_MAX:,}. Allowed: "
            "redis, or smaller observations"
        )
    if room(trajectory_bytes_max(spaces, fragment_steps=fragment_steps)) < 0:
        fits = bisect.bisect_left(
            range(1, fragment_steps),
            True,
            key=lambda steps: room(trajectory_bytes_max(spaces, fragment_steps=steps)) < 0,
        )
        raise ExperimentError(
            f"cache.kind = none: a response has to hold a trajectory of actor.fragment_steps = {fragment_steps}, up to "
            f"{trajectory_bytes_max(spaces, fragment_steps=fragment_steps):,} bytes with an open episode, a third more "
            f"as text; AWS Lambda gives {PAYLOAD_BYTES_MAX:,}. Allowed: redis"
            + (f", or actor.fragment_steps up to {fits}" if fits else "")
        )


def _fragment_bytes_max(spaces: Spaces, steps: int) -> int:
    """Returns the largest fragment: every step is bootstrapped and ends an episode, and no frame is compressed."""
    action = (8 if spaces.is_discrete else 4) * math.prod(spaces.action_shape)
    observation = 4 * spaces.frame_stack if spaces.is_pixels else 4 * spaces.observation_size
    mask = spaces.output_size if spaces.has_action_mask else 0
    step = 2 * observation + action + mask + 4 + 8 + 1 + 1 + 8 + 24
    frames = (
        (2 * steps + spaces.frame_stack) * math.prod(spaces.frame_shape) if spaces.is_pixels else 0
    )
    # Data that cannot be compressed grows by a few bytes in each 16 KiB.
    return steps * step + frames + frames // 1000
