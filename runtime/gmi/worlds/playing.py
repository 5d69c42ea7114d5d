"""Plays batched environments outside of rounds: a trial of a few steps, and whole episodes of an evaluation."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from lambda_actor.errors import UnusableEnvironmentError
from runtime.gmi.worlds.batched import Worlds, make_worlds

_WORLDS, _STEPS = 4, 8
"""Size of a trial."""


def try_worlds(made: Mapping[str, Any], device: str) -> dict[str, Any]:
    """Plays a few steps with random actions.

    Args:
        made: See `make_worlds`.
        device: ``cpu`` or ``cuda``.

    Returns:
        ``observation_size``, ``action_size``, ``steps_max`` (None if unknown), and seconds of a world's step as
        ``step_s``.

    Raises:
        UnusableEnvironmentError: It cannot be made, or is unusable.
    """
    name = made["id"]
    worlds = make_worlds(made, _WORLDS, device, seed=0)
    chance = torch.Generator().manual_seed(0)
    began_s = time.monotonic()
    for step in range(_STEPS):
        actions = torch.randn((_WORLDS, worlds.action_size), generator=chance).to(device)
        before = worlds.state()
        found = worlds.step(actions)
        for what in ("observations", "rewards"):
            if not bool(getattr(found, what).isfinite().all()):
                raise UnusableEnvironmentError(
                    f"environment.id = {name!r}: {what} of step {step + 1} are not finite; allowed: finite numbers"
                )
        if before and device == "cpu":
            worlds.set_state(before)
            again = worlds.step(actions)
            if not all(map(torch.equal, found, again)):
                raise UnusableEnvironmentError(
                    f"environment.id = {name!r}: after set_state(state()), step {step + 1} differs; allowed: a state() "
                    "that is complete and shares no memory with the environment, or neither of the two"
                )
    return {
        "observation_size": worlds.observation_size,
        "action_size": worlds.action_size,
        "steps_max": worlds.steps_max,
        "step_s": (time.monotonic() - began_s) / (_STEPS * _WORLDS),
    }


def play_episodes(
    worlds: Worlds, act: Callable[[np.ndarray], np.ndarray], *, is_fresh: bool, steps_max: int
) -> tuple[list[float], list[int]]:
    """Plays a whole episode in each world.

    Args:
        worlds: The worlds.
        act: Returns actions, float32 ``[W, A]``, for observations, float32 ``[W, O]``.
        is_fresh: Whether all are at the start of an episode. Otherwise the current episodes do not count.
        steps_max: Most steps of an episode.

    Returns:
        Returns and lengths.
    """
    is_whole = np.full(worlds.count, is_fresh)
    is_done = np.zeros_like(is_whole)
    totals, lengths = np.zeros(worlds.count), np.zeros(worlds.count, np.int64)
    while not is_done.all():
        actions = torch.from_numpy(act(worlds.observations.cpu().numpy()))
        step = worlds.step(actions.to(worlds.observations.device))
        counts = is_whole & ~is_done
        totals[counts] += step.rewards.cpu().numpy()[counts]
        lengths[counts] += 1
        is_over = (step.terminated | step.timed_out).cpu().numpy()
        is_done |= counts & (is_over | (lengths >= steps_max))
        is_whole |= is_over
    return totals.tolist(), lengths.tolist()
