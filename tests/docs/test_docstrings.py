"""Docstrings begin with a summary."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import ROOT

ROOMS = ("nitro_rl", "runtime", "lambda_actor", "stacks")


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        documented = isinstance(
            node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        )
        if documented and (text := ast.get_docstring(node)):
            yield node.body[0].lineno, text


@pytest.mark.parametrize(
    ("what", "pattern"),
    [
        ("has no summary", r"\A((Args|Raises|Returns|Yields):|See\b)"),
        ("says null for None", r"(?<!`)\bnull\b(?!`)"),
    ],
)
def test_no_docstring(what: str, pattern: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} {text[:50]!r} {what}"
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
        for line, text in docstrings(path)
        if re.search(pattern, text)
    ]
    assert found == []
