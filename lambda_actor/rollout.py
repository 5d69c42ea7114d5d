"""One fragment: exactly ``fragment_steps`` steps of one policy version in one environment."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from lambda_actor import wire
from lambda_actor.environments import ActorEnvironment
from lambda_actor.errors import NonFiniteTrajectoryError
from lambda_actor.policy import GaussianPolicy

NO_BYTES = np.empty(0, np.uint8)
EPISODE_BYTES_MAX = 2**20
"""Larger states are refused: each actor's traffic is paid for, and its worst case is reserved in the budget."""
_STOP_CHECK_STEPS = 64


@dataclass(frozen=True)
class OpenEpisode:
    """An episode that the next fragment can continue.

    Attributes:
        observation: The observation that it stands at, raw, float32 ``[O]``.
        state: The environment's state (see `ActorEnvironment.get_state`).
        return_so_far: Sum of its rewards until now.
        length: Its steps until now.
        first_version: The policy version that took its first step.
    """

    observation: np.ndarray
    state: dict[str, np.ndarray]
    return_so_far: float
    length: int
    first_version: int

    def to_bytes(self) -> bytes:
        """Raises: OversizedMessageError: Over `EPISODE_BYTES_MAX`."""
        return wire.encode(wire.Kind.EPISODE, {
            "observation": self.observation,
            "return_so_far": np.float64(self.return_so_far),
            "length": np.int64(self.length),
            "first_version": np.int64(self.first_version),
            **{wire.STATE_PREFIX + name: value for name, value in self.state.items()},
        }, bytes_max=EPISODE_BYTES_MAX)

    @classmethod
    def from_bytes(cls, data: bytes) -> OpenEpisode:
        """Raises: any `WireError`."""
        fields = wire.decode(data, wire.Kind.EPISODE)
        prefix = wire.STATE_PREFIX
        return cls(
            observation=fields["observation"],
            state={name[len(prefix):]: value for name, value in fields.items() if name.startswith(prefix)},
            return_so_far=float(fields["return_so_far"]),
            length=int(fields["length"]),
            first_version=int(fields["first_version"]),
        )


@dataclass(frozen=True)
class Fragment:
    """What one actor brings back; arrays as in the TRAJECTORY schema of `lambda_actor.wire`."""

    observations: np.ndarray
    actions: np.ndarray
    log_probs: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    bootstrap_steps: np.ndarray
    bootstrap_observations: np.ndarray
    episode_returns: np.ndarray
    episode_lengths: np.ndarray
    episode_first_versions: np.ndarray
    open_episode: OpenEpisode | None


def random_streams(seed: int, round_index: int, slot: int) -> tuple[np.random.Generator, np.random.Generator]:
    """The generators of action noise and of environment seeds for one slot of one round.

    They depend on these three numbers alone, so that a replaced actor brings back the very trajectory that the
    failed one would have.
    """
    action, environment = np.random.SeedSequence((seed, round_index, slot)).spawn(2)
    return np.random.default_rng(action), np.random.default_rng(environment)


def roll_out(
    environment: ActorEnvironment,
    policy: GaussianPolicy,
    *,
    fragment_steps: int,
    seed: int,
    round_index: int,
    slot: int,
    open_episode: OpenEpisode | None = None,
    truncate_at_fragment: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
) -> Fragment:
    """Samples ``fragment_steps`` steps, continuing ``open_episode`` first if there is one.

    Args:
        truncate_at_fragment: Abandon the episode at the end instead of leaving it open.
        should_stop: Asked about once a second; True ends the fragment with `InterruptedError`.

    Raises:
        NonFiniteTrajectoryError: NaN or infinity in observations, actions or rewards.
        InterruptedError: ``should_stop`` said so.
    """
    noise_stream, seed_stream = random_streams(seed, round_index, slot)
    noise = noise_stream.standard_normal((fragment_steps, policy.action_size), dtype=np.float32)
    observations = np.empty((fragment_steps, policy.observation_size), np.float32)
    actions = np.empty((fragment_steps, policy.action_size), np.float32)
    rewards = np.empty(fragment_steps, np.float64)
    terminated = np.zeros(fragment_steps, np.bool_)
    truncated = np.zeros(fragment_steps, np.bool_)
    bootstraps: list[tuple[int, np.ndarray]] = []
    finished: list[tuple[float, int, int]] = []

    def fresh_episode() -> tuple[np.ndarray, float, int, int]:
        return environment.reset(int(seed_stream.integers(2**31))), 0.0, 0, policy.policy_version

    if open_episode is None:
        observation, episode_return, length, first_version = fresh_episode()
    else:
        environment.set_state(open_episode.state)
        observation, episode_return = open_episode.observation, open_episode.return_so_far
        length, first_version = open_episode.length, open_episode.first_version

    next_stop_check = time.monotonic() + 1.0
    for step in range(fragment_steps):
        if step % _STOP_CHECK_STEPS == 0 and time.monotonic() > next_stop_check:
            if should_stop():
                raise InterruptedError("nobody waits for this trajectory any more")
            next_stop_check = time.monotonic() + 1.0
        observations[step] = observation
        action = policy.mean_action(observation) + policy.std * noise[step]
        actions[step] = action
        observation, rewards[step], terminated[step], truncated[step] = environment.step(action)
        episode_return += rewards[step]
        length += 1
        if terminated[step] or truncated[step]:
            if not terminated[step]:
                bootstraps.append((step, observation))
            finished.append((episode_return, length, first_version))
            if step + 1 < fragment_steps:
                observation, episode_return, length, first_version = fresh_episode()

    remaining = None
    if not (terminated[-1] or truncated[-1]):
        bootstraps.append((fragment_steps - 1, observation))
        if environment.can_save_episode and not truncate_at_fragment:
            remaining = OpenEpisode(observation, environment.get_state(), float(episode_return), length,
                                    first_version)
    bootstrap_observations = np.array([o for _, o in bootstraps], np.float32).reshape(-1, policy.observation_size)
    bootstrap_steps = np.array([s for s, _ in bootstraps], np.int64)
    every_step = np.arange(fragment_steps)
    _require_finite("observations", observations, every_step)
    _require_finite("actions", actions, every_step)
    _require_finite("rewards", rewards, every_step)
    _require_finite("bootstrap_observations", bootstrap_observations, bootstrap_steps)
    return Fragment(
        observations=observations, actions=actions, log_probs=policy.log_probs(noise), rewards=rewards,
        terminated=terminated, truncated=truncated,
        bootstrap_steps=bootstrap_steps,
        bootstrap_observations=bootstrap_observations,
        episode_returns=np.array([r for r, _, _ in finished], np.float64),
        episode_lengths=np.array([n for _, n, _ in finished], np.int64),
        episode_first_versions=np.array([v for _, _, v in finished], np.int64),
        open_episode=remaining,
    )


def _require_finite(name: str, array: np.ndarray, steps: np.ndarray) -> None:
    if not np.isfinite(array).all():
        row = int(np.argwhere(~np.isfinite(array))[0][0])
        raise NonFiniteTrajectoryError(f"{name} is not finite at step {steps[row]} of the fragment")
