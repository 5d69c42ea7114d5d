"""The texts of errors."""

from __future__ import annotations

import pytest

from runtime.errors import one_line, without_credentials


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", ""),
        ("as it is", "as it is"),
        (" <html>\r\n\t<b>no  way</b>\n", "<html> <b>no way</b>"),
        ("\x1b[2Jgone\x00", "[2Jgone"),
        ("five.", "five."),
        ("a longer text", "a longer…"),
    ],
    ids=repr,
)
def test_others_words_become_one_line_of_bounded_length(text: str, line: str) -> None:
    assert one_line(text, max(len(line), 5)) == line


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("at redis://me:secret@host:1/0, or c@d", "at ***@host:1/0, or c@d"),
        ("a@b:c a:b@c@d", "a@b:c ***@d"),
        ("?password=x&y PASSWORD=z", "?password=***&y PASSWORD=***"),
        # Takes hours with a pattern that looks for a colon and an @ together.
        (":" * 100_000, ":" * 100_000),
    ],
    ids=["URL", "words", "options", "colons"],
)
def test_credentials_are_cut_out_of_any_text(text: str, told: str) -> None:
    assert without_credentials(text) == told
