"""Settings of the learners without functions: where the loop runs, and an external trainer's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from runtime.errors import ExperimentError
from runtime.experiment.learner import UpdaterSettings

if TYPE_CHECKING:
    from runtime.learner.in_place import InPlaceUpdater


class InstanceSettings(UpdaterSettings):
    """Settings for training where the loop runs."""

    is_exact: ClassVar[bool] = True

    def make(self, learner: Any, remote: Any) -> InPlaceUpdater:
        """Makes the updater."""
        from runtime.learner.in_place import InPlaceUpdater

        return InPlaceUpdater(learner)


class ExternalSettings(UpdaterSettings):
    """Settings of an external trainer, which samples with `nitro_rl.ActorPool`."""

    has_instance: ClassVar[bool] = False
    is_external: ClassVar[bool] = True

    def make(self, learner: Any, remote: Any) -> InPlaceUpdater:
        """Always raises, because nothing here trains.

        Raises:
            ExperimentError: Always.
        """
        raise ExperimentError(
            "learner.kind = external: only nitro_rl.ActorPool samples with it, for a trainer of your "
            "own; allowed for train: any other"
        )
