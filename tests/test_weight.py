from __future__ import annotations

from pathlib import Path

from tests.weight import code_lines, objections, parsed, weights


def test_only_code_counts() -> None:
    text = '"""Text.\n\nMore."""\n\n# A comment.\nx = (1,\n     2)  # two\n\n\ndef f():\n    """Text."""\n'
    assert code_lines(text) == 3


def test_growth_is_refused_unless_the_figure_is_raised_with_a_new_reason() -> None:
    record = parsed("# Comment\nruntime 100 as it was\ntests 300 as it was\n")
    assert not objections({"runtime": 100, "tests": 1}, record, record)
    assert "runtime has 101" in objections({"runtime": 101}, record, record)[0]
    assert "new has 1" in objections({"new": 1}, record, record)[0]
    assert "without a new reason" in objections({}, {"runtime": (101, "as it was")}, record)[0]
    assert not objections({"runtime": 101}, {"runtime": (101, "a new scaler")}, record)


def test_what_git_ignores_is_not_counted(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("build/\n__pycache__/\n")
    for path in ("runtime/a.py", "runtime/room/b.py", "runtime/__pycache__/c.py", "build/d.py", ".venv/e.py", "f.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("x = 1\n")
    assert weights(tmp_path) == {"runtime": 2}
