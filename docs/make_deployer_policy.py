"""Writes docs/reference/deployer_policy.json: what people need who deploy, from what a rehearsed deployment asked for.

    python docs/make_deployer_policy.py

It plays the scenario ``deployer`` with every right, and allows what was asked for, on the resources of this project.
What the CDK's command line needs stands below, with its source: it works with roles that `cdk bootstrap` makes.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from runtime.names import EXPERIMENT_TAG  # noqa: E402
from tests.simulators.rehearsal.account import DEPLOYER, DEPLOYER_POLICY  # noqa: E402
from tests.simulators.rehearsal.recording import decisions  # noqa: E402
from tests.simulators.rehearsal.rehearsal import Rehearsal  # noqa: E402
from tests.simulators.rehearsal.scenarios import deployer  # noqa: E402

VERSION = "2012-10-17"
EVERYTHING = {"Version": VERSION, "Statement": [{"Effect": "Allow", "Action": "*", "Resource": "*"}]}
CDK = {"sts:AssumeRole": ["arn:aws:iam::*:role/cdk-hnb659fds-*"],
       "cloudformation:DescribeStacks": ["arn:aws:cloudformation:*:*:stack/CDKToolkit/*"]}
"""AWS CDK Developer Guide, "Customize AWS CDK bootstrapping": the roles cdk-hnb659fds-deploy-role,
-file-publishing-role, -image-publishing-role and -lookup-role do all that `cdk deploy` does."""
_NAMES = (
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "*"),
    (r"(arn:aws:[\w-]+):[\w-]*:(?:\d{12})?:(?!:)", None),
    (r"\bhopper\b", "*"), (r"(NitroGuard|NitroNetwork|NitroResults|nitroresults)-[\w-]+", r"\1-*"),
    (r"Nitro-\*-(Learner|Actor)\w*-\w{12}", r"Nitro-*-\1*"), (r"instance/i-\w+", "instance/*"),
)
"""A name in the rehearsal, and what stands for all such names."""


def policy(asked: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The least that allows all of it, in any region and account."""
    found: dict[str, set[str]] = {action: set(resources) for action, resources in CDK.items()}
    for one in asked:
        found.setdefault(one["action"], set()).add(general(one["resource"]))
    by_resources: dict[tuple[str, ...], list[str]] = {}
    for action, resources in sorted(found.items()):
        by_resources.setdefault(tuple(sorted(resources)), []).append(action)
    return {"Version": VERSION, "Statement": [
        {"Effect": "Allow", "Action": actions, "Resource": list(resources), **_condition(actions)}
        for resources, actions in sorted(by_resources.items(), key=lambda pair: pair[1])]}


def general(resource: str) -> str:
    """An ARN of the rehearsal as a pattern for each experiment, region and account."""
    for pattern, instead in _NAMES:
        if instead is None:
            resource = re.sub(r"^(arn:aws:[\w-]+):([\w-]*):(\d*):", lambda found: ":".join(
                [found[1], "*" if found[2] else "", "*" if found[3] else "", ""]), resource)
        else:
            resource = re.sub(pattern, instead, resource)
    return resource


def _condition(actions: list[str]) -> dict[str, Any]:
    if actions == ["ec2:TerminateInstances"]:
        return {"Condition": {"Null": {f"aws:ResourceTag/{EXPERIMENT_TAG}": "false"}}}
    if actions == ["iam:PassRole"]:
        return {"Condition": {"StringEquals": {"iam:PassedToService": "lambda.amazonaws.com"}}}
    return {}


def main() -> None:
    """Plays it, and writes the policy."""
    with tempfile.TemporaryDirectory() as out, Rehearsal("deployer", Path(out)) as world:
        world.deployer_policy = json.dumps(EVERYTHING)
        deployer(world)
        asked = [one for role, one in decisions(world.account.calls) if role == DEPLOYER]
    DEPLOYER_POLICY.write_text(json.dumps(policy(asked), indent=1) + "\n")


if __name__ == "__main__":
    main()
