"""Trains synchronous rounds in one process, without fleet, cache and budget, with snapshots.

It uses a run's own parts: the actor's rollout, `runtime.training.updating`, the learner. The result is identical to
synchronous pacing to the bit, as tests/papers/test_trainer.py checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lambda_actor.environments import ActorEnvironment, make_environment
from lambda_actor.handler import trajectory_fields
from lambda_actor.policy import Policy
from lambda_actor.rollout import OpenEpisode, roll_out
from runtime.config.schema import Experiment
from runtime.learner import LearnerSpec, make_learner
from runtime.learner.actor_critic import ActorCritic
from runtime.learner.batch import assemble_batch
from runtime.learner.updater import InPlaceUpdater
from runtime.ports.learning import Batch, State, Update
from runtime.ports.sampling import Trajectory
from runtime.sampling.episodes import OpenEpisodes
from runtime.training.evaluation import Evaluator
from runtime.training.progress import Progress
from runtime.training.timing import Timing
from runtime.training.updating import RoundTraining, Updating


class _Ignored:
    """Discards events."""

    def append(self, kind: str, **fields: Any) -> None:
        pass


@dataclass(frozen=True)
class Snapshot:
    """A training between two rounds."""

    learner: State
    episodes: State
    progress: dict[str, Any]


class Trainer:
    """One training.

    Attributes:
        experiment: Fitted to its environment.
        learner: Trains the policy.
        environment: Rolls fragments out.
    """

    def __init__(self, experiment: Experiment) -> None:
        self.environment: ActorEnvironment = make_environment(
            experiment.environment.id, experiment.environment.preprocessing
        )
        self.experiment = experiment.fitted(
            self.environment.spaces, preprocessing=self.environment.preprocessing
        )
        self.learner = self._make_learner(self.experiment)
        self._episodes = OpenEpisodes(_Ignored())
        self._progress = Progress(experiment.stop, experiment.actor.fragment_steps)

    def snapshot(self) -> Snapshot:
        return Snapshot(
            self.learner.get_state(), self._episodes.get_state(), self._progress.get_state()
        )

    def restore(self, snapshot: Snapshot) -> None:
        self.learner.set_state(snapshot.learner)
        self._episodes.set_state(snapshot.episodes)
        self._progress.set_state(snapshot.progress)

    def roll_out(
        self, round_index: int, actors: int, *, seed: int | None = None
    ) -> list[Trajectory]:
        """Returns a round's trajectories in slot order. The oldest open episodes go to the lowest slots.

        Args:
            seed: Overrides the experiment's seed, for other fragments of the same round.
        """
        policy, steps = (
            Policy.from_bytes(self.learner.weights()),
            self.experiment.actor.fragment_steps,
        )
        seed, waiting, trajectories = (
            self.experiment.seed if seed is None else seed,
            self._episodes.waiting,
            [],
        )
        for slot in range(actors):
            episode = waiting[slot] if slot < len(waiting) else None
            fragment = roll_out(
                self.environment,
                policy,
                fragment_steps=steps,
                seed=seed,
                round_index=round_index,
                slot=slot,
                open_episode=OpenEpisode.from_bytes(episode.data) if episode else None,
            )
            trajectories.append(
                trajectory_fields(
                    {
                        "invocation_id": f"{slot}",
                        "round_index": round_index,
                        "slot": slot,
                        "policy_version": self.learner.policy_version,
                        "episode_id": episode.episode_id if episode else "",
                    },
                    fragment,
                )
            )
        return trajectories

    def update(self, trajectories: Sequence[Trajectory], *, minibatch_factor: int = 1) -> Update:
        """Makes one update on these trajectories, and keeps their open episodes.

        Args:
            minibatch_factor: Factor of the minibatch size for this update.
        """
        learner = self.learner
        if minibatch_factor != 1:
            learner = self._make_learner(
                _with_larger_minibatches(self.experiment, minibatch_factor)
            )
            learner.set_state(self.learner.get_state())
        update = Updating(
            InPlaceUpdater(learner),
            self._episodes,
            self._progress,
            self.environment.spaces,
            self.experiment,
            Timing(),
        ).train(trajectories, RoundTraining(), 0.0)
        self._progress.round_index += 1
        if learner is not self.learner:
            self.learner.set_state(learner.get_state())
        return update

    def batch(self, trajectories: Sequence[Trajectory]) -> Batch:
        return assemble_batch(
            trajectories,
            self.environment.spaces,
            clip_rewards=self.experiment.environment.clip_rewards,
        )

    def returns(self, episodes: int, *, seed: int) -> np.ndarray:
        """Returns returns of whole episodes with the policy's training actions, ``[episodes]``, from the seed alone."""
        evaluate = Evaluator(self.environment, episodes, seed=seed, is_stochastic=True)
        return np.array(evaluate(self.learner.weights()).returns)

    def _make_learner(self, experiment: Experiment) -> ActorCritic:
        learner: ActorCritic = make_learner(
            LearnerSpec(
                experiment.algorithm,
                self.environment.spaces,
                experiment.network.kind,
                experiment.seed,
                experiment.learner.threads,
            ),
            device="cpu",
        )
        return learner


def _with_larger_minibatches(experiment: Experiment, factor: int) -> Experiment:
    algorithm = experiment.algorithm
    settings = algorithm.chosen.model_copy(
        update={"minibatch_steps": factor * algorithm.chosen.minibatch_steps}
    )
    return experiment.model_copy(
        update={"algorithm": algorithm.model_copy(update={algorithm.chosen_key: settings})}
    )
