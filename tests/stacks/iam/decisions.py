"""What roles asked IAM for in rehearsals and what the answer was, without the names that AWS draws.

``decisions.json`` holds all that `make rehearse-all` saw. Another evaluator judges the same requests: see
`tests.judges`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

KNOWN = Path(__file__).with_name("decisions.json")
_DRAWN = (
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "UUID"),
    (r"\b(i|lt|eni|vol|subnet|sg|vpc|ami)-[0-9a-f]{8,17}\b", r"\1-0"),
    (r"LaunchTemplate_[0-9a-f]{12}", "LaunchTemplate_0"),
    (r"\b[0-9a-f]{64}\b", "HASH"),
    (r"(?<=[0-9A-F]{8})-[A-Z0-9]{12}\b", "-DRAWN"),
    (r"(?<=[0-9a-f]{8})-[a-z0-9]{12}\b", "-drawn"),
)
"""What differs between two deployments of the same templates, and what stands for it."""


class Decision(NamedTuple):
    """One answer of IAM.

    Attributes:
        policies: The documents of the role that asked, as JSON.
        action, resource: What it asked for.
        context: What conditions see, as JSON.
        allowed: The answer.
    """

    policies: str
    action: str
    resource: str
    context: str
    allowed: bool


def recorded(folder: Path) -> set[Decision]:
    """Those that the simulated account noted in a folder."""
    return {_decision((folder / f"{path.name}.policies").read_text(), json.loads(line))
            for path in folder.iterdir() if path.suffix != ".policies" for line in path.read_text().splitlines()}


def _decision(policies: str, one: dict[str, Any]) -> Decision:
    resource, context = _undrawn(one["resource"]), {
        key: sorted(map(_undrawn, values)) for key, values in one["context"].items()}
    if resource.startswith("arn:aws:s3:::"):
        resource, context = _unnumbered(resource), {
            key: [_unnumbered(value) for value in values] for key, values in context.items()}
    return Decision(_undrawn(policies), one["action"], resource, json.dumps(context, sort_keys=True), one["allowed"])


def _undrawn(text: str) -> str:
    for pattern, instead in _DRAWN:
        text = re.sub(pattern, instead, text)
    return text


def _unnumbered(text: str) -> str:
    """An object's key without its numbers."""
    bucket, slash, key = text.partition("/")
    return bucket + slash + re.sub(r"\d+", "0", key)


def read(path: Path = KNOWN) -> set[Decision]:
    """Those of a file."""
    kept = json.loads(path.read_text())
    return {Decision(json.dumps(policies), action, resource, json.dumps(context, sort_keys=True), allowed)
            for policies, rows in zip(kept["policies"], kept["decisions"], strict=True)
            for action, resource, context, allowed in rows}


def write(found: Iterable[Decision], path: Path = KNOWN) -> None:
    """Replaces a file."""
    by_policies: dict[str, list[Decision]] = {}
    for one in sorted(found):
        by_policies.setdefault(one.policies, []).append(one)
    lines = ['{"policies": [', ",\n".join(by_policies), '],\n"decisions": [',
             ",\n".join(_rows(rows) for rows in by_policies.values()), "]}"]
    path.write_text("\n".join(lines) + "\n")


def _rows(rows: Iterable[Decision]) -> str:
    def texts() -> Iterator[str]:
        for one in rows:
            yield json.dumps([one.action, one.resource, json.loads(one.context), one.allowed])
    return "[" + ",\n ".join(texts()) + "]"
