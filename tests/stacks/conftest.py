"""Stacks synthesized from experiment files, once per session and shared: jsii takes seconds to start."""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from stacks.assembly import make_app
from tests.helpers import ROOT, SMALL_EXPERIMENT

SETTINGS = json.loads((ROOT / "cdk.json").read_text())["context"]
RUN = "first"
NAME = "pendulum"
STACK = f"Nitro-{NAME}"
ACTOR_USER = f"nitro-{NAME}-70ffde3e"
"""The actors' name at an ElastiCache cache: the learner's name and a digest."""
SUBNETS = "subnet-0123456789abcdef0,subnet-0fedcba987654321f"
CORPORATE = {
    "vpc": "vpc-0123456789abcdef0",
    "subnets": SUBNETS,
    "ebs_key": "1234abcd-12ab-34cd-56ef-1234567890ab",
    "tags": "team=rl,cost-center=42",
    "mail": "me+nitro@example.org",
    "@aws-cdk/core:permissionsBoundary": {"name": "acme-boundary"},
    "@aws-cdk/core:bootstrapQualifier": "acme",
}
"""The context of an organisation's account. It leaves a hundred executions for other functions."""
VARIANTS: dict[str, dict[str, Any]] = {
    "redis": {"cache": "redis"},
    "none": {"cache": "none"},
    "warm": {
        "cache": "redis",
        "actor__provisioned": 4,
        "context": {"actor_concurrency": "1000", "mail": "me+nitro@example.org"},
    },
    "gpu": {
        "cache": "none",
        "learner__market": "spot",
        "learner__instance_types": ["g4dn.xlarge", "g6.xlarge"],
    },
    "arm": {
        "cache": "none",
        "actor__architecture": "arm64",
        "learner__instance_types": ["t4g.small"],
    },
    "local": {"cache": "local"},
    "function": {"cache": "function", "budget__lifetime_hours": 2},
    "stellaris": {
        "cache": "none",
        "learner__kind": "stellaris",
        "context": {"actor_concurrency": "1000"},
    },
    "external": {"cache": "external"},
    "pool": {"cache": "external", "actor__provisioned": 2},
    "corporate": {"cache": "none", "context": CORPORATE},
    "two zones": {"cache": "redis", "region": "us-west-1"},
}
"""Every way to deploy, by name: see `synthesise`. All tests share one synthesis of each."""


@dataclass(frozen=True)
class Assembly:
    """One synthesis.

    Attributes:
        directory: Templates, assets and manifests.
        stack: Name of the experiment's stack.
        file: The experiment file.
    """

    directory: Path
    stack: str
    file: Path

    def template(self, stack: str | None = None) -> dict[str, Any]:
        return json.loads((self.directory / f"{stack or self.stack}.template.json").read_text())

    def resources(self, kind: str, stack: str | None = None) -> dict[str, dict[str, Any]]:
        """Returns whole resources of a CloudFormation type by logical id."""
        return {
            name: resource
            for name, resource in self.template(stack)["Resources"].items()
            if resource["Type"] == kind
        }

    def only(self, kind: str, stack: str | None = None) -> dict[str, Any]:
        """Returns the properties of the only resource of that type."""
        (resource,) = self.resources(kind, stack).values()
        return resource["Properties"]

    def image_asset(self, *, of_learner: bool = False) -> dict[str, Any]:
        """Returns the actor's image, or the learner's."""
        (image,) = [
            one["source"]
            for one in self._assets()["dockerImages"].values()
            if ("TORCH" in one["source"]["dockerBuildArgs"]) == of_learner
        ]
        return image

    def learner_asset(self) -> Path:
        (folder,) = [
            file["source"]["path"]
            for file in self._assets()["files"].values()
            if file["source"]["packaging"] == "zip"
        ]
        return self.directory / folder

    def learner_key(self) -> str:
        """Returns bucket and key of the zip with the run's own files."""
        return (
            f"cdk-hnb659fds-assets-<AWS::AccountId>-<AWS::Region>/"
            f"{self.learner_asset().name.removeprefix('asset.')}.zip"
        )

    def exported(self, stack: str, output: str) -> str:
        """Returns the reference of another stack to an output of ``stack``, if it is exported."""
        outputs = self.template(stack)["Outputs"]
        (export,) = [
            one["Export"]["Name"]
            for one in outputs.values()
            if "Export" in one and one["Value"] == outputs[output]["Value"]
        ]
        return f"<{export}>"

    def name(self, kind: str) -> str:
        """Returns the logical id of the only resource of that type."""
        (name,) = self.resources(kind)
        return name

    def _assets(self) -> dict[str, Any]:
        return json.loads((self.directory / f"{self.stack}.assets.json").read_text())


