"""Plays batched environments outside of rounds: a trial of a few steps, and whole episodes of an evaluation."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from lambda_actor.errors import UnusableEnvironmentError
from lambda_actor.policy import Policy
from runtime.gmi.worlds.batched import WorldsStep, make_worlds

_WORLDS, _STEPS = 4, 8
"""Size of a trial."""
_ACTION_STREAM = 0xAC70
_UNLIMITED_EPISODE_STEPS_MAX = 10_000
"""Length limit for episodes of environments without a time limit."""


class WorldsTasks:
    """Tasks with a batched environment, in a process of its own; see `runtime.training.environment_process`.

    Attributes:
        unclear: Tasks whose errors do not name the environment.
    """

    unclear = ()

    def __init__(
        self, say: Callable[[str, Any], None], made: Mapping[str, Any], device: str
    ) -> None:
        """Takes the function that sends a message, and two arguments of `make_worlds`."""
        self._say = say
        self._made = made
        self._device = device
        self._evaluate: WorldsEvaluator | None = None

    def play(self) -> dict[str, Any]:
        """Plays a few steps with random actions.

        Returns:
            ``observation_size``, ``action_size``, ``steps_max`` (None if unknown), and seconds of a world's step as
            ``step_s``.

        Raises:
            UnusableEnvironmentError: It cannot be made, or is unusable.
        """
        self._say("doing", "being imported and made")
        name, device = self._made["id"], self._device
        worlds = make_worlds(self._made, _WORLDS, device, seed=0)
        chance = torch.Generator().manual_seed(0)
        began_s = time.monotonic()
        for step in range(_STEPS):
            actions = torch.randn((_WORLDS, worlds.action_size), generator=chance).to(device)
            before = worlds.state()
            found = WorldsStep(*(tensor.clone() for tensor in worlds.step(actions)))
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
                        f"environment.id = {name!r}: after set_state(state()), step {step + 1} differs; allowed: a "
                        "state() that is complete and shares no memory with the environment, or neither of the two"
                    )
        return {
            "observation_size": worlds.observation_size,
            "action_size": worlds.action_size,
            "steps_max": worlds.steps_max,
            "step_s": (time.monotonic() - began_s) / (_STEPS * _WORLDS),
        }

    def evaluate(self, weights: str, fresh: int | None, **settings: Any) -> dict[str, Any]:
        """Evaluates a policy, a WEIGHTS message in Base64; the rest are arguments of `WorldsEvaluator`."""
        began_s = time.process_time()
        if self._evaluate is None:
            self._evaluate = WorldsEvaluator(self._made, self._device, **settings)
        self._say("doing", "being evaluated")
        returns, lengths = self._evaluate(base64.b64decode(weights), fresh=fresh)
        seconds = time.process_time() - began_s
        return {"returns": returns, "lengths": lengths, "seconds": seconds}


class WorldsEvaluator:
    """Evaluates policies in a batched environment of its own, a whole episode in each world.

    If the environment has a state, episodes begin where they began the first time. Fresh ones, and those of an
    environment without a state, are the next that begin.
    """

    def __init__(
        self,
        made: Mapping[str, Any],
        device: str,
        episodes: int,
        *,
        seed: int,
        is_stochastic: bool = False,
    ) -> None:
        """Makes the environment.

        Args:
            made: See `make_worlds`.
            device: ``cpu`` or ``cuda``.
            episodes: Its worlds.
            seed: Seed of the environment and of sampled actions.
            is_stochastic: Sample the actions, as in training.
        """
        self._worlds = make_worlds(made, episodes, device, seed)
        self._first = self._worlds.state()
        self._is_new = True
        self._seed = seed
        self._device = device
        self._is_stochastic = is_stochastic

    def __call__(self, weights: bytes, *, fresh: int | None) -> tuple[list[float], list[int]]:
        """Plays the episodes; returns their returns and lengths.

        Args:
            weights: A WEIGHTS message.
            fresh: Seed for fresh episodes; None for the usual ones.
        """
        policy, worlds = Policy.from_bytes(weights), self._worlds
        entropy = (_ACTION_STREAM, self._seed, *(() if fresh is None else (fresh,)))
        stream = np.random.default_rng(entropy)
        # Otherwise the current episodes do not count.
        is_whole = np.full(worlds.count, self._is_new)
        if fresh is None and self._first:
            worlds.set_state(self._first)
            is_whole[:] = True
        self._is_new = False
        is_done, lengths = np.zeros_like(is_whole), np.zeros(worlds.count, np.int64)
        returns, limit = np.zeros(worlds.count), worlds.steps_max or _UNLIMITED_EPISODE_STEPS_MAX
        while not is_done.all():
            outputs = policy.outputs_together(list(worlds.now.observations.cpu().numpy()))
            if self._is_stochastic:
                noise = policy.noise(stream, worlds.count)
                outputs = np.stack(policy.sample_together(outputs, noise))
            step = worlds.step(torch.from_numpy(outputs).to(self._device))
            counts = is_whole & ~is_done
            returns[counts] += step.rewards.cpu().numpy()[counts]
            lengths[counts] += 1
            is_over = (step.terminated | step.timed_out).cpu().numpy()
            is_done |= counts & (is_over | (lengths >= limit))
            is_whole |= is_over
        if not np.isfinite(returns).all():
            raise UnusableEnvironmentError("a reward of an evaluated episode is not finite")
        return returns.tolist(), lengths.tolist()
