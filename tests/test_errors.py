"""The texts of errors."""

from __future__ import annotations

import pytest

from runtime.errors import one_line


@pytest.mark.parametrize(("text", "line"), [
    ("", ""), ("as it is", "as it is"), (" <html>\r\n\t<b>no  way</b>\n", "<html> <b>no way</b>"),
    ("\x1b[2Jgone\x00", "[2Jgone"), ("five.", "five."), ("a longer text", "a longer…")], ids=repr)
def test_others_words_become_one_line_of_bounded_length(text: str, line: str) -> None:
    assert one_line(text, max(len(line), 5)) == line
