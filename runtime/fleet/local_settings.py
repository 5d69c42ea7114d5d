"""Settings of the fleet on this machine, which has no keys of its own."""

from __future__ import annotations

from runtime.experiment.fleet import FleetSettings
from runtime.fleet import FleetSetup
from runtime.fleet.interfaces import Fleet


class LocalSettings(FleetSettings):
    """Settings for actors that are processes of this machine."""

    def make(self, setup: FleetSetup) -> Fleet:
        """Starts the processes.

        Raises:
            FleetError: A process cannot be started.
        """
        from runtime.fleet.local import LocalFleet

        return LocalFleet(setup)
