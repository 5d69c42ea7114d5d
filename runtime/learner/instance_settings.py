"""Settings of the updater that trains in place, which has no keys of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

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
