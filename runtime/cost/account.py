"""What an AWS account allows, asked before anything in it costs money."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import boto3
import botocore.exceptions

from runtime.config import Experiment
from runtime.cost.prices import PRICES
from runtime.errors import ExperimentError, RunError

BOOTSTRAP_PARAMETER = "/cdk-bootstrap/hnb659fds/version"
_STANDARD, _GRAPHICS, _TRAINING = "Standard (A, C, D, H, I, M, R, T, Z)", "G and VT", "P"
_VCPU_QUOTAS = {
    ("on_demand", _STANDARD): "L-1216C47A", ("spot", _STANDARD): "L-34B43A08",
    ("on_demand", _GRAPHICS): "L-DB2E81BA", ("spot", _GRAPHICS): "L-3819A6DF",
    ("on_demand", _TRAINING): "L-417A185B", ("spot", _TRAINING): "L-7212CCBC",
}
"""Codes of EC2's service quotas: vCPUs that may run at once, by how they are bought and by family."""
_SERIES = {_STANDARD: ("a", "c", "d", "h", "i", "im", "is", "m", "r", "t", "z"), _GRAPHICS: ("g", "gr", "vt"),
           _TRAINING: ("p",)}
"""What an instance type's name begins with; dl, hpc, inf, trn, x and others have quotas of their own."""


class AccountError(RunError):
    """The account cannot be asked, or lacks what a deployment needs."""


@dataclass(frozen=True)
class Account:
    """What the account of the present credentials allows in one region.

    Attributes:
        account_id, region: Which.
        actor_concurrency: Concurrent executions that no other function has reserved.
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


def read_account(session: boto3.Session, experiment: Experiment, *, function: str) -> Account:
    """Asks the account, and checks that the experiment's image and the CDK's own resources are there.

    Args:
        function: Name of the actor function, which an earlier deployment may have made.

    Raises:
        AccountError: There are no usable credentials, the region's prices are not known, something is missing, or not
            one of the instance types may run; the text says what to do.
    """
    learner = experiment.learner
    if session.region_name != PRICES.region:
        raise AccountError(f"region {session.region_name or 'not set'}: its prices are not known; allowed: "
                           f"{PRICES.region}, named by the variable AWS_REGION")
    account_id = _ask(lambda: session.client("sts").get_caller_identity()["Account"])
    _check_parameter(session, BOOTSTRAP_PARAMETER, f"the CDK is not set up in account {account_id}, region "
                     f"{session.region_name}; run once: make bootstrap")
    _check_parameter(session, learner.image_parameter,
                     f"learner.image_parameter = {learner.image_parameter!r} is no SSM parameter in "
                     f"{session.region_name}")
    account = Account(account_id, session.region_name, _concurrency(session, function),
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
    series = re.match(r"[a-z]*", instance_type)[0]
    family = next((family for family, known in _SERIES.items() if series in known), None)
    if family is None:
        raise ExperimentError(f"learner.instance_types: the quota of {instance_type!r} is not known; allowed: types of "
                              "the families A, C, D, G, H, I, M, P, R, T, VT, Z")
    return _VCPU_QUOTAS[market, family]


def _concurrency(session: boto3.Session, function: str) -> int:
    """What is unreserved, and what the actor function has reserved already: a deployment may use it again."""
    client = session.client("lambda")
    unreserved = _ask(lambda: client.get_account_settings()["AccountLimit"]["UnreservedConcurrentExecutions"])
    try:
        own = _ask(lambda: client.get_function_concurrency(FunctionName=function))
    except AccountError as error:
        if isinstance(error.__cause__, client.exceptions.ResourceNotFoundException):
            return unreserved
        raise
    return unreserved + own.get("ReservedConcurrentExecutions", 0)


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
        raise AccountError(f"the AWS account cannot be asked: {error}") from error
