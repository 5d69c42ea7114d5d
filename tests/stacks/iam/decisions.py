"""The roles' requests to IAM in rehearsals and the answers, without names that AWS generates.

``decisions.json`` holds all decisions of `make rehearse-all`. Another evaluator judges the same requests: see
`tests.judges`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

KNOWN = Path(__file__).with_name("decisions.json")
_DRAWN = (
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "UUID"),
    (r"\b(i|lt|eni|vol|subnet|sg|vpc|ami)-[0-9a-f]{8,17}\b", r"\1-0"),
    (r"LaunchTemplate_[0-9a-f]{12}", "LaunchTemplate_0"),
    (r"(tfevents\.\d+)\.\S*", r"\1.HOST"),
    (r"\b[0-9a-f]{64}\b", "HASH"),
    (r"\b[0-9a-f]{32}\b", "HEX"),
    (r"(?<=[0-9A-F]{8})-[A-Z0-9]{12}\b", "-DRAWN"),
    (r"(?<=[0-9a-f]{8})-[a-z0-9]{12}\b", "-drawn"),
)
"""Differences between two deployments of the same templates, and their replacements."""


class Decision(NamedTuple):
    """One answer of IAM.

    Attributes:
        role: Its name.
        statements: The role's statements with that action, as JSON. No other statement can decide.
        action, resource: The request.
        context: Its condition keys, as JSON.
        allowed: The answer.
    """

    role: str
    statements: str
    action: str
    resource: str
    context: str
    allowed: bool


def recorded(folder: Path) -> set[Decision]:
    """Returns the decisions that the simulated account recorded in a folder, without those for CloudFormation."""
    return {
        _decision(path.name, (folder / f"{path.name}.policies").read_text(), json.loads(line))
        for path in folder.iterdir()
        if path.suffix != ".policies" and not path.name.startswith("cdk-")
        for line in path.read_text().splitlines()
    }


def _decision(role: str, policies: str, one: dict[str, Any]) -> Decision:
    resource, context = (
        _undrawn(one["resource"]),
        {key: sorted(map(_undrawn, values)) for key, values in one["context"].items()},
    )
    if resource.startswith("arn:aws:s3:::"):
        resource, context = (
            _unnumbered(resource),
            {key: [_unnumbered(value) for value in values] for key, values in context.items()},
        )
    held = [
        statement
        for document in json.loads(_undrawn(policies))
        for statement in listed(document["Statement"])
    ]
    statements = [
        statement
        for statement in held
        if any(_names(pattern, one["action"]) for pattern in listed(statement["Action"]))
    ]
    return Decision(
        _undrawn(role),
        json.dumps(statements, sort_keys=True),
        one["action"],
        resource,
        json.dumps(context, sort_keys=True),
        one["allowed"],
    )


def listed(value: Any) -> list[Any]:
    """Returns a list. A policy may write a single value without one."""
    return value if isinstance(value, list) else [value]


def _names(pattern: str, action: str) -> bool:
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), action, re.IGNORECASE) is not None


def _undrawn(text: str) -> str:
    for pattern, instead in _DRAWN:
        text = re.sub(pattern, instead, text)
    return text


def _unnumbered(text: str) -> str:
    """Replaces the numbers in an object's key by 0."""
    bucket, slash, key = text.partition("/")
    return bucket + slash + re.sub(r"\d+", "0", key)


def read(path: Path = KNOWN) -> set[Decision]:
    """Reads the decisions of a file."""
    return {
        Decision(
            one["role"],
            json.dumps(one["statements"], sort_keys=True),
            action,
            resource,
            json.dumps(context, sort_keys=True),
            allowed,
        )
        for one in json.loads(path.read_text())
        for action, resource, context, allowed in one["decisions"]
    }


def write(found: Iterable[Decision], path: Path = KNOWN) -> None:
    """Replaces a file."""
    by_statements: dict[tuple[str, str], list[Decision]] = {}
    for one in sorted(found):
        by_statements.setdefault((one.role, one.statements), []).append(one)
    path.write_text(
        "["
        + ",\n".join(
            f'{{"role": {json.dumps(role)}, "statements": {statements}, "decisions": [\n'
            + ",\n".join(
                f" {json.dumps([one.action, one.resource, json.loads(one.context), one.allowed])}"
                for one in rows
            )
            + "]}"
            for (role, statements), rows in by_statements.items()
        )
        + "]\n"
    )
