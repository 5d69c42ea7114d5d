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
KINDS = ("redis", "none", "local")
"""Kinds of caches. With local there is no cache, and actors are processes of the learner. `synthesise` also accepts
function (no cache and no instance) and external (only actors and a pool's role)."""


@dataclass(frozen=True)
class Assembly:
    """One synthesis.

    Attributes:
        directory: Templates, assets and manifests.
        stack: Name of the experiment's stack.
    """

    directory: Path
    stack: str

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
        **changes: Any,
    ) -> Assembly:
        key = json.dumps([cache, name, context, changes])
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
            app = make_app({**SETTINGS, "run": RUN, "experiment": str(path), **(context or {})})
            made[key] = Assembly(Path(app.synth().directory), f"Nitro-{name}")
        return made[key]

    return run


@pytest.fixture(scope="session", params=KINDS)
def each_kind(request: pytest.FixtureRequest, synthesise: Synthesise) -> Assembly:
    """The same experiment with each kind of cache, and all on the learner."""
    return synthesise(cache=request.param)


@pytest.fixture(scope="session", params=KINDS[:-1])
def each_cache(request: pytest.FixtureRequest, synthesise: Synthesise) -> Assembly:
    """The same experiment with each kind of cache, and actors as a function."""
    return synthesise(cache=request.param)


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
