"""Page texts on verdicts that the papers' authors could contest."""

from __future__ import annotations

import pytest

from papers import __main__ as figures
from papers import audit
from papers.stellaris import page as stellaris
from tests.helpers import ROOT

WRITTEN = {"Nitro's signal": "docs/results.md", "a learned scheduler": "docs/results.md",
           "boosted trainings": "docs/design/detector.md", "Table 1's settings": "docs/design/detector.md",
           "Stellaris to the target": "papers/stellaris/README.md"}
"""The page of each verdict that is in no figure."""


def test_every_objection_is_beside_a_verdict() -> None:
    assert audit.OBJECTIONS.keys() - {*figures.NAMES} == WRITTEN.keys()


@pytest.mark.parametrize("name", audit.OBJECTIONS)
def test_each_page_has_the_note_in_place(name: str) -> None:
    note = audit.note(name)
    assert note.startswith("Under audit: ") and "; to be rerun with " in note
    assert note.count(". ") == 0, "one sentence"
    page = " ".join((ROOT / WRITTEN.get(name, "docs/figures.md")).read_text().split())
    assert (note if name in WRITTEN else audit.short(name)) in page


def test_a_verdict_that_nobody_contests_has_no_note() -> None:
    assert audit.note("nitro_9") == audit.note("nitro_8") == audit.short("nitro_9") == ""
    text = figures.DOCUMENT.read_text()
    assert text.count("Under audit") == text.count(", under audit |") == len({*audit.OBJECTIONS} & {*figures.NAMES})
    rows = [line for line in stellaris.PAGE.read_text().splitlines() if "(under audit)" in line]
    assert [row.split("|")[1].strip() for row in rows] == [
        "costs 41 % less: to the target (under audit)",
        "costs 41 % less: to the target, always-on GPU nodes (under audit)"]
