"""Counts the lines of code in each top folder, and refuses more than tests/weight.txt records: ``make weight``.

Blank lines, comments and docstrings do not count. To let a folder grow, put its new figure and the reason in weight.txt
in the same commit. ``--lower`` records lower figures.
"""

from __future__ import annotations

import argparse
import ast
import io
import shutil
import subprocess
import sys
import tokenize
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORD = "tests/weight.txt"
_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}

Record = dict[str, tuple[int, str]]
"""Most lines per folder, and the reason."""


def code_lines(text: str) -> int:
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def weights(root: Path) -> dict[str, int]:
    """Returns the lines of each top folder with Python code; files that git ignores do not count."""
    ignored = {line.strip("/") for line in (root / ".gitignore").read_text().splitlines()}
    found = {}
    for folder in sorted(root.iterdir()):
        if folder.is_dir() and not folder.name.startswith(".") and folder.name not in ignored:
            files = [path for path in folder.rglob("*.py") if not ignored & set(path.relative_to(folder).parts)]
            if lines := sum(code_lines(path.read_text()) for path in files):
                found[folder.name] = lines
    return found


def parsed(text: str) -> Record:
    rows = [line.split(maxsplit=2) for line in text.splitlines() if line and not line.startswith("#")]
    return {folder: (int(figure), reason) for folder, figure, reason in rows}


def objections(now: Mapping[str, int], record: Record, before: Record) -> list[str]:
    """Returns the violations: growth above the record, and a raised figure without a new reason.

    Args:
        now: Lines by folder.
        record: Allowed lines.
        before: The record before its last change.
    """
    grown = [f"{folder} has {lines:,} lines of code, more than the {record.get(folder, (0, ''))[0]:,} in {RECORD}: "
             "make it less, or raise the figure there and say why"
             for folder, lines in now.items() if lines > record.get(folder, (0, ""))[0]]
    return grown + [f"{RECORD}: {folder} was raised from {before[folder][0]:,} to {figure:,} without a new reason"
                    for folder, (figure, reason) in record.items()
                    if folder in before and figure > before[folder][0] and reason == before[folder][1]]


def record_before(root: Path, text: str) -> Record:
    """Returns the record before its last change, committed or not; empty if git is missing or does not know it."""
    if shutil.which("git") is None:
        return {}

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True).stdout

    commits = git("log", "-2", "--format=%h", "--", RECORD).split()
    earlier = [git("show", f"{commit}:{RECORD}") for commit in commits]
    return parsed(next((one for one in earlier if one != text), ""))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.weight", description=__doc__.splitlines()[0])
    parser.add_argument("--lower", action="store_true", help="record the figures that have become less")
    options = parser.parse_args(arguments)
    text = (ROOT / RECORD).read_text()
    now, record = weights(ROOT), parsed(text)
    print(f"{'folder':14}{'recorded':>9}{'now':>8}{'change':>8}")
    for folder in sorted({*now, *record}):
        recorded, lines = record.get(folder, (0, ""))[0], now.get(folder, 0)
        print(f"{folder:14}{recorded:9,}{lines:8,}{lines - recorded:+8,}")
    found = objections(now, record, record_before(ROOT, text))
    print("\n".join(found), file=sys.stderr, end="\n" if found else "")
    if options.lower:
        comments = [line for line in text.splitlines() if line.startswith("#")]
        rows = [f"{folder} {min(figure, now[folder])} {reason}"
                for folder, (figure, reason) in record.items() if folder in now]
        (ROOT / RECORD).write_text("\n".join([*comments, *rows, ""]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
