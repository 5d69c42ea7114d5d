"""The page on the papers' figures says what their data say."""

from benchmarks.figures import __main__ as figures


def test_the_page_is_up_to_date() -> None:
    assert figures.DOCUMENT.read_text() == figures.page()
