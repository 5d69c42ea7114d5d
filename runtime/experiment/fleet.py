"""Settings that all fleets share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

from runtime.experiment.kinds import Kinds
from runtime.experiment.section import OPEN, Field, Open, Section


class FleetSettings(Section):
    """Base of every fleet's settings, and those of ``auto``. Subclasses may add keys.

    Attributes:
        title: The fleet's name for people.
        backend: Import path of the backend for runs on it, ``module:class``; empty = the default backend.
    """

    backend: ClassVar[str] = ""

    kind: str = Field("", description="where actors run")
    processes: Open[Annotated[int, Field(ge=1, le=1024)]] = Field(
        OPEN,
        description="actor processes of the local fleet, or CPUs of a Ray cluster started here; null = "
        "one per core, in a deployment per vCPU of the smallest instance type. No effect on "
        "synchronous results",
    )
    round_deadline_s: Open[Annotated[int, Field(ge=1, le=3600)]] = Field(
        OPEN,
        description="seconds to wait for actors and their replacements; null = twice actor.timeout_s",
    )

    def contradictions(self, experiment: Any) -> Iterator[str]:
        """Yields a message for each combination of values that cannot work."""
        yield from ()

    def make(self, setup: Any) -> Any:
        """Makes the fleet; see `runtime.fleet.FleetSetup` and `runtime.fleet.interfaces.Fleet`."""
        raise NotImplementedError(f"{type(self).__name__} has no method make")


FLEETS = Kinds(
    "fleet",
    FleetSettings,
    "where actors run; local = where the learner is; lambda = on AWS Lambda; ray = on your Ray cluster; auto = lambda "
    "with a deployed learner, else local",
)
