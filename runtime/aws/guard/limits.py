"""An account's limits on what may run: functions and vCPUs at once, and with which key for disks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from runtime.aws.asking import ask, ask_if_there
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


def unreserved_concurrency(client: Callable[[str], Any]) -> int:
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


def vcpus(
    client: Callable[[str], Any], names: Iterable[str], market: str
) -> dict[str, tuple[int, float]]:
    """Returns each type's vCPUs, and how many its family's quota allows.

    Raises:
        AccountError: The account does not answer, or the region has no such type.
        ExperimentError: A family's quota is unknown.
    """
    codes = {name: vcpu_quota(name, market) for name in names}
    types = ask(lambda: client("ec2").describe_instance_types(InstanceTypes=list(codes)))[
        "InstanceTypes"
    ]
    needed = {one["InstanceType"]: one["VCpuInfo"]["DefaultVCpus"] for one in types}

    def allowed(code: str) -> float:
        found = ask_if_there(
            lambda: client("service-quotas").get_service_quota(ServiceCode="ec2", QuotaCode=code)
        )
        # Where the account has no value of its own, EC2 itself refuses what is too much.
        return float(found["Quota"]["Value"]) if found else math.inf

    quotas = {code: allowed(code) for code in set(codes.values())}
    return {name: (needed[name], quotas[code]) for name, code in codes.items()}


def vcpu_refusal(found: Mapping[str, tuple[int, float]], market: str, where: str) -> str:
    """Returns why none of these types may be launched, and what to do; empty if one fits its quota.

    Args:
        found: From `vcpus`.
        market: ``on_demand`` or ``spot``.
        where: The account or region, for people.
    """
    if not found or any(needed <= allowed for needed, allowed in found.values()):
        return ""
    needs = "; ".join(
        f"{name} has {needed} vCPUs, the quota {vcpu_quota(name, market)} allows {allowed:g}"
        for name, (needed, allowed) in found.items()
    )
    return (
        f"learner.instance_types: none may be launched in {where}: {needs}. Ask for more under Service Quotas, "
        "Amazon EC2"
    )


def disk_key_refusal(client: Callable[[str], Any]) -> str:
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
