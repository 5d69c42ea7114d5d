"""What an experiment needs of its account: its stack tells the guard, which checks it before anything is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from runtime.aws.clients import Client
from runtime.aws.guard.limits import (
    CONCURRENCY_QUOTA,
    UNRESERVABLE_CONCURRENCY,
    disk_key_refusal,
    unreserved_concurrency,
    vcpu_refusal,
    vcpus,
)

_ASK = f"ask for more under Service Quotas, AWS Lambda, Concurrent executions ({CONCURRENCY_QUOTA})"


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Attributes of an experiment, as text: CloudFormation passes nothing else to a custom resource.

    Attributes:
        run: Name of the run.
        budget_usd: Its budget.
        region: The region whose prices count.
        actors_min: The fewest actors that must run at once; a round with more runs in waves. 0 without a function.
        others: Other functions that run at the same time, including the guard.
        held: Concurrent executions that no other function can use: reserved, or kept warm.
        instance_types: Separated by commas; empty without an instance.
        market: ``on_demand`` or ``spot``.
        settings: Digest of the experiment file and its prices, so that CloudFormation asks after any change of them.
        disk_key: The chosen KMS key of the instance's disk; empty is the account's default.
    """

    run: str
    budget_usd: str
    region: str
    actors_min: str
    others: str
    held: str
    instance_types: str
    market: str
    settings: str = ""
    disk_key: str = ""

    def properties(self) -> dict[str, str]:
        """Returns them as properties of a custom resource."""
        return {_property(name): value for name, value in asdict(self).items()}

    @classmethod
    def read(cls, properties: Mapping[str, Any]) -> Needs:
        """Reads a custom resource's properties; one that an older checkout did not write is empty."""
        return cls(
            **{one.name: str(properties.get(_property(one.name), "")) for one in fields(cls)}
        )

    def refusal(self, client: Client, region: str, *, held_already: int = 0) -> str:
        """Returns why the account cannot run the experiment, and what to do; empty if it can.

        Args:
            client: Makes boto3 clients by service name.
            region: The guard's region.
            held_already: Executions that the stack holds before an update.

        Raises:
            AccountError: The account does not answer.
            ExperimentError: The quota of an instance type is unknown.
        """
        if self.region and self.region != region:
            return (
                f"the template has the prices of {self.region}, and this is {region}; set AWS_REGION={region} and "
                "deploy again"
            )
        refusal = (
            self._refusal_of_concurrency(client, held_already) if int(self.actors_min or 0) else ""
        )
        if refusal or not self.instance_types:
            return refusal
        found = vcpus(client, self.instance_types.split(","), self.market)
        return vcpu_refusal(found, self.market, f"region {region}") or (
            "" if self.disk_key else disk_key_refusal(client)
        )

    def _refusal_of_concurrency(self, client: Client, held_already: int) -> str:
        free, held = unreserved_concurrency(client) + held_already, int(self.held)
        most = max(0, free - UNRESERVABLE_CONCURRENCY)
        if held > most:
            return (
                f"actor.provisioned: {held} functions are to be kept warm or reserved, and Lambda leaves "
                f"{UNRESERVABLE_CONCURRENCY} of this account's {free} concurrent executions unreserved; allowed: "
                f"actor.provisioned up to {most}; or {_ASK}"
            )
        needed = int(self.actors_min) + int(self.others)
        if not held and free < needed:
            return (
                f"this account runs {free} functions at once, and the experiment needs {needed}: {self.actors_min} "
                f"for actors, and {self.others} for the guard and others; {_ASK}"
            )
        return ""


def _property(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))