Synthesise = Callable[..., Assembly]


@pytest.fixture(scope="session")
def synthesise(tmp_path_factory: pytest.TempPathFactory) -> Synthesise:
    """``synthesise(cache="none", name=…, context={…}, learner__market="spot")``; equal calls share one synthesis."""
    made: dict[str, Assembly] = {}

    def run(
        *,
        cache: str = "redis",
        name: str = NAME,
        context: Mapping[str, Any] | None = None,
        region: str = "us-east-1",
        **changes: Any,
    ) -> Assembly:
        key = json.dumps([cache, name, context, region, changes])
        if key not in made:
            path = tmp_path_factory.mktemp("experiment") / f"{name}.yaml"
            without = {
                "local": {"fleet__kind": "local"},
                "function": {"learner__kind": "function"},
                "external": {"learner": {"kind": "external"}},
            }
            kinds = (
                {"cache__kind": "none", **without[cache]}
                if cache in without
                else {"cache__kind": cache}
            )
            path.write_text(experiment_text(**kinds, **changes))
            with pytest.MonkeyPatch.context() as variables:
                variables.setenv("CDK_DEFAULT_REGION", region)
                app = make_app({**SETTINGS, "run": RUN, "experiment": str(path), **(context or {})})
                made[key] = Assembly(Path(app.synth().directory), f"Nitro-{name}", path)
        return made[key]

    return run


@pytest.fixture(scope="session")
def variant(synthesise: Synthesise) -> Callable[[str], Assembly]:
    """Returns the synthesis of a way to deploy; see `VARIANTS`."""
    return lambda name: synthesise(**VARIANTS[name])


@pytest.fixture(scope="session", params=VARIANTS)
def made(request: pytest.FixtureRequest, variant: Callable[[str], Assembly]) -> Assembly:
    """Each way to deploy."""
    return variant(request.param)


@pytest.fixture(scope="session")
def serverless(synthesise: Synthesise) -> Assembly:
    return synthesise(cache="redis")


def experiment_text(**changes: Any) -> str:
    """Returns `SMALL_EXPERIMENT` with ``section__key=value`` changed or added."""
    tree = yaml.safe_load(SMALL_EXPERIMENT)
    for path, value in changes.items():
        section, _, key = path.rpartition("__")
        (tree.setdefault(section, {}) if section else tree)[key] = value
    return yaml.safe_dump(tree)


def flat(value: Any) -> str:
    """Returns a CloudFormation value as one line: references as ``<Name>``, imports as ``<Stack:Export>``."""
    if isinstance(value, str):
        return value
    ((function, argument),) = value.items()
    if function == "Fn::Join":
        return argument[0].join(flat(part) for part in argument[1])
    if function == "Fn::GetAtt":
        return (
            f"<{argument[0]}>" if argument[1] in ("Arn", "GroupId") else f"<{'.'.join(argument)}>"
        )
    if function == "Fn::Sub":
        return argument.replace("${", "<").replace("}", ">")
    return f"<{argument}>" if function in ("Ref", "Fn::ImportValue") else json.dumps(value)


def listed(value: Any) -> list[str]:
    """Returns a sorted list of values. IAM also allows a single value without a list."""
    return sorted(flat(item) for item in (value if isinstance(value, list) else [value]))


def user_data(made: Assembly) -> str:
    return flat(
        made.only("AWS::EC2::LaunchTemplate")["LaunchTemplateData"]["UserData"]["Fn::Base64"]
    )


def variables(made: Assembly) -> dict[str, str]:
    """Returns the exports in the learner's user data, without the shell's quotes."""
    first, *lines = user_data(made).splitlines()
    assert first == "#!/bin/bash"
    block = itertools.takewhile(lambda line: line.startswith("export "), lines)
    return dict(shlex.split(line)[1].partition("=")[::2] for line in block)
