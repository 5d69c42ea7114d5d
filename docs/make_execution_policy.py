"""Writes docs/reference/execution_policy_*.json: rights with which CloudFormation can make and delete the stacks.

    python docs/make_execution_policy.py

CloudFormation's schema of each resource type lists the actions of its handlers, and IAM's reference what these depend
on. The policies allow calls that concern kinds of resources in the templates, on this project's names. AWS draws the
ids of network parts, so actions on these have no narrower resource. A policy may have 6,144 characters, so there are
two.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from stacks.assembly import make_app  # noqa: E402
from tests.simulators.rehearsal.rehearsal import experiment  # noqa: E402
from tests.stacks.iam.database import (  # noqa: E402
    all_actions,
    arn_patterns,
    dependent_actions,
    schema_of,
)

POLICIES = ROOT / "docs" / "reference"
CHARACTERS_MAX = 6144
"""IAM User Guide, "IAM and AWS STS quotas": of a managed policy, without white space."""
_HANDLERS = ("create", "read", "update", "delete")
_SERVICES = {
    "StepFunctions": "states",
    "ApplicationAutoScaling": "application-autoscaling",
}
"""IAM's names of services that CloudFormation names otherwise."""
_NAMES = {
    **dict.fromkeys(
        (
            "AlarmName",
            "DashboardName",
            "FunctionName",
            "GroupFriendlyName",
            "InstanceProfileNameWithPath",
            "LogGroupName",
            "RoleNameWithPath",
            "RuleName",
            "StateMachineName",
            "TableName",
            "TopicName",
        ),
        "Nitro*",
    ),
    **dict.fromkeys(("ServerlessCacheName", "UserGroupId", "UserId"), "nitro-*"),
    "BucketName": "nitroresults-*",
    "BudgetName": "*",
}
"""Names of this project's resources, by the placeholder of the Service Authorization Reference."""
_NOT_USED = re.compile(
    r"autoscaling:.*(LoadBalancer|TrafficSource).*|dynamodb:(\w*Item|Query|Scan|ImportTable|.*Replica)"
    r"|iam:((Attach|Detach)RolePolicy|DeleteRolePermissionsBoundary)"
    r"|lambda:(Put|Delete)\w*CodeSigning.*|s3:(DeleteObject|PutObjectAcl|.*MetadataTable.*)"
)
"""Handlers' actions for features that no template has, such as importing a table's items or deleting objects.
Roles have only inline policies, and none loses its boundary."""
_WITHOUT_NAMES = ("ec2", "application-autoscaling")
_ROLES, _FUNCTIONS = "arn:aws:iam::*:role/", "arn:aws:lambda:*:*:function:"
BEYOND_HANDLERS = {
    "iam:PassRole": [f"{_ROLES}Nitro*"],
    "iam:CreateServiceLinkedRole": [f"{_ROLES}aws-service-role/*"],
    "lambda:InvokeFunction": [f"{_FUNCTIONS}NitroGuard-*"],
    **dict.fromkeys(
        ("s3:GetObject", "s3:GetObjectVersion"), ["arn:aws:s3:::cdk-hnb659fds-assets-*/*"]
    ),
    "ssm:GetParameters": [
        "arn:aws:ssm:*:*:parameter/cdk-bootstrap/*",
        "arn:aws:ssm:*::parameter/aws/service/ecs/*",
    ],
    **dict.fromkeys(
        ("ecr:GetRepositoryPolicy", "ecr:SetRepositoryPolicy"),
        ["arn:aws:ecr:*:*:repository/cdk-hnb659fds-*"],
    ),
}
"""Rights that do not concern the stack's own resources. CloudFormation invokes the guard, which answers as a custom
resource. It reads templates' parameters and the functions' code. Lambda Developer Guide, "Create a Lambda function
using a container image": who makes a function needs ecr:GetRepositoryPolicy and ecr:SetRepositoryPolicy."""
CONDITIONS: dict[str, dict[str, Any]] = {
    "iam:PassRole": {
        "StringEquals": {
            "iam:PassedToService": [f"{name}.amazonaws.com" for name in ("ec2", "lambda", "states")]
        }
    },
    "iam:CreateServiceLinkedRole": {
        "StringEquals": {
            "iam:AWSServiceName": [
                f"{name}.amazonaws.com"
                for name in (
                    "autoscaling",
                    "elasticache",
                    "lambda.application-autoscaling",
                    "spot",
                )
            ]
        }
    },
}
"""Of actions that could make the stacks' roles useful to others."""
_OWN = {"StringLike": {"aws:ResourceTag/aws:cloudformation:stack-name": "Nitro*"}}
"""CloudFormation tags with it what it makes, as far as the schema of the kind says so."""
VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"cache": "none", "learner": "function", "provisioned": 0, "update_s": 100, "deadline_s": 60},
    {"cache": "none", "learner": "external", "deadline_s": 60},
)
"""Experiments that have every kind of resource."""


