"""Writes the page about which environments train here: ``python -m benchmarks.conformance.page``."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.conformance.verdicts import WORKS
from benchmarks.pages import rendered, table
from benchmarks.provenance import ROOT

RESULTS = ROOT / "benchmarks" / "results" / "conformance.json"
PAGE = ROOT / "docs" / "environments_table.md"
_OWN = "own"
"""The group of our own odd environments."""


def page(results: Mapping[str, Any]) -> str:
    """Returns docs/environments_table.md."""
    groups = [group for name, group in results["groups"].items() if name != _OWN]
    rows = [row for group in groups for row in group["rows"]]
    return rendered(
        Path(__file__).with_suffix(".md"),
        ids=len(_ids(rows)),
        train=len(_training(rows)),
        twice=sum(len(_ids(group["rows"])) for group in groups) - len(_ids(rows)),
        python=results["python"],
        machine=results["machine"],
        data=os.path.relpath(RESULTS, PAGE.parent),
        summary=table(
            ["packages", "ids that train"],
            [
                [group["title"], f"{len(_training(group['rows']))}/{len(_ids(group['rows']))}"]
                for group in groups
            ],
        ),
    )


def _ids(rows: Sequence[Mapping[str, Any]]) -> set[str]:
    return {row["environment"]["id"] for row in rows}


def _training(rows: Sequence[Mapping[str, Any]]) -> set[str]:
    """The ids that train in at least one of the ways that were tried."""
    return _ids([row for row in rows if row["verdict"] == WORKS])


def main() -> None:
    PAGE.write_text(page(json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
