"""Writes the page about which environments train here: ``python -m benchmarks.conformance.page``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.conformance.verdicts import BROKEN, FAILS, REFUSED, WORKS
from benchmarks.pages import rendered, table
from benchmarks.provenance import ROOT

RESULTS = ROOT / "benchmarks" / "results" / "conformance.json"
PAGE = ROOT / "docs" / "environments_table.md"
_SPACE_MAX = 90
_OWN = "own"
"""The group of our own odd environments."""


def page(results: Mapping[str, Any]) -> str:
    """Returns docs/environments_table.md."""
    groups = results["groups"]
    rows = [row for group in groups.values() for row in group["rows"]]
    verdicts, ids = Counter(row["verdict"] for row in rows), {row["environment"]["id"] for row in rows}
    packages = {name for group in groups.values() for name in group["versions"]}
    continued = Counter(row["open_episodes"] for row in rows if row["verdict"] == WORKS)
    return rendered(
        Path(__file__).with_suffix(".md"), rows=len(rows), ids=len(ids), packages=len(packages),
        works=verdicts[WORKS], refused=verdicts[REFUSED], fails=verdicts[FAILS], broken=verdicts[BROKEN],
        state=continued["state"], replay=continued["replay"], python=results["python"], machine=results["machine"],
        summary=_summary({name: group for name, group in groups.items() if name != _OWN}),
        sections="\n".join(map(_section, groups.values())))


def _summary(groups: Mapping[str, Any]) -> str:
    """Returns how many ids of each group train in at least one of the ways that were tried."""
    rows = []
    for group in groups.values():
        ids = {row["environment"]["id"] for row in group["rows"]}
        train = {row["environment"]["id"] for row in group["rows"] if row["verdict"] == WORKS}
        rest = ", ".join(f"`{name}`" for name in sorted(ids - train))
        rows.append([group["title"], str(len(ids)), str(len(train)), rest or "–"])
    return table(["packages", "ids", "train", "do not train"], rows)


def _section(group: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in group["versions"].items())
    variables = "".join(f"; `{name}={value}`" for name, value in group["variables"].items())
    return f"## {group['title']}\n\n{versions or ' '.join(group['requirements'])}{variables}.\n\n" + table(
        ["environment", "observations → actions", "algorithm", "open episodes", "verdict"],
        [[_environment(row), _spaces(row), row["algorithm"], _open(row), _verdict(row)] for row in group["rows"]])


def _environment(row: Mapping[str, Any]) -> str:
    section = dict(row["environment"])
    extra = [f"`{name}: {_text(value)}`" for name, value in section.items() if name != "id"]
    return "<br>".join([f"`{section['id']}`", *extra])


def _text(value: Any) -> str:
    return json.dumps(value).replace('"', "").replace("|", "\\|")


def _spaces(row: Mapping[str, Any]) -> str:
    if "observation_space" not in row:
        return ""
    return f"{_short(row['observation_space'])} → {_short(row['action_space'])}"


def _short(space: str) -> str:
    short = space if len(space) <= _SPACE_MAX else space[:_SPACE_MAX - 1] + "…"
    return f"`{short}`".replace("|", "\\|")


def _open(row: Mapping[str, Any]) -> str:
    return f"{row['open_episodes']}, {row['continued']} continued" if row["verdict"] == WORKS else ""


def _verdict(row: Mapping[str, Any]) -> str:
    said = f"<br>We say: {_escaped(row['said'])}" if row.get("said") else ""
    return f"**{row['verdict']}**" + (f": {_escaped(row['reason'])}" if row["reason"] else "") + said


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


def main() -> None:
    PAGE.write_text(page(json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
