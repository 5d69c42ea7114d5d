"""Writes the competition's tables into docs/results.md: ``python -m papers.competition.page``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from benchmarks.pages import table, with_part
from benchmarks.provenance import ROOT
from papers.competition.plan import RESULTS

ANALYSIS = RESULTS / "analysis.json"
PAGE = ROOT / "docs" / "results.md"


def rules_table(found: Mapping[str, Any]) -> str:
    """Returns a workload's rules as a table, the cheapest first.

    Args:
        found: A workload in ``analysis.json``.
    """
    cents, better, minutes = found["cents_to_target"], found["cheaper_than_fixed"], found["modelled_minutes"]
    papers, serverful = found["cents_with_the_papers_learner"], found["cents_without_serverless"]
    return table(
        ["rule", "settings", "got there", "cents to the target", "cheaper than `fixed`", "minutes",
         "with the paper's GPU", "without serverless"],
        [[f"`{rule}`", found["settings"].get(rule, ""), f"{found['reached'][rule]} of {found['seeds'][rule]}",
          _estimate(cents[rule]), _probability(better.get(rule)), _estimate(minutes[rule]), _estimate(papers.get(rule)),
          _estimate(serverful[rule])]
         for rule in sorted(cents, key=lambda one: float(cents[one]["interquartile_mean"]))])


def returns_table(found: Mapping[str, Any]) -> str:
    """Returns a workload's returns at equal dollars as a table."""
    levels = found["return_at_cents"]
    last = list(levels.values())[-1]["estimates"]
    return table(["rule", *(f"{level} cent{'s' * (level != '1')}" for level in levels)],
                 [[f"`{rule}`", *(_estimate(level["estimates"][rule], ",.0f") for level in levels.values())]
                  for rule in sorted(last, key=lambda one: -float(last[one]["interquartile_mean"]))])


def filled(text: str, analysis: Mapping[str, Any]) -> str:
    """Returns the page with the analysis's tables."""
    for workload, found in analysis.items():
        for name, part in ((workload, rules_table(found)), (f"{workload} returns", returns_table(found))):
            text = with_part(text, name, part)
    return text


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
