"""The pages on the papers' figures agree with their data."""

from __future__ import annotations

import json
import re

import pytest

from papers import __main__ as figures


def test_the_pages_are_up_to_date() -> None:
    for path, page in figures.pages().items():
        assert path.read_text() == page, path


RESULTS = {"Nitro": {2, 3, 4, 5, *range(7, 21)}, "MinionsRL": {2, *range(4, 10)}}
"""The numbers of the papers' figures with results. MinionsRL's Table 2 has results, too."""


def test_the_page_names_each_figure_with_results_measured_or_not() -> None:
    text = figures.DOCUMENT.read_text()
    for paper, numbers in RESULTS.items():
        lists = re.findall(rf"{paper} Figs?\. ((?:\d+(?:, and |, | and )?)+)", text)
        assert {int(one) for found in lists for one in re.findall(r"\d+", found)} == numbers
    assert "MinionsRL Table 2" in text


def test_figures_show_the_same_trainings_or_say_that_theirs_are_older() -> None:
    data = {
        name: json.loads(figures.results(name).read_text())["data"]
        for name in figures.NAMES
        if figures.results(name).exists()
    }
    newest = data["nitro_10"]["runs"]["hopper"]
    for arms in (
        data["nitro_14"]["PPO"]["runs"]["hopper"],
        data["nitro_16"]["runs"],
        data["nitro_17"]["runs"],
    ):
        assert all(arms[arm] == newest[arm] for arm in arms.keys() & newest.keys())
    says_older = "older\nthan those of Figs. 10, 14, 16, and 17" in figures.section("nitro_15").text
    assert says_older == (data["nitro_15"]["runs"]["nitro"] != newest["nitro"])


@pytest.mark.parametrize("name", figures.NAMES)
def test_a_figure_has_all_its_parts(name: str) -> None:
    module, template = (
        figures.module(name),
        figures.PAPERS / figures.NAMES[name] / "figures" / f"{name}.md",
    )
    assert all(callable(getattr(module, part)) for part in ("measure", "draw", "verdict"))
    assert str(module.__doc__).startswith(
        template.read_text().partition("\n")[0].removeprefix("## ")
    )
    if figures.results(name).exists():
        assert figures.section(name).status in figures.VERDICTS
