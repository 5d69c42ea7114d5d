"""docs/guides/when-something-fails.md quotes messages as the program prints them."""

import re

from tests.helpers import ROOT


def test_messages_quoted_in_the_first_columns_are_in_the_sources() -> None:
    """A "…" is a value in the message. AWS's own words are in lists, not in tables."""
    sources = "".join(
        path.read_text()
        for folder in ("runtime", "stacks")
        for path in (ROOT / folder).rglob("*.py")
    )
    printed = re.sub(r"\{[^{}]*\}", "…", re.sub(r'"\n\s*f?"', "", sources))
    page = (ROOT / "docs" / "guides" / "when-something-fails.md").read_text()
    cells = re.findall(r"^\| ([^|]+) \|", page, re.MULTILINE)
    quoted = [phrase for cell in cells for phrase in re.findall("`([^`]+)`", cell)]
    assert quoted
    assert [phrase for phrase in quoted if phrase not in printed] == []
