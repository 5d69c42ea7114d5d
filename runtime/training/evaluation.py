"""Evaluation: whole episodes with the policy's best or sampled actions, and with frozen moments.

Each evaluator has its own environment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from lambda_actor.environments import ActorEnvironment
from lambda_actor.errors import UnusableEnvironmentError, describe_error, note_step
from lambda_actor.frames import FrameStack, floats
from lambda_actor.policy import Policy
from runtime.errors import RunError

_EVALUATION_STREAM, _ACTION_STREAM = 0xE7A1, 0xAC70
UNLIMITED_EPISODE_STEPS_MAX = 10_000
"""Length limit for episodes of environments without a time limit."""


@dataclass(frozen=True)
class Evaluation:
    """Whole episodes in a separate environment, played by `runtime.training.evaluation`.

    Attributes:
        returns: By episode.
        lengths: By episode, in steps.
        seconds: CPU-seconds that it took, including episodes that only led to these.
        steps_before: Steps of those leading episodes.
    """

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    seconds: float = field(default=0.0, compare=False)
    steps_before: int = field(default=0, compare=False)

    @property
    def return_mean(self) -> float:
        return float(np.mean(self.returns))


class Evaluator:
    """Evaluates policies on the same start states each time, or on fresh ones.

    Attributes:
        episode_over: Called after each episode.
    """

    def __init__(
        self,
        environment: ActorEnvironment,
        episodes: int,
        *,
        seed: int,
        is_stochastic: bool = False,
        episode_over: Callable[[], None] = lambda: None,
    ) -> None:
        """Prepares evaluations in a separate environment.

        Args:
            seed: Seed of the start states and of sampled actions.
            is_stochastic: Sample the actions, as in training.
            episode_over: See above.
        """
        self._environment = environment
        self._episodes = episodes
        self._seed = seed
        self._is_stochastic = is_stochastic
        self._episode_over = episode_over

    def __call__(self, weights: bytes, *, fresh: int | None = None) -> Evaluation:
        """Plays the episodes.

        Args:
            weights: A WEIGHTS message.
            fresh: Seed for fresh start states; None for the usual ones.

        Raises:
            UnusableEnvironmentError: The environment raised, or its observations or rewards are not finite.
            SchemaError: The policy does not fit the environment.
        """
        policy = Policy.from_bytes(weights)
        policy.check(self._environment.spaces)
        stream = np.random.default_rng(
            (_EVALUATION_STREAM, self._seed, *(() if fresh is None else (fresh,)))
        )
        try:
            episodes = [
                self._episode(policy, int(seed))
                for seed in stream.integers(2**31, size=self._episodes)
            ]
        except (RunError, UnusableEnvironmentError):
            raise
        except (Exception, SystemExit) as error:
            raise UnusableEnvironmentError(
                f"{self._environment.environment_id} failed while the policy was "
                f"evaluated: {describe_error(error)}"
            ) from error
        if not np.isfinite([total for total, _ in episodes]).all():
            raise UnusableEnvironmentError(
                f"{self._environment.environment_id}: an evaluation's return is not finite"
            )
        return Evaluation(
            tuple(total for total, _ in episodes), tuple(length for _, length in episodes)
        )

    def _episode(self, policy: Policy, seed: int) -> tuple[float, int]:
        stack = FrameStack(self._environment.spaces)
        observation = stack.begin(self._environment.reset(seed))
        limit = self._environment.episode_steps_max or UNLIMITED_EPISODE_STEPS_MAX
        act = _sampling(policy, seed) if self._is_stochastic else policy.best_action
        total, length, is_over = 0.0, 0, False
        while not is_over and length < limit:
            if not np.isfinite(floats(observation, self._environment.spaces)).all():
                # A policy would still choose some action.
                raise UnusableEnvironmentError(
                    f"{self._environment.environment_id}: its observation is not finite "
                    f"after step {length} of an evaluated episode"
                )
            action = act(observation, self._environment.action_mask)
            try:
                frame, reward, terminated, truncated = self._environment.step(action)
            except (Exception, SystemExit) as error:
                note_step(error, length + 1)
                raise
            observation = stack.push(frame)
            total += reward
            length += 1
            is_over = terminated or truncated
        self._episode_over()
        return total, length


def _sampling(
    policy: Policy, seed: int
) -> Callable[[np.ndarray, np.ndarray | None], np.ndarray | int]:
    """Chooses actions like actors, with random numbers for each episode."""
    stream = np.random.default_rng((_ACTION_STREAM, seed))
    return lambda observation, mask: policy.sample(
        policy.outputs(observation, mask), policy.noise(stream, 1)[0]
    )
