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
