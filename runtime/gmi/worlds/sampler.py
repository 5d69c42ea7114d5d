"""Plays rounds in all worlds of an instance: samples are made, and trained on, where the worlds are.

A step is: the policy acts, the worlds step, the samples are kept. Everything is written into the same tensors in each
round, and episodes are counted there too. The host waits for the device once a round.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from lambda_actor.errors import UnusableEnvironmentError
from lambda_actor.policy import LOG_2PI
from runtime.gmi.worlds.batched import Worlds
from runtime.learner.actor_critic import OBSERVATION_CLIP, ActorCritic
from runtime.learner.graphs import graphed
from runtime.learner.interfaces import Batch

_NOISE_STREAM = 0x301D
_FLOATS = {
    "observations": "an observation",
    "followers": "a next observation",
    "rewards": "a reward",
}
_COUNTED = ("returns", "lengths", "first_versions")
"""What is counted of each episode."""


class Sampler:
    """Plays rounds; a round's samples are overwritten by the next.

    Attributes:
        worlds: The worlds.
        round_index: The last round played; 0 before the first.
        episodes: Returns float64, lengths and first versions int64 of the episodes that ended in that round.
        play_s: Seconds that it took.
    """

    def __init__(self, worlds: Worlds, steps: int) -> None:
        """Reserves memory for a round.

        Args:
            worlds: The worlds.
            steps: ``T``, steps of a round.
        """
        self.worlds = worlds
        self.round_index = 0
        self.play_s = 0.0
        self._steps = steps
        count = worlds.count
        device = worlds.now.rewards.device

        def kept(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.zeros((steps, count, *shape), dtype=dtype, device=device)

        # Samples by step.
        self._kept = {
            "observations": kept(worlds.observation_size),
            "followers": kept(worlds.observation_size),
            "actions": kept(worlds.action_size),
            "log_probs": kept(),
            "rewards": kept(),
            "terminated": kept(dtype=torch.bool),
            "timed_out": kept(dtype=torch.bool),
            "returns": kept(dtype=torch.float64),
            "lengths": kept(dtype=torch.int64),
            "first_versions": kept(dtype=torch.int64),
        }
        self._noise = kept(worlds.action_size)
        # Of the open episodes.
        self._open = {name: torch.zeros_like(self._kept[name][0]) for name in _COUNTED}
        self._actions = torch.zeros_like(self._kept["actions"][0])
        self._step = torch.zeros(1, dtype=torch.int64, device=device)
        self._version = torch.zeros((), dtype=torch.int64, device=device)
        self._mean = torch.zeros(worlds.observation_size, device=device)
        self._inverse_std = torch.ones_like(self._mean)
        self._learner: ActorCritic[Any] | None = None
        self._batch: Batch | None = None
        self.episodes: dict[str, np.ndarray] = {}

    def play(
        self, learner: ActorCritic[Any], round_index: int, *, seed: int, instance: int
    ) -> Batch:
        """Plays a round, or returns its samples once more, for an update that has failed.

        Args:
            learner: Its policy acts.
            round_index: The round.
            seed: The experiment's.
            instance: Which instance's worlds these are.

        Returns:
            Samples on the device of the worlds, valid until the next round.

        Raises:
            UnusableEnvironmentError: An observation or reward is not finite.
        """
        if round_index == self.round_index and self._batch is not None:
            return self._batch
        began_s = time.monotonic()
        with torch.no_grad():
            if learner is not self._learner:
                self._learner = learner
                self._record(learner)
            self._begin(learner, (_NOISE_STREAM, seed, round_index, instance))
            for _ in range(self._steps):
                self._act()
                self.worlds.step(self._actions)
                self._keep()
            self._batch = self._finished(learner.policy_version)
        self.round_index = round_index
        self.play_s = time.monotonic() - began_s
        return self._batch

    def get_state(self) -> dict[str, np.ndarray]:
        """Returns the worlds' state with their open episodes; empty if the environment has none."""
        if not self.worlds.can_save:
            return {}
        tensors = {f"world.{name}": tensor for name, tensor in self.worlds.state().items()}
        tensors |= {f"open.{name}": tensor for name, tensor in self._open.items()}
        return {name: tensor.cpu().numpy().copy() for name, tensor in tensors.items()}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Continues from a state."""
        tensors = {name: torch.from_numpy(array) for name, array in state.items()}
        device = self._step.device
        self.worlds.set_state(
            {
                name.removeprefix("world."): tensor.to(device)
                for name, tensor in tensors.items()
                if name.startswith("world.")
            }
        )
        for name, tensor in self._open.items():
            tensor.copy_(tensors[f"open.{name}"])

    # A round

    def _record(self, learner: ActorCritic[Any]) -> None:
        """Makes graphs for this learner's policy."""
        before = {name: tensor.clone() for name, tensor in self._open.items()}
        device = self._step.device
        self._act = graphed(lambda: self._choose(learner), device)
        self._keep = graphed(self._count, device)
        for name, tensor in self._open.items():
            tensor.copy_(before[name])

    def _begin(self, learner: ActorCritic[Any], entropy: tuple[int, ...]) -> None:
        """Takes over a policy version, and draws the round's noise."""
        (drawn,) = np.random.SeedSequence(entropy).generate_state(1, np.uint64)
        stream = torch.Generator(self._noise.device).manual_seed(int(drawn) >> 1)
        self._noise.normal_(generator=stream)
        self._version.fill_(learner.policy_version)
        self._step.zero_()
        self._open["first_versions"].copy_(
            torch.where(self._open["lengths"] == 0, self._version, self._open["first_versions"])
        )
        if learner.settings.normalize_observations:
            self._mean.copy_(torch.from_numpy(learner.moments.mean))
            self._inverse_std.copy_(torch.from_numpy(1.0 / learner.moments.std))

    def _choose(self, learner: ActorCritic[Any]) -> None:
        """Samples actions for the current observations."""
        observations, log_std = self.worlds.now.observations, learner.policy.log_std
        assert log_std is not None, "actions are continuous"
        inputs = observations
        if learner.settings.normalize_observations:
            inputs = (observations - self._mean) * self._inverse_std
            inputs = inputs.clamp(-OBSERVATION_CLIP, OBSERVATION_CLIP)
        # Module by module: what a compiled function does while a graph is recorded is unknown.
        for layer in learner.policy.layers.children():
            inputs = layer(inputs)
        noise = self._noise.index_select(0, self._step)[0]
        self._actions.copy_(inputs + log_std.exp() * noise)
        squares = noise.square().sum(1) + len(log_std) * LOG_2PI
        self._write("log_probs", -0.5 * squares - log_std.sum())
        self._write("observations", observations)
        self._write("actions", self._actions)

    def _count(self) -> None:
        """Keeps a step, and counts episodes."""
        now, counted = self.worlds.now, self._open
        for name in ("rewards", "terminated", "timed_out", "followers"):
            self._write(name, getattr(now, name))
        counted["returns"].add_(now.rewards)
        counted["lengths"].add_(1)
        for name in _COUNTED:
            self._write(name, counted[name])
        is_over = now.terminated | now.timed_out
        for name in ("returns", "lengths"):
            counted[name].masked_fill_(is_over, 0)
        counted["first_versions"].copy_(
            torch.where(is_over, self._version, counted["first_versions"])
        )
        # Stays in range while a graph is recorded.
        self._step.add_(1).remainder_(self._steps)

    def _write(self, name: str, tensor: torch.Tensor) -> None:
        self._kept[name].index_copy_(0, self._step, tensor[None])

    def _finished(self, policy_version: int) -> Batch:
        """Returns the round's samples, and reads the episodes that ended; here the host waits."""
        kept = self._kept
        ended = kept["terminated"] | kept["timed_out"]
        self.episodes = {name: kept[name][ended].cpu().numpy() for name in _COUNTED}
        wrong = {what: ~kept[name].isfinite() for name, what in _FLOATS.items()}
        firsts = [
            (*mask.nonzero()[0, :2].tolist(), what) for what, mask in wrong.items() if mask.any()
        ]
        if firsts:
            step, world, what = min(firsts)
            raise UnusableEnvironmentError(
                f"the environment returned {what} that is not finite: step {step} of the round, world {world}"
            )
        cut = kept["timed_out"].clone()
        cut[-1] = ~kept["terminated"][-1]
        placed: Any = {
            **{name: kept[name] for name in ("observations", "actions", "log_probs", "terminated")},
            "rewards": kept["rewards"].double(),
            "bootstrap_mask": cut,
            "bootstrap_observations": kept["followers"].transpose(0, 1)[cut.T],
        }
        count = self.worlds.count
        return Batch(
            policy_versions=np.full(count, policy_version, np.int64),
            lengths=np.full(count, self._steps, np.int64),
            **placed,
        )
