"""Settings of the three fleets, by ``fleet.kind``."""

from __future__ import annotations

import re
from typing import Annotated

import pydantic

from runtime.experiment.fleet import FleetSettings
from runtime.experiment.section import Field
from runtime.fleet import FleetSetup
from runtime.fleet.interfaces import Fleet

_ADDRESS = re.compile(r"[^/\s]+:[0-9]{1,5}")


class LocalSettings(FleetSettings):
    """Settings for actors that are processes of this machine, which have no keys of their own."""

    def make(self, setup: FleetSetup) -> Fleet:
        """Starts the processes.

        Raises:
            FleetError: A process cannot be started.
        """
        from runtime.fleet.local import LocalFleet

        return LocalFleet(setup)


class LambdaSettings(FleetSettings):
    """Settings for actors that are invocations of a function on AWS Lambda, without keys of their own."""

    def make(self, setup: FleetSetup) -> Fleet:
        """Makes the fleet, which invokes `FleetSetup.function`."""
        from runtime.fleet.aws_lambda import LambdaFleet

        return LambdaFleet(setup.function, timeout_s=setup.timeout_s, concurrency=setup.concurrency)


class RaySettings(FleetSettings):
    """Settings for actors that are tasks of a Ray cluster."""

    address: Annotated[str, Field(min_length=1)] | None = Field(
        None,
        description="HOST:PORT of a cluster that includes this machine; auto = the one running here; null "
        "= start one for this run",
    )
    cpus_per_actor: Annotated[float, Field(gt=0, le=1024)] = Field(
        1.0, description="CPUs per actor or learner function"
    )
    nodes: Annotated[int, Field(ge=1, le=100_000)] | None = Field(
        None,
        description="nodes to bill (the cluster's maximum if it grows); null = those present at the start",
    )
    node_usd_per_hour: Annotated[float, Field(gt=0, le=10_000)] | None = Field(
        None,
        description="null = price of the first of learner.instance_types",
    )

    @pydantic.field_validator("address")
    @classmethod
    def _is_address(cls, address: str | None) -> str | None:
        if address not in (None, "auto") and not _ADDRESS.fullmatch(address):
            raise ValueError(
                f"fleet.address = {address} is not one of a cluster's; allowed: null | auto | "
                "HOST:PORT, on a machine that is a node of it"
            )
        return address

    def make(self, setup: FleetSetup) -> Fleet:
        """Joins the cluster, or starts one.

        Raises:
            FleetError: The cluster does not answer, or has no room for a single actor.
        """
        from runtime.fleet.ray_cluster import RayFleet

        return RayFleet(setup, address=self.address, cpus_per_task=self.cpus_per_actor)
