"""Settings of the updater that trains in place, which has no keys of its own."""

from __future__ import annotations

from typing import Any, ClassVar

from runtime.experiment.learner import UpdaterSettings
from runtime.learner.interfaces import Updater


class InstanceSettings(UpdaterSettings):
    """Settings for training where the loop runs."""

    is_exact: ClassVar[bool] = True

    def make(self, learner: Any, remote: Any) -> Updater:
        """Makes the updater."""
        from runtime.learner.updater import InPlaceUpdater

        return InPlaceUpdater(learner)
