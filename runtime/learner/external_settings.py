"""Settings of an external trainer: only the actors are ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from runtime.errors import ExperimentError
from runtime.experiment.learner import UpdaterSettings

if TYPE_CHECKING:
    from runtime.learner.in_place import InPlaceUpdater


class ExternalSettings(UpdaterSettings):
    """Settings of an external trainer, which samples with `nitro_rl.ActorPool`."""

    has_instance: ClassVar[bool] = False
    is_external: ClassVar[bool] = True
    unread: ClassVar[tuple[str, ...]] = (
        "learner.instance_types",
        "learner.market",
        "learner.device",
        "learner.threads",
    )

    def make(self, learner: Any, remote: Any) -> InPlaceUpdater:
        """Always raises, because nothing here trains.

        Raises:
            ExperimentError: Always.
        """
        raise ExperimentError(
            "learner.kind = external: only nitro_rl.ActorPool samples with it, for a trainer of your "
            "own; allowed for train: any other"
        )
