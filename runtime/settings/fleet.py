"""Settings that all fleets share, and the keys of a Ray cluster, which several packages read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

import pydantic

from runtime.settings.kinds import Kinds
from runtime.settings.section import Field, Section

_ADDRESS = re.compile(r"[^/\s]+:[0-9]{1,5}")


class FleetSettings(Section):
    """Base of every fleet's settings. Keys of a subclass form a section of their own inside ``fleet``.

    Attributes:
        title: The fleet's name for people.
        unread: Dotted keys of the experiment that no run on this fleet reads.
        backend: Import path of the backend for runs on it, ``module:class``; empty = the default backend.
    """

    title: ClassVar[str] = "the fleet"
    unread: ClassVar[tuple[str, ...]] = ()
    backend: ClassVar[str] = ""

    def contradictions(self, experiment: Any) -> Iterator[str]:
        """Yields a message for each combination of values that cannot work."""
        yield from ()

    def make(self, setup: Any) -> Any:
        """Makes the fleet; see `runtime.fleet.FleetSetup` and `runtime.ports.fleet.Fleet`."""
        raise NotImplementedError


class RaySection(FleetSettings):
    """Settings of a Ray cluster, and its cost."""

    address: Annotated[str, Field(min_length=1)] | None = Field(
        None,
        description="HOST:PORT of a cluster that includes this machine; auto = the cluster running here; null = "
        "start one here for this run, with fleet.processes CPUs",
    )
    cpus_per_actor: Annotated[float, Field(gt=0, le=1024)] = Field(
        1.0, description="CPUs per actor or learner function"
    )
    nodes: Annotated[int, Field(ge=1, le=100_000)] | None = Field(
        None,
        description="nodes to bill while the run uses the cluster (its maximum if it grows); null = those "
        "present at the start",
    )
    node_usd_per_hour: Annotated[float, Field(gt=0, le=10_000)] | None = Field(
        None,
        description="dollars per node and hour; null = price of the first of learner.instance_types",
    )

    @pydantic.field_validator("address")
    @classmethod
    def _is_address(cls, address: str | None) -> str | None:
        if address not in (None, "auto") and not _ADDRESS.fullmatch(address):
            raise ValueError(
                f"fleet.ray.address = {address} is not one of a cluster's; allowed: null | auto | "
                "HOST:PORT, on a machine that is a node of it"
            )
        return address


FLEETS = Kinds("fleet", FleetSettings)
