"""What an AWS account allows, asked before anything in it costs money."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import boto3
import botocore.exceptions

from runtime.config import Experiment
from runtime.errors import ExperimentError, RunError

BOOTSTRAP_PARAMETER = "/cdk-bootstrap/hnb659fds/version"
_STANDARD, _GRAPHICS, _TRAINING = "Standard (A, C, D, H, I, M, R, T, Z)", "G and VT", "P"
_VCPU_QUOTAS = {
    ("on_demand", _STANDARD): "L-1216C47A", ("spot", _STANDARD): "L-34B43A08",
    ("on_demand", _GRAPHICS): "L-DB2E81BA", ("spot", _GRAPHICS): "L-3819A6DF",
    ("on_demand", _TRAINING): "L-417A185B", ("spot", _TRAINING): "L-7212CCBC",
}
"""Codes of EC2's service quotas: vCPUs that may run at once, by how they are bought and by family."""


class AccountError(RunError):
    """The account cannot be asked, or lacks what a deployment needs."""


@dataclass(frozen=True)
class Account:
    """What the account of the present credentials allows in one region.

    Attributes:
        account_id, region: Which.
        actor_concurrency: Concurrent executions that no function has reserved.
        vcpus: By instance type, its own vCPUs and those that the quota of its family allows.
    """

    account_id: str
    region: str
    actor_concurrency: int
    vcpus: Mapping[str, tuple[int, float]]

    @property
    def usable_types(self) -> list[str]:
        """The instance types of which one fits into its quota."""
        return [name for name, (needed, allowed) in self.vcpus.items() if needed <= allowed]


def read_account(session: boto3.Session, experiment: Experiment) -> Account:
    """Asks the account, and checks that the experiment's image and the CDK's own resources are there.

    Raises:
        AccountError: There are no usable credentials, something is missing, or not one of the instance types may run;
            the text says what to do.
    """
    learner = experiment.learner
    if session.region_name is None:
        raise AccountError("no AWS region is set; name one with the variable AWS_DEFAULT_REGION")
    account_id = _ask(lambda: session.client("sts").get_caller_identity()["Account"])
    _check_parameter(session, BOOTSTRAP_PARAMETER, f"the CDK is not set up in account {account_id}, region "
                     f"{session.region_name}; run once: make bootstrap")
    _check_parameter(session, learner.image_parameter,
                     f"learner.image_parameter = {learner.image_parameter!r} is no SSM parameter in "
                     f"{session.region_name}")
    limits = _ask(lambda: session.client("lambda").get_account_settings()["AccountLimit"])
    account = Account(account_id, session.region_name, limits["UnreservedConcurrentExecutions"],
                      _vcpus(session, learner.instance_types, learner.market))
    if not account.usable_types:
        needs = "; ".join(f"{name} has {needed} vCPUs, the quota {vcpu_quota(name, learner.market)} allows {allowed:g}"
                          for name, (needed, allowed) in account.vcpus.items())
        raise AccountError(f"learner.instance_types: none may be launched in account {account_id}, region "
                           f"{session.region_name}: {needs}. Ask for more under Service Quotas, Amazon EC2")
    return account


def vcpu_quota(instance_type: str, market: str) -> str:
    """Code of the service quota that bounds this type's vCPUs.

    Raises:
        ExperimentError: Its family has a quota that is not known here.
    """
    series = instance_type.rstrip("0123456789").partition(".")[0]
    letters = "".join(c for c in series if c.isalpha() or c == "-")
    family = {"g": _GRAPHICS, "v": _GRAPHICS, "p": _TRAINING}.get(letters[:1])
    if family is None and letters[:1] in tuple("acdhimrtz"):
        family = _STANDARD
    if family is None:
        raise ExperimentError(f"learner.instance_types: the quota of {instance_type!r} is not known; allowed: types of "
                              "the families A, C, D, G, H, I, M, P, R, T, VT, Z")
    return _VCPU_QUOTAS[market, family]


def _vcpus(session: boto3.Session, names: tuple[str, ...], market: str) -> dict[str, tuple[int, float]]:
    types = _ask(lambda: session.client("ec2").describe_instance_types(InstanceTypes=list(names)))["InstanceTypes"]
    needed = {one["InstanceType"]: one["VCpuInfo"]["DefaultVCpus"] for one in types}
    quotas = session.client("service-quotas")
    codes = {name: vcpu_quota(name, market) for name in names}
    allowed = {code: _ask(lambda code=code: quotas.get_service_quota(ServiceCode="ec2", QuotaCode=code))
               for code in set(codes.values())}
    return {name: (needed[name], allowed[codes[name]]["Quota"]["Value"]) for name in names}


def _check_parameter(session: boto3.Session, name: str, problem: str) -> None:
    client = session.client("ssm")
    try:
        _ask(lambda: client.get_parameter(Name=name))
    except AccountError as error:
        if isinstance(error.__cause__, client.exceptions.ParameterNotFound):
            raise AccountError(problem) from None
        raise


def _ask(question: Callable[[], Any]) -> Any:
    try:
        return question()
    except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as error:
        raise AccountError(f"AWS does not answer as it must: {error}") from error
