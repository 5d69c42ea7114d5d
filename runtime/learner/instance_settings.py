"""Settings of the updater that trains in place, which has no keys of its own."""

from __future__ import annotations

from typing import Any, ClassVar

from runtime.ports.learning import Updater
from runtime.settings.updater import UpdaterSettings


class InstanceSettings(UpdaterSettings):
    """Settings for training where the loop runs."""

    is_exact: ClassVar[bool] = True

    def make(self, learner: Any, remote: Any) -> Updater:
        """Makes the updater."""
        from runtime.learner.updater import InPlaceUpdater

        return InPlaceUpdater(learner)
