from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.weight import objections, parsed, weigh, weights


def test_docstrings_comments_and_line_breaks_weigh_nothing() -> None:
    plain = "def f(a, b):\n    return g(a, b)\n"
    written = '"""Text.\n\nMore."""\n\n# So.\ndef f(\n    a, b\n):\n    """Text."""\n    return g(\n        a, b)\n'
    assert weigh(written) == weigh(plain)
    assert weigh(plain)["statements"] == 2


def test_dense_code_weighs_as_much_as_plain_code() -> None:
    values = ", ".join(f"a[{number}] + b.c({number})" for number in range(100))
    assert weigh(f"x = [{values}]\n")["statements"] == 1
    assert weigh(f"x = [{values}]\n")["nodes"] / 12.5 > 80


def test_growth_is_refused_unless_the_figure_is_raised_with_a_new_reason() -> None:
    record = parsed("# Comment\nruntime/gmi: 100: as it was\ntests: 300: as it was\n")
    assert not objections({"runtime/gmi": 100, "tests": 1}, record, record)
    assert "runtime/gmi weighs 101" in objections({"runtime/gmi": 101}, record, record)[0]
    assert "new weighs 1" in objections({"new": 1}, record, record)[0]
    assert "without a new reason" in objections({}, {"runtime/gmi": (101, "as it was")}, record)[0]
    assert not objections({"runtime/gmi": 101}, {"runtime/gmi": (101, "a new mesh")}, record)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / ".gitignore").write_text("build/\n__pycache__/\n")
    notebook = {
        "cells": [
            {"cell_type": "code", "source": ["!ls\n", "x = 1\n", "y = 2"]},
            {"cell_type": "markdown"},
        ]
    }
    for path, text in {
        "runtime/a.py": "x = 1\n",
        "runtime/room/b.py": "x = 1\n",
        "runtime/room/deeper/c.py": "x = 1\n",
        "tests/simulators/d.py": "x = 1\n",
        "tests/e.py": "x = 1\n",
        "tests/training/f.py": "x = 1\n",
        "docs/g.ipynb": json.dumps(notebook),
        "stacks/boot.sh": "a\nb\n",
        "benchmarks/h.json": "1" * 1001,
        "runtime/__pycache__/i.py": "x = 1\n",
        "build/j.py": "x = 1\n",
        ".venv/k.py": "x = 1\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    return tmp_path


def test_each_room_is_weighed_and_what_git_ignores_is_not(tree: Path) -> None:
    assert weights(tree) == {
        "docs": 2,
        "runtime": 1,
        "runtime/room": 2,
        "tests": 2,
        "tests/simulators": 1,
        "lines in other languages": 2,
        "kilobytes of data": 2,
    }
