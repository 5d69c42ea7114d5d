"""The pages say of each contested verdict that it is being measured anew, and why."""

from __future__ import annotations

import re

import pytest
import yaml

from tests.helpers import ROOT

OPEN = yaml.safe_load((ROOT / "papers" / "audit.yaml").read_text())["open"]
FIGURES = {name for name in OPEN if re.match(r"(Nitro|MinionsRL) (Fig\.|Table)", name)}
PAGES = (
    "docs/figures.md",
    "docs/results.md",
    "docs/design/detector.md",
    "papers/nitro/README.md",
    "papers/minionsrl/README.md",
    "papers/stellaris/README.md",
    "papers/gmi_drl/README.md",
)
"""Pages that link to the list."""


def rows() -> dict[str, list[str]]:
    lines = (ROOT / "docs" / "figures.md").read_text().splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    return {name: rest for name, *rest in cells[1:]}


def test_each_open_figure_has_a_line_with_its_reasons() -> None:
    assert rows().keys() == FIGURES
    for name in FIGURES:
        assert rows()[name][-1] == ", ".join(short for _, _, short in OPEN[name])


@pytest.mark.parametrize("page", PAGES)
def test_a_page_with_open_verdicts_says_so_and_links_to_the_list(page: str) -> None:
    text = " ".join((ROOT / page).read_text().split())
    assert "being measured anew" in text
    assert re.search(r"\]\([./]*(papers/)?audit\.yaml\)", text)
