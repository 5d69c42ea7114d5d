"""Updaters decide where and when a learner trains: in this process, in functions, or in instances."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from lambda_actor.spaces import Spaces
from runtime.fleet.actors import Trajectory
from runtime.learner.batch import assemble_batch
from runtime.learner.interfaces import (
    Batch,
    CurvatureProblem,
    DetectorSamples,
    Learner,
    Update,
)
from runtime.records.state import State


class Updater(ABC):
    """Turns batches into policy versions.

    Attributes:
        learner: Holds the newest version.
    """

    def __init__(self, learner: Learner) -> None:
        """Takes over a learner.

        Args:
            learner: Only this updater may train it from now on.
        """
        self.learner = learner

    @abstractmethod
    def train(self, batch: Batch, *, progress: float) -> Update:
        """Trains on a batch, and returns the update when it has ended.

        Args:
            batch: The batch, which the updater owns from now on.
            progress: Fraction of the training that is done, 0 to 1, for schedules.

        Raises:
            RunError: The learner is gone.
        """

    def replay(self, *, progress: float) -> Update | None:
        """Trains once more on earlier trajectories, and returns the update. Returns None if there are none to reuse."""
        return self.learner.replay(progress=progress)

    @property
    def policy_version(self) -> int:
        """The newest version."""
        return self.learner.policy_version

    def weights(self) -> bytes:
        """The newest policy as a WEIGHTS message of `lambda_actor.wire`."""
        return self.learner.weights()

    def assemble(
        self, trajectories: Sequence[Trajectory], spaces: Spaces, *, clip_rewards: bool
    ) -> Batch:
        """Returns these trajectories, in their order, as a batch for `train`.

        Args:
            trajectories: Decoded and checked against ``spaces``.
            spaces: The environment's spaces.
            clip_rewards: Whether only the sign of each reward counts.

        Raises:
            CorruptedMessageError: Frames cannot be unpacked.
        """
        return assemble_batch(trajectories, spaces, clip_rewards=clip_rewards)

    def curvature_problem(self, objective: str, samples: DetectorSamples) -> CurvatureProblem:
        """Returns the named objective at the newest policy, as a copy that training does not change."""
        return self.learner.curvature_problem(objective, samples)

    def get_state(self) -> State:
        """Returns the state for resuming."""
        return self.learner.get_state()

    def set_state(self, state: State) -> None:
        """Continues from a state."""
        self.learner.set_state(state)

    def close(self) -> None:  # noqa: B027  # most have nothing to end
        """Ends all training; idempotent."""


class InPlaceUpdater(Updater):
    """Trains the learner in this process."""

    def train(self, batch: Batch, *, progress: float) -> Update:
        """Trains on a batch; see `Updater`."""
        return self.learner.update(batch, progress=progress)
