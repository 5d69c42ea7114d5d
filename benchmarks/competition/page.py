"""Writes the competition's tables into docs/results.md: ``python -m benchmarks.competition.page``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ANALYSIS = ROOT / "benchmarks" / "results" / "competition" / "analysis.json"
PAGE = ROOT / "docs" / "results.md"
BEGIN, END = "<!-- {} -->\n", "<!-- end -->\n"


def table(found: Mapping[str, Any]) -> str:
    """Returns a workload's rules as a table, the cheapest first.

    Args:
        found: Of ``analysis.json``.
    """
    cents, better, minutes = found["cents_to_target"], found["cheaper_than_fixed"], found["modelled_minutes"]
    papers, serverful = found["cents_with_the_papers_learner"], found["cents_without_serverless"]
    lines = ["| rule | settings | got there | cents to the target | cheaper than `fixed` | minutes | with the paper's "
             "GPU | without serverless |", "|---|---|---|---|---|---|---|---|"]
    for rule in sorted(cents, key=lambda one: float(cents[one]["interquartile_mean"])):
        lines.append(
            f"| `{rule}` | {found['settings'].get(rule, '')} | {found['reached'][rule]} of {found['seeds'][rule]} | "
            f"{_estimate(cents[rule])} | {_probability(better.get(rule))} | {_estimate(minutes[rule])} | "
            f"{_estimate(papers.get(rule))} | {_estimate(serverful[rule])} |")
    return "\n".join(lines) + "\n"


def returns_table(found: Mapping[str, Any]) -> str:
    """Returns a workload's returns at equal dollars as a table."""
    levels = found["return_at_cents"]
    heads = ["rule", *(f"{level} cent{'s' * (level != '1')}" for level in levels)]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    last = list(levels.values())[-1]["estimates"]
    for rule in sorted(last, key=lambda one: -float(last[one]["interquartile_mean"])):
        lines.append(f"| `{rule}` | " + " | ".join(
            _estimate(level["estimates"][rule], ",.0f") for level in levels.values()) + " |")
    return "\n".join(lines) + "\n"


def filled(text: str, analysis: Mapping[str, Any]) -> str:
    """Returns the page with its tables as they are in the analysis."""
    for workload, found in analysis.items():
        for name, part in ((workload, table(found)), (f"{workload} returns", returns_table(found))):
            text = with_part(text, name, part)
    return text


def with_part(text: str, name: str, part: str) -> str:
    """Returns a page with another part between the marks of that name; as it is if it has no such marks."""
    begin = BEGIN.format(name)
    if begin not in text:
        return text
    before, rest = text.split(begin)
    return before + begin + part + END + rest.split(END, 1)[1]


def _estimate(one: Mapping[str, float] | None, form: str = ".2f") -> str:
    if one is None:
        return ""
    return f"{one['interquartile_mean']:{form}} [{one['low']:{form}}, {one['high']:{form}}]"


def _probability(one: Mapping[str, float] | None) -> str:
    return "" if one is None else f"{100 * one['probability']:.0f} % [{100 * one['low']:.0f}, {100 * one['high']:.0f}]"


def main() -> None:
    PAGE.write_text(filled(PAGE.read_text(), json.loads(ANALYSIS.read_text())))


if __name__ == "__main__":
    main()
