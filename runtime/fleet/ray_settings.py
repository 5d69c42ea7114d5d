"""Settings of the fleet on a Ray cluster."""

from __future__ import annotations

from typing import ClassVar

from runtime.fleet import FleetSetup
from runtime.ports.fleet import Fleet
from runtime.settings.fleet import RaySection


class RaySettings(RaySection):
    """Settings for actors that are tasks of a Ray cluster."""

    title: ClassVar[str] = "the Ray cluster"
    unread: ClassVar[tuple[str, ...]] = ("learner.market",)

    def make(self, setup: FleetSetup) -> Fleet:
        """Joins the cluster, or starts one.

        Raises:
            FleetError: The cluster does not answer, or has no room for a single actor.
        """
        from runtime.fleet.ray_cluster import RayFleet

        return RayFleet(setup, address=self.address, cpus_per_task=self.cpus_per_actor)
