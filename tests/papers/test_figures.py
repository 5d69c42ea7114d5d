"""The pages on the papers' figures agree with their data."""

from __future__ import annotations

import pytest

from papers import __main__ as figures


def test_the_pages_are_up_to_date() -> None:
    for path, page in figures.pages().items():
        assert path.read_text() == page, path


@pytest.mark.parametrize("name", figures.NAMES)
def test_a_figure_has_all_its_parts(name: str) -> None:
    module, template = figures.module(name), figures.PAPERS / figures.NAMES[name] / "figures" / f"{name}.md"
    assert all(callable(getattr(module, part)) for part in ("measure", "draw", "verdict"))
    assert str(module.__doc__).startswith(template.read_text().partition("\n")[0].removeprefix("## "))
    if figures.results(name).exists():
        assert figures.section(name).status in figures.VERDICTS
