"""Synchronous rounds in one process, without fleet, cache and budget, that can be left and taken up again.

What it trains is what `runtime.training.synchronous` trains, bit for bit; tests/end_to_end/test_train.py compares them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lambda_actor.environments import ActorEnvironment, make_environment
from lambda_actor.policy import Policy
from lambda_actor.rollout import Fragment, OpenEpisode, random_streams, roll_out
from runtime.config.schema import Experiment
from runtime.interfaces import Batch, State, Update
from runtime.learner import make_learner
from runtime.learner.actor_critic import ActorCritic
from runtime.learner.batch import assemble_batch


@dataclass(frozen=True)
class Snapshot:
    """A training between two rounds."""

    learner: State
    episodes: tuple[OpenEpisode, ...]
    rounds: int
    env_steps: int


class Trainer:
    """One training.

    Attributes:
        experiment: Fitted to its environment.
        learner: Trains the policy.
        environment: Rolls fragments out.
    """

    def __init__(self, experiment: Experiment) -> None:
        self.environment: ActorEnvironment = make_environment(
            experiment.environment.id, experiment.environment.preprocessing)
        self.experiment = experiment.fitted(self.environment.spaces, preprocessing=self.environment.preprocessing)
        self.learner: ActorCritic = make_learner(self.experiment, self.environment.spaces, device="cpu")
        self._episodes: tuple[OpenEpisode, ...] = ()
        self._rounds, self._env_steps = 0, 0

    def snapshot(self) -> Snapshot:
        return Snapshot(self.learner.get_state(), self._episodes, self._rounds, self._env_steps)

    def restore(self, snapshot: Snapshot) -> None:
        self.learner.set_state(snapshot.learner)
        self._episodes, self._rounds, self._env_steps = snapshot.episodes, snapshot.rounds, snapshot.env_steps

    def roll_out(self, round_index: int, actors: int, *, seed: int | None = None) -> list[Fragment]:
        """The fragments of a round, in slot order; the oldest open episodes go to the lowest slots.

        Args:
            seed: Another one than the experiment's, for other fragments of the same round.
        """
        policy = Policy.from_bytes(self.learner.weights())
        return [roll_out(
            self.environment, policy, fragment_steps=self.experiment.actor.fragment_steps,
            seed=self.experiment.seed if seed is None else seed, round_index=round_index, slot=slot,
            open_episode=self._episodes[slot] if slot < len(self._episodes) else None) for slot in range(actors)]

    def update(self, fragments: list[Fragment], *, minibatch_factor: int = 1) -> Update:
        """One update on these, and what they left open is left open.

        Args:
            minibatch_factor: Minibatches are so many times as large, for this update.
        """
        left = tuple(one.open_episode for one in fragments if one.open_episode is not None)
        batch, stop = self.batch(fragments), self.experiment.stop
        settings = self.learner._settings
        self.learner._settings = settings.model_copy(
            update={"minibatch_steps": minibatch_factor * settings.minibatch_steps})
        update = self.learner.update(batch, progress=max(
            min(1.0, done / limit) if limit else 0.0
            for done, limit in ((self._rounds, stop.max_rounds), (self._env_steps, stop.max_steps))))
        self.learner._settings = settings
        self._episodes = self._episodes[len(fragments):] + left
        self._rounds, self._env_steps = self._rounds + 1, self._env_steps + batch.env_steps
        return update

    def batch(self, fragments: list[Fragment]) -> Batch:
        version = np.int64(self.learner.policy_version)
        return assemble_batch([one.fields() | {"policy_version": version} for one in fragments],
                              self.environment.spaces, clip_rewards=self.experiment.environment.clip_rewards)

    def returns(self, episodes: int, *, seed: int) -> np.ndarray:
        """Returns of whole episodes of the policy as it acts in training, ``[episodes]``; from the seed alone."""
        policy = Policy.from_bytes(self.learner.weights())
        return np.array([self._episode(policy, seed, index) for index in range(episodes)])

    def _episode(self, policy: Policy, seed: int, index: int) -> float:
        noise_stream, seed_stream = random_streams(seed, 0, index)
        observation = self.environment.reset(int(seed_stream.integers(2**31)))
        total, is_over = 0.0, False
        while not is_over:
            for noise in policy.noise(noise_stream, 64):
                action = policy.sample(policy.outputs(observation), noise)
                observation, reward, terminated, truncated = self.environment.step(action)
                total += reward
                if is_over := terminated or truncated:
                    break
        return total
