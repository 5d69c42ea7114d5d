"""What is required, what that brings along, and which versions are pinned."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.helpers import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
CDK = ("aws-cdk-lib", "cdk-nag", "constructs")
"""What app.py needs on top."""


def lines(path: Path) -> list[str]:
    """Returns the lines of a requirements file with their continuations, without comments."""
    text = re.sub(r"(?m)^#.*\n", "", path.read_text()).replace("\\\n", " ")
    return [line for line in text.splitlines() if line.strip()]


def pins(path: Path) -> dict[str, str]:
    """Returns the version of each package that the file pins for this Python."""
    found = [
        Requirement(line.split(" --hash")[0]) for line in lines(path) if not line.startswith("-")
    ]
    return {
        canonicalize_name(one.name): str(one.specifier).removeprefix("==")
        for one in found
        if one.marker is None or one.marker.evaluate()
    }


def required(asked: Iterable[str]) -> dict[str, metadata.Distribution]:
    """Returns these requirements, and all that they bring along, as they are installed here.

    Raises:
        PackageNotFoundError: One is not installed.
    """
    found: dict[str, metadata.Distribution] = {}
    seen: set[tuple[str, str]] = set()
    waiting = [Requirement(one) for one in asked]
    while waiting:
        one = waiting.pop()
        name = canonicalize_name(one.name)
        found[name] = metadata.distribution(name)
        for extra in {"", *one.extras} - {extra for other, extra in seen if other == name}:
            seen.add((name, extra))
            waiting += [
                more
                for more in map(Requirement, found[name].requires or ())
                if more.marker is None or more.marker.evaluate({"extra": extra})
            ]
    return found
