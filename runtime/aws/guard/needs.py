"""What an experiment needs of its account: its stack tells the guard, which checks it before anything is made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from runtime.aws.asking import ask, ask_if_there
from runtime.aws.clients import Client
from runtime.errors import ExperimentError
from runtime.experiment.instance_types import series

CONCURRENCY_QUOTA = "L-B99A9384"
"""Code of Lambda's quota *Concurrent executions*."""
UNRESERVABLE_CONCURRENCY = 100
"""Concurrent executions that AWS Lambda keeps free in an account for functions without a reservation."""
AWS_DISK_KEY = "alias/aws/ebs"
"""AWS' own key for disks, which each account has."""
_STANDARD, _GRAPHICS, _TRAINING = "Standard (A, C, D, H, I, M, R, T, Z)", "G and VT", "P"
VCPU_QUOTAS = {
    ("on_demand", _STANDARD): "L-1216C47A",
    ("spot", _STANDARD): "L-34B43A08",
    ("on_demand", _GRAPHICS): "L-DB2E81BA",
    ("spot", _GRAPHICS): "L-3819A6DF",
    ("on_demand", _TRAINING): "L-417A185B",
    ("spot", _TRAINING): "L-7212CCBC",
}
"""Codes of EC2's quotas for running vCPUs, by market and family."""
_SERIES = {
    _STANDARD: ("a", "c", "d", "h", "i", "im", "is", "m", "r", "t", "z"),
    _GRAPHICS: ("g", "gr", "vt"),
    _TRAINING: ("p",),
}
"""Prefixes of instance type names; dl, hpc, inf, trn, x and others have their own quotas."""


def unreserved_concurrency(client: Client) -> int:
    """Returns how many executions no function has reserved.

    Raises:
        AccountError: The account does not answer.
    """
    settings = ask(lambda: client("lambda").get_account_settings())
    return int(settings["AccountLimit"]["UnreservedConcurrentExecutions"])


def vcpu_quota(instance_type: str, market: str) -> str:
    """Returns the code of the service quota for this type's vCPUs.

    Raises:
        ExperimentError: Its family's quota is unknown.
    """
    family = next(
        (family for family, known in _SERIES.items() if series(instance_type) in known), None
    )
    if family is None:
        raise ExperimentError(
            f"learner.instance_types: the quota of {instance_type!r} is not known; allowed: types of "
            "the families A, C, D, G, H, I, M, P, R, T, VT, Z"
        )
    return VCPU_QUOTAS[market, family]


def _vcpu_refusal(client: Client, names: list[str], market: str, region: str) -> str:
    """Returns why none of these types may be launched, and what to do; empty if one fits its quota.

    Raises:
        AccountError: The account does not answer, or the region has no such type.
        ExperimentError: A family's quota is unknown.
    """
    codes = {name: vcpu_quota(name, market) for name in names}
    types = ask(lambda: client("ec2").describe_instance_types(InstanceTypes=names))["InstanceTypes"]

    def quota_of(code: str) -> dict[str, Any] | None:
        quotas = client("service-quotas")
        return ask_if_there(lambda: quotas.get_service_quota(ServiceCode="ec2", QuotaCode=code))

    needs = []
    for one in types:
        name, needed = one["InstanceType"], one["VCpuInfo"]["DefaultVCpus"]
        quota = quota_of(codes[name])
        # Where the account has no value of its own, EC2 itself refuses what is too much.
        allowed = float(quota["Quota"]["Value"]) if quota else math.inf
        if needed <= allowed:
            return ""
        needs.append(f"{name} has {needed} vCPUs, the quota {codes[name]} allows {allowed:g}")
    return (
        f"learner.instance_types: none may be launched in region {region}: {'; '.join(needs)}. Ask for more under "
        "Service Quotas, Amazon EC2"
    )


def _disk_key_refusal(client: Client) -> str:
    """Returns why the account's default key for disks may keep an instance from starting; empty if it is AWS' own.

    Raises:
        AccountError: The account does not answer.
    """
    key = str(ask(lambda: client("ec2").get_ebs_default_kms_key_id())["KmsKeyId"])
    # AWS answers with the alias; its reference promises an ARN.
    if key.endswith(AWS_DISK_KEY):
        return ""
    return (
        f"this account encrypts disks with its own key {key}, with which an Auto Scaling group starts no instance "
        f"unless the key's policy admits it; allowed: -c ebs_key={AWS_DISK_KEY}, which is AWS' key, or "
        f"-c ebs_key={key} if the policy admits AWSServiceRoleForAutoScaling"
    )


_ASK = f"ask for more under Service Quotas, AWS Lambda, Concurrent executions ({CONCURRENCY_QUOTA})"


@dataclass(frozen=True, kw_only=True)
class Needs:
    """Attributes of an experiment, as text: CloudFormation passes nothing else to a custom resource.

    Attributes:
        region: The region whose prices count.
        actors_min: The fewest actors that must run at once; a round with more runs in waves. 0 without a function.
        others: Other functions that run at the same time, including the guard.
        held: Concurrent executions that no other function can use: reserved, or kept warm.
        instance_types: Separated by commas; empty without an instance.
        market: ``on_demand`` or ``spot``.
        settings: Digest of the run, its file and its prices, so that CloudFormation asks after any change of them.
        disk_key: The chosen KMS key of the instance's disk; empty is the account's default.
    """

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

    def refusal(self, client: Client, region: str) -> str:
        """Returns why the account cannot run the experiment, and what to do; empty if it can.

        Args:
            client: Makes boto3 clients by service name.
            region: The guard's region.

        Raises:
            AccountError: The account does not answer.
            ExperimentError: The quota of an instance type is unknown.
        """
        if self.region and self.region != region:
            return (
                f"the template has the prices of {self.region}, and this is {region}; set AWS_REGION={region} and "
                "deploy again"
            )
        refusal = self._refusal_of_concurrency(client) if int(self.actors_min or 0) else ""
        if refusal or not self.instance_types:
            return refusal
        names = self.instance_types.split(",")
        return _vcpu_refusal(client, names, self.market, region) or (
            "" if self.disk_key else _disk_key_refusal(client)
        )

    def _refusal_of_concurrency(self, client: Client) -> str:
        free, held = unreserved_concurrency(client), int(self.held)
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
