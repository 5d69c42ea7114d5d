"""The page on the papers' figures says what their data say."""

from benchmarks.figures import __main__ as figures
from benchmarks.figures.nitro_4 import scores


def test_the_page_is_up_to_date() -> None:
    assert figures.DOCUMENT.read_text() == figures.page()


def test_a_score_is_high_where_the_ratio_is_low_and_decays_or_not() -> None:
    ratios = [None, 1.0, 3.0, 2.0]
    assert scores(ratios, decays=False) == [1.0, 1.0, 0.0, 0.5]
    assert scores(ratios)[3] == 0.5 * 0.96**4
