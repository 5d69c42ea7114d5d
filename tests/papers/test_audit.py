"""Page texts on verdicts that the papers' authors could contest."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from papers import __main__ as figures
from papers import audit
from papers.stellaris import page as stellaris
from runtime.learner.adam import EPSILON
from tests.helpers import ROOT

WRITTEN = {
    "Nitro's signal": "nitro",
    "a learned scheduler": "minionsrl",
    "boosted trainings": "nitro",
    "Table 1's settings": "nitro",
    "Stellaris": "stellaris",
    "GMI-DRL's Algorithm 1": "gmi_drl",
    "GMI-DRL's Algorithm 2": "gmi_drl",
}
"""The paper of each verdict that is in no figure."""
LINKED = ("docs/results.md", "docs/figures.md", "docs/design/detector.md")
"""Pages with contested verdicts."""


def test_every_objection_is_about_a_known_verdict() -> None:
    assert audit.OBJECTIONS.keys() - {*figures.NAMES} == WRITTEN.keys()


@pytest.mark.parametrize("name", figures.NAMES)
def test_every_measured_figure_has_a_note_because_none_ran_with_the_authors_settings(
    name: str,
) -> None:
    """Whether its verdict is favourable or not."""
    assert (name in audit.OBJECTIONS) == figures.results(name).exists()


@pytest.mark.parametrize("name", audit.OBJECTIONS)
def test_each_papers_page_has_the_note(name: str) -> None:
    note = audit.note(name)
    assert note.startswith("Under audit: ") and "; to be rerun with " in note
    assert note.count(". ") == 0, "one sentence"
    paper = WRITTEN.get(name) or figures.NAMES[name]
    page = " ".join((ROOT / "papers" / paper / "README.md").read_text().split())
    assert (note if name in WRITTEN else audit.short(name)) in page


@pytest.mark.parametrize(
    ("names", "difference"),
    [
        (("nitro_11", "nitro_14"), "IMPACT's minibatch"),
        (("nitro_14",), "bills no functions"),
        (("Table 1's settings", "Stellaris"), "Adam's ε"),
        (("nitro_4", "nitro_7", "Nitro's signal"), "total loss"),
    ],
)
def test_a_note_has_each_known_difference(names: Sequence[str], difference: str) -> None:
    assert all(difference in audit.note(name) for name in names)


def test_pages_state_the_epsilon_of_adam() -> None:
    stated = f"ε = {EPSILON:.0e}".replace("e-0", "e-")
    assert (
        f"Adam's step size, with {stated}"
        in (ROOT / "docs" / "reference" / "experiment_file.md").read_text()
    )
    page = " ".join((ROOT / "papers" / "nitro" / "README.md").read_text().split())
    assert f"RLlib's Adam has ε = 1e-8, and this engine's {stated.removeprefix('ε = ')}" in page


@pytest.mark.parametrize("page", LINKED)
def test_a_page_with_contested_verdicts_links_to_the_list_once(page: str) -> None:
    text = (ROOT / page).read_text()
    assert text.count("papers/audit.yaml)") == 1
    assert "Under audit" not in text


def test_an_uncontested_verdict_has_no_note() -> None:
    assert audit.note("nitro_99") == audit.short("nitro_99") == ""
    text = figures.DOCUMENT.read_text()
    assert text.count(", under audit |") == len({*audit.OBJECTIONS} & {*figures.NAMES})
    rows = [
        line.split("|")[1].strip()
        for line in stellaris.PAGE.read_text().splitlines()
        if line.startswith(("| returns 2.2", "| costs 41"))
    ]
    assert len(rows) == 8
    assert [row for row in rows if not row.endswith(" (under audit)")] == [
        "costs 41 % less: 20 rounds, always-on servers",
        "costs 41 % less: 20 rounds",
    ]
