"""The updates of a round: trains on arrived trajectories, within the time limit, and keeps records."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from runtime.errors import NotFiniteError
from runtime.experiment.algorithm import AlgorithmSettings
from runtime.fleet.actors import Trajectory
from runtime.fleet.episodes import OpenEpisodes
from runtime.learner.interfaces import Batch, Update, UpdateMetrics
from runtime.training.progress import Progress

if TYPE_CHECKING:
    from runtime.learner.updaters import Updater

TimeLimit = Callable[[float, str], AbstractContextManager[None]]
"""Takes seconds and a name; the context raises `BudgetError` when its block takes longer."""
_EPISODE_FIELDS = ("episode_returns", "episode_lengths", "episode_first_versions", "policy_version")


@dataclass
class RoundTraining:
    """The updates of one round.

    Attributes:
        learn_s: Seconds that they took.
        env_steps: Environment steps that were trained on for the first time.
        episodes_dropped: Episodes that were begun and will not be finished.
        trajectories: Trajectories that were trained on for the first time.
        replayed: Trajectories that were trained on again.
        gradient_steps: Gradient steps of the updates.
        samples_trained: Samples of these steps; each pass over a sample counts.
    """

    learn_s: float = 0.0
    env_steps: int = 0
    episodes_dropped: int = 0
    trajectories: int = 0
    replayed: int = 0
    gradient_steps: int = 0
    samples_trained: int = 0
    episodes: list[Mapping[str, np.ndarray]] = field(default_factory=list)
    metrics: list[UpdateMetrics] = field(default_factory=list)
    staleness: list[np.ndarray] = field(default_factory=list)
    columns: Mapping[str, Any] = field(default_factory=dict)

    def add(self, update: Update, samples: int, algorithm: AlgorithmSettings) -> None:
        """Adds an update on this many samples."""
        self.metrics.append(update.metrics)
        self.staleness.append(update.staleness)
        self.columns = update.columns
        if update.is_replay:
            self.replayed += len(update.staleness)
        else:
            self.trajectories += len(update.staleness)
        self.samples_trained += algorithm.passes * samples
        self.gradient_steps += algorithm.passes * math.ceil(samples / algorithm.minibatch_steps)

    def add_episodes(self, trajectories: Iterable[Trajectory]) -> None:
        """Records the episodes that ended in these trajectories, which are not kept."""
        self.episodes += [
            {name: trajectory[name] for name in _EPISODE_FIELDS} for trajectory in trajectories
        ]

    @property
    def episode_returns(self) -> list[float]:
        """Returns of the ended episodes."""
        return [float(value) for episodes in self.episodes for value in episodes["episode_returns"]]

    @property
    def episode_lengths(self) -> list[int]:
        """Lengths of the ended episodes, in steps."""
        return [int(steps) for episodes in self.episodes for steps in episodes["episode_lengths"]]

    @property
    def episodes_spanning_versions(self) -> int:
        """Number of ended episodes that an older policy version began."""
        return sum(
            int((episodes["episode_first_versions"] != episodes["policy_version"]).sum())
            for episodes in self.episodes
        )

    @property
    def mean_metrics(self) -> UpdateMetrics:
        """Means over the updates, with the last one's learning rate."""
        means: dict[str, Any] = {
            name: mean([getattr(metrics, name) for metrics in self.metrics])
            for name in vars(self.metrics[-1])
        }
        return UpdateMetrics(**means | {"learning_rate": self.metrics[-1].learning_rate})


@dataclass(frozen=True)
class Updating:
    """Gives batches to the updater and takes its updates.

    Attributes:
        updater: Trains the policy.
        assemble: Makes a batch of trajectories.
        algorithm: Determines passes and minibatches.
        episodes: Stores the episodes that trained trajectories leave open.
        progress: Counts the environment steps.
        time_limit: Ends an update that takes too long.
        clock: Monotonic seconds.
    """

    updater: Updater
    assemble: Callable[[Sequence[Trajectory]], Batch]
    algorithm: AlgorithmSettings
    episodes: OpenEpisodes
    progress: Progress
    time_limit: TimeLimit
    clock: Callable[[], float]

    def train(
        self, trajectories: Sequence[Trajectory], training: RoundTraining, limit_s: float
    ) -> Update:
        """Trains on these trajectories once, and stores the episodes that they left open.

        Args:
            training: The round's record.
            limit_s: Longest that it may take.

        Raises:
            NotFiniteError: Training diverged.
        """
        batch = self.assemble(trajectories)
        with self.limited(training, limit_s):
            update = self.updater.train(batch, progress=self.progress.fraction)
        self.record(update, len(update.samples.advantages), training)
        training.add_episodes(trajectories)
        training.env_steps += batch.env_steps
        self.progress.env_steps_total += batch.env_steps
        training.episodes_dropped += self.episodes.take_dropped() + sum(
            steps < self.progress.fragment_steps for steps in batch.lengths.tolist()
        )
        self.episodes.take_over(trajectories)
        return update

    def replay(self, training: RoundTraining, limit_s: float) -> bool:
        """Trains again on trajectories that the updater keeps; returns False if it may not.

        Raises:
            NotFiniteError: Training diverged.
        """
        with self.limited(training, limit_s):
            update = self.updater.replay(progress=self.progress.fraction)
        if update is None:
            return False
        self.record(update, len(update.samples.advantages), training)
        return True

    @contextmanager
    def limited(self, training: RoundTraining, limit_s: float) -> Iterator[None]:
        """A block that updates the policy within a time limit, and counts its seconds.

        Raises:
            BudgetError: It took longer.
            NotFiniteError: Training diverged.
        """
        started_s = self.clock()
        with self.time_limit(limit_s, "the update"):
            try:
                yield
            except NotFiniteError as error:
                raise self._diverged(str(error)) from None
        training.learn_s += self.clock() - started_s

    def record(self, update: Update, samples: int, training: RoundTraining) -> None:
        """Checks an update on this many samples, and adds it to the round's record.

        Raises:
            NotFiniteError: Training diverged.
        """
        self.check_finite(vars(update.metrics))
        training.add(update, samples, self.algorithm)

    def check_finite(self, figures: Mapping[str, float | None]) -> None:
        """Checks figures of the updater.

        Raises:
            NotFiniteError: One of them is not finite: training diverged.
        """
        for name, value in figures.items():
            if value is not None and not math.isfinite(value):
                raise self._diverged(f"{name} is {value}")

    def _diverged(self, what: str) -> NotFiniteError:
        return NotFiniteError(
            f"training diverged in round {self.progress.current_round}: {what}. Rewards may be too large "
            f"(algorithm.normalize_rewards: true scales them), or algorithm.learning_rate. "
            "The last checkpoint is from before that round"
        )


def mean(values: Sequence[float | None]) -> float | None:
    """Returns the mean of the known values; None if there are none."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
