"""Pages of results: Markdown templates with placeholders for the numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2


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


def table(heads: list[str], rows: list[list[str]]) -> str:
    """Returns a Markdown table."""
    lines = [
        f"| {' | '.join(heads)} |",
        "|---" * len(heads) + "|",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
    return "\n".join(lines) + "\n"
