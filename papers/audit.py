"""Notes for verdicts that the papers' authors could contest (audit.yaml)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml

OBJECTIONS: dict[str, list[tuple[str, str]]] = yaml.safe_load(
    Path(__file__).with_suffix(".yaml").read_text())["objections"]


def note(name: str) -> str:
    """Returns a page's note next to a verdict; empty if there is no objection."""
    if name not in OBJECTIONS:
        return ""
    differences, remedies = (_listed(part) for part in zip(*OBJECTIONS[name], strict=True))
    return f"Under audit: {differences}; to be rerun with {remedies}."


def _listed(parts: Sequence[str]) -> str:
    """Numbers several parts."""
    return parts[0] if len(parts) == 1 else ", ".join(f"({number}) {part}" for number, part in enumerate(parts, 1))
