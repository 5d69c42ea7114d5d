"""The notes on verdicts that the papers' authors could contest (audit.yaml)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml

OBJECTIONS: dict[str, list[list[str]]] = yaml.safe_load(
    Path(__file__).with_suffix(".yaml").read_text()
)["objections"]


def note(name: str) -> str:
    """Returns the full note on a verdict; empty for an uncontested one."""
    if name not in OBJECTIONS:
        return ""
    differences, remedies = (
        _listed([one[index] for one in OBJECTIONS[name]]) for index in range(2)
    )
    return f"Under audit: {differences}; to be rerun with {remedies}."


def short(name: str) -> str:
    """Returns the short note in a figure's line on its paper's page; empty for an uncontested one."""
    if name not in OBJECTIONS:
        return ""
    return f"under audit: {', '.join(one[2] for one in OBJECTIONS[name])}"


def _listed(parts: Sequence[str]) -> str:
    """Numbers several parts."""
    return (
        parts[0]
        if len(parts) == 1
        else ", ".join(f"({number}) {part}" for number, part in enumerate(parts, 1))
    )
