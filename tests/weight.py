"""Weighs each room of the tree, and refuses more than tests/rooms.txt records: ``make weight``.

A room weighs the larger of its statements and of its syntax nodes divided by 12.5, docstrings left out. So neither
longer lines nor denser statements make it lighter. Code in notebooks counts. Lines in other languages are a room, and
so are kilobytes of data. To let a room grow, put its new figure and the reason in rooms.txt in the same commit.
``--lower`` records lower figures.
"""

from __future__ import annotations

import argparse
import ast
import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RECORD = "tests/rooms.txt"
_NODES_PER_STATEMENT = 12.5
_PRODUCT = ("app.py", "lambda_actor", "nitro_rl", "runtime", "stacks")
_PYTHON, _LANGUAGES = (
    (".py", ".pyi", ".ipynb"),
    (".sh", ".js", ".mjs", ".html", ".css", "Dockerfile"),
)
_DATA = (".json", ".safetensors")

Record = dict[str, tuple[int, str]]
"""Highest weight by room, and the reason."""


def weigh(code: str) -> Counter[str]:
    """Counts the statements and the syntax nodes of Python code, docstrings left out."""
    nodes = list(ast.walk(ast.parse(code)))
    docstrings = sum(
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for node in nodes
    )
    statements = sum(isinstance(node, ast.stmt) for node in nodes)
    return Counter(statements=statements - docstrings, nodes=len(nodes) - 2 * docstrings)


def weights(root: Path) -> dict[str, int]:
    """Returns the weight of each room, by name; files that git ignores do not count."""
    counted: dict[str, Counter[str]] = {}
    found: Counter[str] = Counter()
    for path in _files(root):
        name = path.relative_to(root)
        if path.suffix in _PYTHON:
            counted.setdefault(_room(name), Counter()).update(weigh(_code(path)))
        elif name.name.endswith(_LANGUAGES):
            found["lines in other languages"] += len(path.read_text().splitlines())
        elif path.suffix in _DATA:
            found["kilobytes of data"] += path.stat().st_size
    found["kilobytes of data"] = -(-found["kilobytes of data"] // 1000)
    weighed = {
        room: max(count["statements"], round(count["nodes"] / _NODES_PER_STATEMENT))
        for room, count in counted.items()
    }
    return dict(sorted(weighed.items())) | {
        name: figure for name, figure in found.items() if figure
    }


def _files(root: Path) -> Iterator[Path]:
    ignored = {line.strip("/") for line in (root / ".gitignore").read_text().splitlines()}
    for path in sorted(root.rglob("*")):
        parts = path.relative_to(root).parts
        if path.is_file() and not ignored & set(parts) and not parts[0].startswith("."):
            yield path


def _room(name: Path) -> str:
    """Returns the room of a file: its top folder, in runtime the folder there."""
    parts = name.parts[:-1]
    if parts[:2] == ("tests", "simulators") or (name.parts[0] == "runtime" and len(parts) > 1):
        return "/".join(parts[:2])
    return name.parts[0]


def _code(path: Path) -> str:
    """Returns a file's Python code; of a notebook, the cells without lines for the shell."""
    if path.suffix != ".ipynb":
        return path.read_text()
    cells = [
        cell["source"]
        for cell in json.loads(path.read_text())["cells"]
        if cell["cell_type"] == "code"
    ]
    lines = "\n".join("".join(cell) for cell in cells).splitlines()
    return "\n".join(line for line in lines if not line.startswith(("!", "%")))


def parsed(text: str) -> Record:
    rows = [line.split(": ", 2) for line in text.splitlines() if line and not line.startswith("#")]
    return {room: (int(figure), reason) for room, figure, reason in rows}


def objections(now: Mapping[str, int], record: Record, before: Record) -> list[str]:
    """Returns the violations: growth above the record, and a raised figure without a new reason.

    Args:
        now: Weights by room.
        record: Allowed weights.
        before: The record before its last change.
    """
    grown = [
        f"{room} weighs {figure:,}, more than the {record.get(room, (0, ''))[0]:,} in {RECORD}: "
        "make it less, or raise the figure there and say why"
        for room, figure in now.items()
        if figure > record.get(room, (0, ""))[0]
    ]
    return grown + [
        f"{RECORD}: {room} was raised from {before[room][0]:,} to {figure:,} without a new reason"
        for room, (figure, reason) in record.items()
        if room in before and figure > before[room][0] and reason == before[room][1]
    ]


def record_before(root: Path, text: str) -> Record:
    """Returns the record before its last change, committed or not; empty if git is missing or does not know it."""
    if shutil.which("git") is None:
        return {}

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True
        ).stdout

    commits = git("log", "-2", "--format=%h", "--", RECORD).split()
    earlier = [git("show", f"{commit}:{RECORD}") for commit in commits]
    return parsed(next((one for one in earlier if one != text), ""))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.weight", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--lower", action="store_true", help="record the figures that have become less"
    )
    options = parser.parse_args(arguments)
    text = (ROOT / RECORD).read_text()
    now, record = weights(ROOT), parsed(text)
    print(f"{'room':26}{'recorded':>9}{'now':>8}{'change':>8}")
    for room in (*now, *(record.keys() - now.keys())):
        recorded, figure = record.get(room, (0, ""))[0], now.get(room, 0)
        print(f"{room:26}{recorded:9,}{figure:8,}{figure - recorded:+8,}")
    print(
        f"product: {sum(figure for room, figure in now.items() if room.split('/')[0] in _PRODUCT):,}"
    )
    found = objections(now, record, record_before(ROOT, text))
    print("\n".join(found), file=sys.stderr, end="\n" if found else "")
    if options.lower:
        comments = [line for line in text.splitlines() if line.startswith("#")]
        rows = [
            f"{room}: {min(figure, now[room])}: {reason}"
            for room, (figure, reason) in record.items()
            if room in now
        ]
        (ROOT / RECORD).write_text("\n".join([*comments, *rows, ""]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
