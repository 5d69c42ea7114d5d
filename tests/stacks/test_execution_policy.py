"""The rights that docs/reference gives CloudFormation: made from today's templates, and enough for them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from runtime.names import SHARED_STACKS
from tests.helpers import ROOT
from tests.simulators.aws.gate import Gate
from tests.simulators.aws.moto_types import EXECUTION_ROLE, REGION, deploy
from tests.stacks.conftest import Assembly, Synthesise
from tests.stacks.iam.policies import Request, Statement, is_allowed, read_statement

sys.path.insert(0, str(ROOT / "docs"))
import make_execution_policy as maker  # noqa: E402

VARIANTS = ("redis", "none", "local", "function", "external")
FILES = sorted((ROOT / "docs" / "reference").glob("execution_policy_*.json"))


@pytest.fixture
def account() -> Iterator[Any]:
    """A simulated account in which IAM judges what CloudFormation calls."""
    with mock_aws():
        Gate(lambda *_: [])
        yield boto3.Session(region_name=REGION).client
    Gate.running = None


def test_they_are_up_to_date(synthesise: Synthesise) -> None:
    made = [synthesise(cache=kind) for kind in VARIANTS]
    kinds = {
        one["Type"]
        for assembly in made
        for template in assembly.directory.glob("*.template.json")
        for one in json.loads(template.read_text())["Resources"].values()
    }
    known = {action for path in FILES for action in _actions(json.loads(path.read_text()))}
    needed = set(maker.rights({kind for kind in kinds if kind.startswith("AWS::")}))
    assert needed <= known, "run python docs/make_execution_policy.py"
    conditions = maker.conditions(kinds)
    for path in FILES:
        for one in json.loads(path.read_text())["Statement"]:
            assert {json.dumps(conditions.get(action)) for action in one["Action"]} == {
                json.dumps(one.get("Condition"))
            }
    for path in FILES:
        text = json.dumps(json.loads(path.read_text()), separators=(",", ":"))
        assert len(text) <= maker.CHARACTERS_MAX


def _actions(document: dict[str, Any]) -> list[str]:
    return [action for one in document["Statement"] for action in one["Action"]]


@pytest.mark.parametrize("kind", VARIANTS)
def test_they_suffice_to_make_and_delete_the_stacks(
    account: Any, synthesise: Synthesise, kind: str
) -> None:
    _give(account, [path.read_text() for path in FILES])
    made = synthesise(cache=kind)
    _deploy_all(account, made)
    formation = account("cloudformation")
    for name in (made.stack, *reversed(SHARED_STACKS)):
        formation.delete_stack(StackName=name)
    assert formation.describe_stacks()["Stacks"] == []


@pytest.mark.parametrize(
    "action", ["lambda:InvokeFunction", "iam:PassRole", "autoscaling:CreateAutoScalingGroup"]
)
def test_without_one_of_them_a_stack_fails(
    account: Any, synthesise: Synthesise, action: str
) -> None:
    _give(account, [path.read_text().replace(f'"{action}"', '"sts:None"') for path in FILES])
    with pytest.raises(ClientError, match=action):
        _deploy_all(account, synthesise(cache="none"))


def _statements(files: list[Path]) -> list[Statement]:
    return [
        read_statement(one, str)
        for path in files
        for one in json.loads(path.read_text())["Statement"]
    ]


@pytest.mark.parametrize(
    "action",
    ["cloudformation:CreateChangeSet", "cloudformation:DeleteStack", "iam:DeleteRole"],
)
def test_a_bootstrap_of_ones_own_name_can_be_made_and_deleted_after_it_has_failed(
    action: str,
) -> None:
    statements = _statements([FILES[0].with_name("bootstrap_policy.json")])
    stack = "arn:aws:cloudformation:us-east-1:123456789012:stack/CDKToolkit-acme/1"
    role = "arn:aws:iam::123456789012:role/cdk-hnb659fds-deploy-role"
    assert is_allowed(statements, Request(action, role if "iam:" in action else stack))


_NETWORK = "aws:ResourceTag/aws:cloudformation:stack-name"
_ROLE, _VPC = "arn:aws:iam::123456789012:role/Nitro-x", "arn:aws:ec2:us-east-1:123456789012:vpc/v"
_LINKED = "arn:aws:iam::123456789012:role/aws-service-role/{0}/{0}"


@pytest.mark.parametrize(
    ("action", "resource", "key", "allowed", "denied"),
    [
        (
            "iam:PassRole",
            _ROLE,
            "iam:PassedToService",
            "lambda.amazonaws.com",
            "glue.amazonaws.com",
        ),
        ("ec2:DeleteVpc", _VPC, _NETWORK, "NitroNetwork", "Production"),
        ("ec2:DeleteSubnet", _VPC, _NETWORK, "NitroNetwork", "Production"),
        (
            "iam:CreateServiceLinkedRole",
            _LINKED.format("elasticache.amazonaws.com"),
            "iam:AWSServiceName",
            "elasticache.amazonaws.com",
            "organizations.amazonaws.com",
        ),
    ],
)
def test_they_reach_no_services_and_networks_of_others(
    action: str, resource: str, key: str, allowed: str, denied: str
) -> None:
    statements = _statements(FILES)
    answers = [
        is_allowed(statements, Request(action, resource, context))
        for context in ({key: (allowed,)}, {key: (denied,)}, {})
    ]
    assert answers == [True, False, False]
    assert not is_allowed(statements, Request("iam:AttachRolePolicy", _ROLE))
    assert not is_allowed(statements, Request("iam:DeleteRolePermissionsBoundary", _ROLE))


def _deploy_all(account: Any, made: Assembly) -> None:
    for name in (*SHARED_STACKS, made.stack):
        deploy(account, made.directory / f"{name}.template.json", name)


def _give(account: Any, documents: list[str]) -> None:
    roles = account("iam")
    roles.create_role(RoleName=EXECUTION_ROLE, AssumeRolePolicyDocument="{}")
    for number, document in enumerate(documents):
        roles.put_role_policy(
            RoleName=EXECUTION_ROLE, PolicyName=f"part-{number}", PolicyDocument=document
        )
