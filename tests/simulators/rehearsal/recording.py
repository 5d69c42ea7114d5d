"""Each role's requests to IAM in a rehearsal and the answers, as `tests.simulators.aws.gate` records them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def decisions(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the roles' names and the gate's records of each."""
    for path in sorted(folder.iterdir()):
        if path.suffix != ".policies":
            for line in path.read_text().splitlines():
                yield path.name, json.loads(line)


def denials(folder: Path) -> list[tuple[str, dict[str, Any]]]:
    return [(role, one) for role, one in decisions(folder) if not one["allowed"]]


def recorded_calls(folder: Path) -> dict[str, list[str]]:
    """Returns the kinds of calls by role, each as ``SERVICE OPERATION``."""
    found: dict[str, set[str]] = {}
    for role, one in decisions(folder):
        found.setdefault(role, set()).add(one["call"])
    return {role: sorted(calls) for role, calls in found.items()}
