"""The page about which environments train here: ``python -m benchmarks.conformance.page`` writes it again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.conformance.verdicts import BROKEN, FAILS, REFUSED, WORKS

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "conformance.json"
PAGE = ROOT / "docs" / "environments_table.md"
_SPACE_MAX = 90
_OWN = "own"
"""The group of environments that we made to be odd."""


def page(results: Mapping[str, Any]) -> str:
    """Returns docs/environments_table.md."""
    groups = results["groups"]
    rows = [row for group in groups.values() for row in group["rows"]]
    verdicts, ids = Counter(row["verdict"] for row in rows), {row["environment"]["id"] for row in rows}
    packages = {name for group in groups.values() for name in group["versions"]}
    continued = Counter(row["open_episodes"] for row in rows if row["verdict"] == WORKS)
    return "\n".join([
        _HEAD.format(
            rows=len(rows), ids=len(ids), packages=len(packages), works=verdicts[WORKS], refused=verdicts[REFUSED],
            fails=verdicts[FAILS],
            broken=verdicts[BROKEN], state=continued["state"], replay=continued["replay"], python=results["python"],
            machine=results["machine"],
            summary=_summary({name: group for name, group in groups.items() if name != _OWN})),
        *(_section(group) for group in groups.values())])


def _summary(groups: Mapping[str, Any]) -> str:
    """How many ids of each group train in at least one of the ways that were tried."""
    lines = ["| packages | ids | train | do not train |", "|---|---|---|---|"]
    for group in groups.values():
        ids = {row["environment"]["id"] for row in group["rows"]}
        train = {row["environment"]["id"] for row in group["rows"] if row["verdict"] == WORKS}
        rest = ", ".join(f"`{name}`" for name in sorted(ids - train))
        lines.append(f"| {group['title']} | {len(ids)} | {len(train)} | {rest or '–'} |")
    return "\n".join(lines)


def _section(group: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in group["versions"].items())
    variables = "".join(f"; `{name}={value}`" for name, value in group["variables"].items())
    lines = [f"## {group['title']}", "", f"{versions or ' '.join(group['requirements'])}{variables}.", "",
             "| environment | observations → actions | algorithm | open episodes | verdict |", "|---|---|---|---|---|"]
    lines += [f"| {_environment(row)} | {_spaces(row)} | {row['algorithm']} | {_open(row)} | {_verdict(row)} |"
              for row in group["rows"]]
    return "\n".join([*lines, ""])


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


_HEAD = """\
# Which environments train here

`python -m benchmarks.conformance --work WORK` tried {ids} ids of {packages} packages in {rows} ways. **Of these {works}
train and {refused} are refused**; {broken} are broken without anything of ours, and {fails} ended with an error.
[The guide](guides/environments.md) says what each kind of space becomes.

{summary}

An id counts as training if it does in one of the ways below. Many need a setting for that, mostly `max_episode_steps`
or a wrapper; the message that refuses them names it. Environments that we made to be odd are not in this table, but at
the end of the page.

Each one trains two rounds of two fragments with PPO, or four with IMPACT and IMPALA, whose rounds overlap. The
fragments are shorter than most episodes. What one round leaves open is continued in a later one: by its **state**
({state} of those that train), or by **replay** of its actions ({replay}). *Continued* counts these episodes. It is 0 if
every episode ends within its fragment.

- **works**: all rounds were trained.
- **refused**: nothing was started, and the message is what we print. It names what helps; often the next row does
  just that.
- **fails**: training began, and ended with the error that we print.
- **upstream broken**: the environment fails as Gymnasium makes it, with random actions and no code of ours around it.
  *We say* is what a training makes of that.

Each group of packages has a virtual environment of its own over the pinned requirements: Python {python}, {machine};
[data](../benchmarks/results/conformance.json).
"""


def main() -> None:
    PAGE.write_text(page(json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
