"""Algorithm 1 of the paper."""

from __future__ import annotations

import pytest

from runtime.gmi.costs import applicable, choice_of_paper


@pytest.mark.parametrize(
    ("devices", "chosen"),
    [
        ([0], "mpr"),
        ([3, 3, 3, 3], "mpr"),
        ([0, 0, 1, 1], "mrr"),
        ([0, 1, 2, 0, 1, 2, 0, 1, 2], "mrr"),
        ([0, 0, 0, 1, 1, 1], "har"),
        ([0, 0, 0, 1], "har"),
        ([0, 1, 2, 3, 3], "har"),
    ],
)
def test_the_paper_chooses_by_layout(devices: list[int], chosen: str) -> None:
    assert choice_of_paper(devices) == chosen
    assert chosen in applicable(devices)


def test_what_a_layout_allows() -> None:
    assert applicable([3, 3, 3]) == applicable([0]) == ("mpr",)
    assert applicable([0, 0, 1, 1]) == applicable([0, 1]) == ("mpr", "mrr", "har")
    assert applicable([0, 0, 0, 1, 1, 1]) == applicable([0, 1, 1]) == ("mpr", "har")
