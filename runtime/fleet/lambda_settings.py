"""Settings of the fleet on AWS Lambda, which has no keys of its own."""

from __future__ import annotations

from typing import ClassVar

from runtime.experiment.fleet import FleetSettings
from runtime.fleet import FleetSetup
from runtime.fleet.interfaces import Fleet


class LambdaSettings(FleetSettings):
    """Settings for actors that are invocations of a function."""

    unread: ClassVar[tuple[str, ...]] = ("fleet.processes",)

    def make(self, setup: FleetSetup) -> Fleet:
        """Makes the fleet, which invokes `FleetSetup.function_arn`."""
        from runtime.fleet.aws_lambda import LambdaFleet

        return LambdaFleet(
            setup.function_arn, timeout_s=setup.timeout_s, concurrency=setup.concurrency
        )
