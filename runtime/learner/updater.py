"""The updater that trains in this process, at once."""

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
    """Trains one learner on each batch within `submit`; see `runtime.learner.interfaces.Updater`.

    Attributes:
        learner: The learner.
        ended: Updates that `poll` has not returned yet.
    """

    def __init__(self, learner: Learner) -> None:
        """Takes over a learner.

        Args:
            learner: Only this updater may train it from now on.
        """
        self.learner = learner
        self.ended: list[Update] = []

    @property
    def policy_version(self) -> int:
        """The learner's version."""
        return self.learner.policy_version

    def weights(self) -> bytes:
        """The learner's policy as a WEIGHTS message."""
        return self.learner.weights()

    def assemble(
        self, trajectories: Sequence[Trajectory], spaces: Spaces, *, clip_rewards: bool
    ) -> Batch:
        """Stacks the trajectories."""
        return assemble_batch(trajectories, spaces, clip_rewards=clip_rewards)

    def submit(self, batch: Batch, *, progress: float) -> None:
        """Trains on the batch. `poll` returns the update."""
        self.ended.append(self.learner.update(batch, progress=progress))

    def poll(self, timeout_s: float) -> list[Update]:
        """Returns the updates since the last call. Never waits, as no update is ever under way."""
        ended, self.ended = self.ended, []
        return ended

    def replay(self, *, progress: float) -> Update | None:
        """Makes the learner replay, and returns the update, which `poll` does not return."""
        return self.learner.replay(progress=progress)

    def curvature_problem(self, objective: str, samples: DetectorSamples) -> CurvatureProblem:
        """Returns the learner's objective at its current policy."""
        return self.learner.curvature_problem(objective, samples)

    def get_state(self) -> State:
        """Returns the learner's state."""
        return self.learner.get_state()

    def set_state(self, state: State) -> None:
        """Sets the learner's state, and drops updates that `poll` has not returned."""
        self.learner.set_state(state)
        self.ended.clear()

    def close(self) -> None:
        """Does nothing: the learner's creator ends its processes."""
