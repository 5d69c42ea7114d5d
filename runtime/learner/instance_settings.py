"""Settings of the updater that trains in place, which has no keys of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from runtime.settings.updater import UpdaterSettings

if TYPE_CHECKING:
    from runtime.learner.updater import InPlaceUpdater
    from runtime.ports.learning import StepwiseLearner


class InstanceSettings(UpdaterSettings):
    """Settings of training where the loop runs."""

    is_exact: ClassVar[bool] = True
    is_tabled: ClassVar[bool] = True

    def make(self, learner: StepwiseLearner, remote: None) -> InPlaceUpdater:
        """Makes the updater."""
        from runtime.learner.updater import InPlaceUpdater

        return InPlaceUpdater(learner)
