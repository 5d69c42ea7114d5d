"""Pages of results: Markdown templates with placeholders for the numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2

BEGIN, END = "<!-- {} -->\n", "<!-- end -->\n"


def rendered(template: Path, **values: Any) -> str:
    """Returns the Markdown of a template, which may include other templates of its folder.

    Args:
        values: Values of its ``{{ … }}`` placeholders. A name without a value is an error.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template.parent),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    return environment.get_template(template.name).render(values)


def with_part(text: str, name: str, part: str) -> str:
    """Returns a page with a new part between the marks of that name; unchanged if it has no such marks."""
    begin = BEGIN.format(name)
    if begin not in text:
        return text
    before, rest = text.split(begin)
    return before + begin + part + END + rest.split(END, 1)[1]


def table(heads: list[str], rows: list[list[str]]) -> str:
    """Returns a Markdown table."""
    lines = [
        f"| {' | '.join(heads)} |",
        "|---" * len(heads) + "|",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
    return "\n".join(lines) + "\n"
