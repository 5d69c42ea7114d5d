"""The base of updaters, which decide where and when a learner trains. By itself it trains here, at once."""

from __future__ import annotations

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


class InPlaceUpdater:
    """Turns batches into policy versions: trains one learner on each batch within `submit`.

    Attributes:
        learner: The learner.
        ended: Updates that `poll` has not returned yet.
        plays: Whether it also plays the rounds, without actors.
    """

    plays = False

    def __init__(self, learner: Learner) -> None:
        """Takes over a learner.

        Args:
            learner: Only this updater may train it from now on.
        """
        self.learner = learner
        self.ended: list[Update] = []

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
        """Returns these trajectories, in their order, as a batch for `submit`.

        Args:
            trajectories: Decoded and checked against ``spaces``.
            spaces: The environment's spaces.
            clip_rewards: Whether only the sign of each reward counts.

        Raises:
            CorruptedMessageError: Frames cannot be unpacked.
        """
        return assemble_batch(trajectories, spaces, clip_rewards=clip_rewards)

    def submit(self, batch: Batch, *, progress: float) -> None:
        """Takes a batch for training. A subclass may return before training ends.

        Args:
            batch: The batch, which the updater owns from now on.
            progress: Fraction of the training that is done, 0 to 1, for schedules.

        Raises:
            RunError: The learner is gone.
        """
        self.ended.append(self.learner.update(batch, progress=progress))

    def poll(self, timeout_s: float) -> list[Update]:
        """Returns the updates that have ended since the last call, oldest first.

        Args:
            timeout_s: Seconds to wait for the first one, if none has ended yet and one is under way.

        Raises:
            RunError: The learner is gone.
        """
        ended = self.ended
        self.ended = []
        return ended

    def replay(self, *, progress: float) -> Update | None:
        """Trains once more on earlier trajectories, and returns the update. Returns None if there are none to reuse."""
        return self.learner.replay(progress=progress)

    def curvature_problem(self, objective: str, samples: DetectorSamples) -> CurvatureProblem:
        """Returns the named objective at the newest policy, as a copy that training does not change."""
        return self.learner.curvature_problem(objective, samples)

    def get_state(self) -> State:
        """Returns the state for resuming. Call it only when no update is under way."""
        return self.learner.get_state()

    def set_state(self, state: State) -> None:
        """Continues from a state, and drops updates that `poll` has not returned."""
        self.learner.set_state(state)
        self.ended.clear()

    def close(self) -> None:
        """Ends all training; idempotent."""