def resource_types() -> set[str]:
    """Returns the types of all resources in the templates of `VARIANTS` and the shared stacks."""
    settings = json.loads((ROOT / "cdk.json").read_text())["context"]
    found: set[str] = set()
    for variant in VARIANTS:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "hopper.yaml"
            file.write_text(experiment(**variant))
            context = {**settings, "experiment": str(file), "mail": "mail@project.example"}
            directory = Path(make_app(context).synth().directory)
            for template in directory.glob("*.template.json"):
                resources = json.loads(template.read_text())["Resources"].values()
                found |= {one["Type"] for one in resources}
    return {kind for kind in found if kind.startswith("AWS::")}


def rights(kinds: set[str]) -> dict[str, list[str]]:
    """Returns the resources of each action that CloudFormation needs for these types."""
    services = {
        _SERVICES.get(name, name.lower()) for name in (kind.split("::")[1] for kind in kinds)
    }
    found = dict(BEYOND_HANDLERS)
    for action in sorted(set(_handler_actions(kinds))):
        service = action.partition(":")[0]
        if service not in services or action in BEYOND_HANDLERS or _NOT_USED.fullmatch(action):
            continue
        if "*" in action:
            found[action] = ["*"]
        elif action in all_actions(service) and (resources := _resources(action)):
            found[action] = resources
    wide = [action.rstrip("*") for action in found if action.endswith("*")]
    return {
        action: resources
        for action, resources in found.items()
        if action.endswith("*") or not action.startswith(tuple(wide))
    }


def conditions(kinds: set[str]) -> dict[str, dict[str, Any]]:
    """Returns the conditions of actions: network parts are deleted only with the tag of a stack of this project."""
    own = {
        action: _OWN
        for kind in kinds
        if kind.startswith("AWS::EC2::")
        and schema_of(kind).get("tagging", {}).get("cloudFormationSystemTags")
        for action in schema_of(kind)["handlers"]["delete"]["permissions"]
        if action.lower() == f"ec2:delete{kind.rpartition(':')[2]}".lower()
    }
    return CONDITIONS | own


def _handler_actions(kinds: set[str]) -> Iterator[str]:
    for kind in kinds:
        handlers = schema_of(kind).get("handlers", {})
        for name in _HANDLERS:
            for action in handlers.get(name, {}).get("permissions", ()):
                yield action
                if action in all_actions(action.partition(":")[0]):
                    yield from dependent_actions(action)


def _resources(action: str) -> list[str]:
    """Returns the ARNs of this project that an action may concern; none if it concerns only other kinds."""
    patterns = arn_patterns(action)
    if not patterns or action.partition(":")[0] in _WITHOUT_NAMES:
        return ["*"]
    known = {"Partition": "aws", "Region": "*", "Account": "*"}
    found = set()
    for pattern in patterns:
        own = [name for name in re.findall(r"\$\{(\w+)\}", pattern) if name not in known]
        if any(name in _NAMES for name in own):
            found.add(
                re.sub(
                    r"\$\{(\w+)\}", lambda one: known.get(one[1], _NAMES.get(one[1], "*")), pattern
                )
            )
    return sorted(found)


def policies(
    allowed: dict[str, list[str]], limits: dict[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    """Returns policy documents, each within IAM's limit, with one statement for each set of resources and condition."""
    by_resources: dict[tuple[tuple[str, ...], str], list[str]] = defaultdict(list)
    for action, resources in sorted(allowed.items()):
        by_resources[tuple(resources), json.dumps(limits.get(action))].append(action)
    documents: list[dict[str, Any]] = []
    for (resources, limit), actions in sorted(by_resources.items(), key=lambda pair: pair[1]):
        statement = {"Effect": "Allow", "Action": actions, "Resource": list(resources)}
        if limit != "null":
            statement["Condition"] = json.loads(limit)
        last = documents[-1] if documents else {"Statement": []}
        longer = {"Version": "2012-10-17", "Statement": [*last["Statement"], statement]}
        if documents and len(json.dumps(longer, separators=(",", ":"))) <= CHARACTERS_MAX:
            documents[-1] = longer
        else:
            documents.append({"Version": "2012-10-17", "Statement": [statement]})
    return documents


def main() -> None:
    """Writes the policies."""
    for old in POLICIES.glob("execution_policy_*.json"):
        old.unlink()
    kinds = resource_types()
    for number, document in enumerate(policies(rights(kinds), conditions(kinds)), 1):
        path = POLICIES / f"execution_policy_{number}.json"
        path.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
