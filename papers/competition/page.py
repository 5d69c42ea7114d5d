"""Writes the competition's table into docs/results.md: ``python -m papers.competition.page``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from benchmarks.pages import table, with_part
from benchmarks.provenance import ROOT
from papers.competition.plan import RESULTS

ANALYSIS = RESULTS / "analysis.json"
PAGE = ROOT / "docs" / "results.md"
PART = "competition"
_TITLES = {
    "hopper": "Hopper",
    "walker2d": "Walker2d",
    "halfcheetah": "HalfCheetah",
    "slow_hopper": "slow Hopper",
}
_ACTORS = {"minions": "4 to 32", "permuted": "as `nitro`"}
"""Of rules whose settings in the analysis do not say it."""
_NAMES = {"fixed": "fixed-24"}
"""Rules that have another name on the page."""


def filled(text: str, analysis: Mapping[str, Any]) -> str:
    """Returns the page with the table of the analysis."""
    return with_part(text, PART, _table_of(analysis))


def _table_of(analysis: Mapping[str, Any]) -> str:
    """Cents to the target by rule and workload, the cheapest rule on Hopper first."""
    hopper = analysis["hopper"]
    return table(
        ["rule", "actors", *_TITLES.values()],
        [
            [
                f"`{_NAMES.get(rule, rule)}`",
                _ACTORS.get(rule) or hopper["settings"][rule],
                *(
                    _estimate(analysis[workload]["cents_to_target"].get(rule))
                    for workload in _TITLES
                ),
            ]
            for rule, _ in sorted(
                hopper["cents_to_target"].items(),
                key=lambda one: float(one[1]["interquartile_mean"]),
            )
        ],
    )


def _estimate(one: Mapping[str, float] | None) -> str:
    return (
        ""
        if one is None
        else f"{one['interquartile_mean']:.2f} [{one['low']:.2f}, {one['high']:.2f}]"
    )


def main() -> None:
    PAGE.write_text(filled(PAGE.read_text(), json.loads(ANALYSIS.read_text())))


if __name__ == "__main__":
    main()
