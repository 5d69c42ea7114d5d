"""Writes docs/reference/deployer_policy.json and bootstrap_policy.json: the rights for deploying and bootstrapping.

    python docs/make_deployer_policy.py

Both are derived from recorded calls: scenarios play `make deploy`, `status`, `logs`, `results`, `stop`, `make
first-deployment` and `nitro_rl.ActorPool` in the simulated account, and the CDK's own command line bootstraps it.
Everything is permitted while recording. The policies then allow the recorded calls on this project's names.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import yaml  # noqa: E402

from stacks.deploy.cdk import run_cdk  # noqa: E402
from tests.simulators.aws.moto_server import CREDENTIALS, REGION, MotoServer  # noqa: E402
from tests.simulators.rehearsal.account import DEPLOYER, DEPLOYER_POLICY, let_in  # noqa: E402
from tests.simulators.rehearsal.recording import decisions  # noqa: E402
from tests.simulators.rehearsal.rehearsal import Rehearsal  # noqa: E402
from tests.simulators.rehearsal.scenarios import SCENARIOS  # noqa: E402
from tests.stacks.iam.database import all_actions, arn_patterns, schema_of  # noqa: E402

VERSION = "2012-10-17"
EVERYTHING = json.dumps(
    {"Version": VERSION, "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
)
BOOTSTRAP_POLICY = DEPLOYER_POLICY.with_name("bootstrap_policy.json")
NOT_PLAYED: Mapping[str, set[str]] = {
    "sts:AssumeRole": {"arn:aws:iam::*:role/cdk-hnb659fds-*"},
    "pricing:GetProducts": {"*"},
    "cloudformation:DescribeStacks": {"*"},
    "cloudformation:DeleteStack": {"arn:aws:cloudformation:*:*:stack/Nitro-*/*"},
    "cloudformation:ListStackResources": {"arn:aws:cloudformation:*:*:stack/Nitro-*/*"},
}
"""Rights beyond the recorded calls. The scenario prints the CDK's commands instead of running them. `cdk deploy` uses
the bootstrap's roles, whose names begin like this (AWS CDK Developer Guide, "Bootstrap your environment"). `make
deploy` also asks for prices, while the scenario has a file of them. `stop` names
the stacks that there are if there is none of that name, deletes a stack itself if the guard is silent, and names what
could not be deleted."""
BOOTSTRAPPED = {
    "s3": "arn:aws:s3:::cdk-hnb659fds-*",
    "ecr": "arn:aws:ecr:*:*:repository/cdk-hnb659fds-*",
    "iam": "arn:aws:iam::*:role/cdk-hnb659fds-*",
    "ssm": "arn:aws:ssm:*:*:parameter/cdk-bootstrap/hnb659fds/*",
}
"""Resources of the bootstrap's stack, which it creates with its caller's rights."""
_NAMES = (
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "*"),
    (r"\b(hopper|walker|first-deployment)\b", "*"),
    (
        r"^(arn:aws:s3:::nitroresults-)[\w-]+(/.*)?$",
        lambda found: f"{found[1]}*{'/*' if found[2] else ''}",
    ),
    (r"(NitroGuard|NitroNetwork|NitroResults)-[\w-]+", r"\1-*"),
    (r"(log-group:Nitro-\*).*", r"\1"),
    (r"(function:Nitro-\*-\w+):\d+$", r"\1:*"),
    (r"(execution:Nitro-\*-coordinator):.*", r"\1:*"),
    (r"(role/Nitro-\*-PoolRole).*", r"\1*"),
    (r"stack/CDKToolkit/", "stack/CDKToolkit*/"),
    (r"instance/i-\w+", "instance/*"),
    (r"ec2/L-\w+$", "ec2/*"),
)
"""A name in the rehearsal, and the pattern for all such names."""

Rights = dict[str, set[str]]
"""Resources by action."""


def general(resource: str) -> str:
    """Returns an ARN of the rehearsal as a pattern for all experiments, regions and accounts."""
    parts = resource.split(":", 5)
    if len(parts) == 6:
        resource = ":".join(
            [*parts[:3], "*" if parts[3] else "", "*" if parts[4].isdigit() else parts[4], parts[5]]
        )
    for pattern, instead in _NAMES:
        resource = re.sub(pattern, instead, resource)
    return resource


def recorded() -> Rights:
    """Plays the scenarios in which people act, and returns their rights."""
    found: Rights = defaultdict(set)
    for name in ("stop", "external-pool", "first-deployment"):
        scenario = SCENARIOS[name]
        with (
            tempfile.TemporaryDirectory() as folder,
            Rehearsal(name, Path(folder) / "out", **scenario.settings) as world,
        ):
            world.deployer_policy = EVERYTHING
            assert scenario.play is not None
            scenario.play(world)
            for action, resources in deploying(world.account.calls).items():
                found[action] |= resources
    return found


def deploying(calls: Path) -> Rights:
    """Returns the scenario's calls of people, and those that are not played."""
    found: Rights = defaultdict(
        set, {action: set(resources) for action, resources in NOT_PLAYED.items()}
    )
    for role, one in decisions(calls):
        if role == DEPLOYER:
            found[one["action"]].add(general(one["resource"]))
    return found


def bootstrapping(calls: Path) -> Rights:
    """Returns the calls of `cdk bootstrap`, and CloudFormation's calls to create its template's resources.

    If that fails, CloudFormation deletes them, and the next `cdk bootstrap` the stack.
    """
    found: Rights = defaultdict(set)
    for _, one in decisions(calls):
        found[one["action"]].add(re.sub("/[^/]*$", "/*", general(one["resource"])))
    found["cloudformation:DeleteStack"] = set(found["cloudformation:CreateChangeSet"])
    command = [sys.executable, "-m", "stacks.deploy.cdk", "bootstrap", "--show-template"]
    shown = subprocess.check_output(command, cwd=ROOT)
    for action in _creations(yaml.load(shown, yaml.BaseLoader)):
        service = action.partition(":")[0]
        # By default it makes no KMS key and no table, and it passes no role.
        if (
            action in _known(service)
            and action != "iam:PassRole"
            and _can_concern(action, BOOTSTRAPPED[service])
        ):
            found[action].add(BOOTSTRAPPED[service])
    return found


def _known(service: str) -> list[str]:
    return all_actions(service) if service in BOOTSTRAPPED else []


def _can_concern(action: str, arn: str) -> bool:
    """Returns whether the action applies to that kind of resource, such as roles."""
    return any(
        re.split("[:/]", one.split(":", 5)[5])[0]
        in ("${BucketName}", re.split("[:/]", arn.split(":", 5)[5])[0])
        for one in arn_patterns(action)
    )


def _creations(template: Mapping[str, Any]) -> Iterator[str]:
    kinds = {one["Type"] for one in template["Resources"].values() if "Condition" not in one}
    for kind in sorted(kinds):
        for handler in ("create", "read", "delete"):
            yield from schema_of(kind)["handlers"].get(handler, {"permissions": []})["permissions"]


def policy(rights: Mapping[str, Iterable[str]]) -> str:
    """Returns the policy document, with one statement for each set of resources."""
    by_resources: dict[tuple[str, ...], list[str]] = {}
    for action, resources in sorted(rights.items()):
        needed = ("*",) if "*" in resources else tuple(sorted(resources))
        by_resources.setdefault(needed, []).append(action)
    return (
        json.dumps(
            {
                "Version": VERSION,
                "Statement": [
                    {
                        "Effect": "Allow",
                        "Action": actions,
                        "Resource": list(needed),
                    }
                    for needed, actions in sorted(by_resources.items(), key=lambda pair: pair[1])
                ],
            },
            indent=1,
        )
        + "\n"
    )


def main() -> None:
    """Plays both and writes the policies."""
    DEPLOYER_POLICY.write_text(policy(recorded()))
    with tempfile.TemporaryDirectory() as folder:
        calls = Path(folder) / "bootstrap"
        calls.mkdir()
        with MotoServer(MOTO_DECISIONS=str(calls)) as moto:
            os.environ.update(
                {
                    **CREDENTIALS,
                    "AWS_REGION": REGION,
                    "AWS_ENDPOINT_URL": moto.url,
                    **let_in(moto.client, EVERYTHING),
                }
            )
            # The second time it finds an existing bootstrap.
            for _ in range(2):
                if run_cdk(
                    ["bootstrap", "-c", f"experiment={ROOT / 'experiments' / 'hopper.yaml'}"],
                    region=REGION,
                ):
                    raise RuntimeError("cdk bootstrap failed")
        BOOTSTRAP_POLICY.write_text(policy(bootstrapping(calls)))


if __name__ == "__main__":
    main()
