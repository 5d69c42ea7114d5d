"""Measures how many small defects the tests find: makes one-line mutants, and runs the tests that reach them.

A mutant is the source with one operator, constant, returned value or call changed. Tests should fail for it (it is
killed). If all pass, no test checks that line (it survives).

    python benchmarks/mutants.py record --checkout . --out mutants/now                 # coverage, then 200 mutants
    python benchmarks/mutants.py record --checkout . --out mutants/now --like mutants/before/mutants.json
    python benchmarks/mutants.py compare mutants/before/mutants.json mutants/now/mutants.json

``record`` works on a copy of the checkout. First it runs all tests once, and records which test reaches which line
(coverage contexts) and how long each takes. Then it runs each mutant against the tests that reach its line, fastest
first, until one fails. Both steps are kept in ``--out``, and the same command continues after an interruption. If no
test reaches a line in pytest's own process (perhaps in a process that a test starts, or only at import), it runs the
tests that reach another line of the same file, and the tests named after its file or folder.

Mutants are identified by content (class, function, the line's text, the change in it), so that ``--like`` finds the
mutants of an earlier recording even after files have moved. Needs `coverage` and `pytest`.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

SOURCES = ("nitro_rl", "runtime", "lambda_actor", "stacks")
PLUGIN = "mutants_plugin"
COMPARISONS = {
    "<": "<=",
    "<=": "<",
    ">": ">=",
    ">=": ">",
    "==": "!=",
    "!=": "==",
    "is": "is not",
    "is not": "is",
    "in": "not in",
    "not in": "in",
}
ARITHMETIC = {"+": "-", "-": "+", "*": "/", "/": "*", "//": "*", "%": "*", "**": "*", "@": "+"}
TOKENS = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Is: "is",
    ast.IsNot: "is not",
    ast.In: "in",
    ast.NotIn: "not in",
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.MatMult: "@",
    ast.And: "and",
    ast.Or: "or",
}


@dataclass(frozen=True)
class Mutant:
    """One change of one line.

    Attributes:
        operator: Kind of change: comparison, arithmetic, and/or, boolean, integer, return, call.
        scope: Names of the enclosing classes and functions, joined by dots.
        text: The line's text without its indentation.
        column: Where the change begins in ``text``.
        before: The original text.
        after: The mutant's text.
        occurrence: Number of equal lines above in the same scope.
        path: The file, relative to the checkout; not part of the identity.
        line: The line's number, from 1; not part of the identity.
    """

    operator: str
    scope: str
    text: str
    column: int
    before: str
    after: str
    occurrence: int
    path: str
    line: int

    @property
    def identity(self) -> str:
        return json.dumps(
            [self.operator, self.scope, self.text, self.column, self.after, self.occurrence]
        )

    @property
    def loose_identity(self) -> str:
        """Omits the enclosing class and the spaces in the line, for code that moved."""
        return json.dumps(
            [
                self.operator,
                self.scope.rpartition(".")[2],
                "".join(self.text.split()),
                len("".join(self.text[: self.column].split())),
                self.after,
            ]
        )


# Making mutants


def mutants_of(path: Path, root: Path) -> list[Mutant]:
    """All mutants of one file."""
    source = path.read_text()
    lines = source.splitlines()
    counts: Counter[tuple[str, str]] = Counter()
    occurrence: dict[tuple[str, int], int] = {}
    found = []
    changes = sorted(_changes(ast.parse(source), lines, ""), key=lambda change: change[2:])
    for operator, scope, line, column, before, after in changes:
        text = lines[line - 1].strip()
        if (scope, line) not in occurrence:
            occurrence[scope, line] = counts[scope, text]
            counts[scope, text] += 1
        indentation = len(lines[line - 1]) - len(lines[line - 1].lstrip())
        found.append(
            Mutant(
                operator,
                scope,
                text,
                column - indentation,
                before,
                after,
                occurrence[scope, line],
                str(path.relative_to(root)),
                line,
            )
        )
    return found


def _changes(
    node: ast.AST, lines: list[str], scope: str
) -> Iterator[tuple[str, str, int, int, str, str]]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            scope = f"{scope}.{name}".lstrip(".")
        case ast.JoinedStr() | ast.MatchValue():  # Positions inside an f-string are not the file's.
            return
        case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
            return
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            for operation, first, second in zip(
                ops, [left, *comparators], comparators, strict=False
            ):
                token = TOKENS[type(operation)]
                yield from _swap(
                    "comparison", scope, lines, first, second, token, COMPARISONS[token]
                )
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in TOKENS:
            token = TOKENS[type(operation)]
            if not any(
                isinstance(side, ast.Constant) and isinstance(side.value, str)
                for side in (left, right)
            ):
                yield from _swap("arithmetic", scope, lines, left, right, token, ARITHMETIC[token])
        case ast.BoolOp(op=operation, values=values):
            token = TOKENS[type(operation)]
            for first, second in zip(values, values[1:], strict=False):
                yield from _swap(
                    "and/or", scope, lines, first, second, token, "or" if token == "and" else "and"
                )
        case ast.Constant(value=bool() as value):
            yield "boolean", scope, node.lineno, _column(lines, node), str(value), str(not value)
        case ast.Constant(value=int() as value):
            text = ast.get_source_segment("\n".join(lines), node) or str(value)
            yield "integer", scope, node.lineno, _column(lines, node), text, str(value + 1)
        case ast.Return(value=ast.expr() as value) if value.lineno == value.end_lineno and not (
            isinstance(value, ast.Constant) and value.value is None
        ):
            text = ast.get_source_segment("\n".join(lines), value) or ""
            yield "return", scope, value.lineno, _column(lines, value), text, "None"
        case ast.Expr(value=ast.Call() as call) if call.lineno == call.end_lineno:
            text = ast.get_source_segment("\n".join(lines), call) or ""
            yield "call", scope, call.lineno, _column(lines, call), text, "None"
    for field, child in ast.iter_fields(node):
        if field not in ("annotation", "returns"):
            for inner in child if isinstance(child, list) else [child]:
                if isinstance(inner, ast.AST):
                    yield from _changes(inner, lines, scope)


def _column(lines: list[str], node: ast.expr) -> int:
    return len(lines[node.lineno - 1].encode()[: node.col_offset].decode())


def _swap(
    operator: str,
    scope: str,
    lines: list[str],
    left: ast.expr,
    right: ast.expr,
    before: str,
    after: str,
) -> Iterator[tuple[str, str, int, int, str, str]]:
    if left.end_lineno != right.lineno:
        return
    line = lines[right.lineno - 1]
    begin, end = len(line.encode()[: left.end_col_offset].decode()), _column(lines, right)
    pattern = (
        r"\b" + before.replace(" ", r"\s+") + r"\b" if before[0].isalpha() else re.escape(before)
    )
    if found := re.search(pattern, line[begin:end]):
        yield operator, scope, right.lineno, begin + found.start(), found[0], after


def all_mutants(root: Path) -> list[Mutant]:
    """All mutants of a checkout, at most one per identity."""
    files = [path for source in SOURCES for path in sorted((root / source).rglob("*.py"))]
    return list(
        {mutant.identity: mutant for path in files for mutant in mutants_of(path, root)}.values()
    )


def draw(mutants: list[Mutant], count: int, seed: int) -> list[Mutant]:
    """Returns ``count`` mutants, at most one per line, with equally frequent operators until one runs out."""
    generator = random.Random(seed)
    piles: dict[str, list[Mutant]] = {}
    for mutant in generator.sample(mutants, len(mutants)):
        piles.setdefault(mutant.operator, []).append(mutant)
    drawn: dict[tuple[str, int], Mutant] = {}
    while len(drawn) < count and any(piles.values()):
        for operator in sorted(piles):
            if piles[operator] and len(drawn) < count:
                mutant = piles[operator].pop()
                drawn.setdefault((mutant.path, mutant.line), mutant)
    return list(drawn.values())


def locate(wanted: dict[str, Any], mutants: list[Mutant]) -> Mutant | None:
    """Returns this checkout's mutant with the same change; None if the line is gone or no longer unique."""
    earlier = Mutant(**wanted)
    for identity in ("identity", "loose_identity"):
        same = [
            mutant for mutant in mutants if getattr(mutant, identity) == getattr(earlier, identity)
        ]
        namesakes = [mutant for mutant in same if Path(mutant.path).name == Path(earlier.path).name]
        for found in (namesakes, same):
            if len(found) == 1:
                return found[0]
    return None


# Running tests


def run_tests(
    copy: Path, python: str, arguments: list[str], timeout_s: float, **environment: str
) -> tuple[int | None, dict[str, Any]]:
    """Returns pytest's exit status in the copy (None: out of time) and the record of the plugin below."""
    result = copy.parent / "result.json"
    result.unlink(missing_ok=True)
    with (copy.parent / "output.txt").open("w") as output:
        process = subprocess.Popen(
            [python, *arguments],
            cwd=copy,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "MUTANTS_RESULT": str(result), **environment},
        )
        try:
            code: int | None = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return code, json.loads(result.read_text()) if result.exists() else {
        "durations_s": {},
        "failed": [],
    }


class Reach:
    """Knows which tests reach which line, and how long each takes."""

    def __init__(self, out: Path, copy: Path) -> None:
        from coverage import CoverageData

        noted = json.loads((out / "tests.json").read_text())
        self.durations_s = {
            test: s for test, s in noted["durations_s"].items() if test not in set(noted["failed"])
        }
        self._data = CoverageData(basename=str(out / "coverage"))
        self._data.read()
        self._copy = copy
        self._by_line: dict[str, dict[int, list[str]]] = {}

    def tests(self, mutant: Mutant) -> tuple[str, list[str]]:
        """Returns how the tests were found ("line" or "file") and the tests, fastest first."""
        if mutant.path not in self._by_line:
            path = str(self._copy / mutant.path)
            self._by_line[mutant.path] = self._data.contexts_by_lineno(path)
        by_line = self._by_line[mutant.path]
        if found := self._known(by_line.get(mutant.line, [])):
            return "line", found
        stem, room = Path(mutant.path).stem, Path(mutant.path).parent.name
        named = re.compile(rf"(^|/)test_{stem}\w*\.py|(^|/){room}/test_|(^|/)test_{room}\w*\.py")
        near = {test for tests in by_line.values() for test in tests}
        return "file", self._known(near | {test for test in self.durations_s if named.search(test)})

    def _known(self, tests: Any) -> list[str]:
        return sorted(
            {test for test in tests if test in self.durations_s},
            key=lambda test: self.durations_s[test],
        )


def judge(mutant: Mutant, reach: Reach, copy: Path, python: str, limit_s: float) -> dict[str, Any]:
    """Runs one mutant and returns its result."""
    how, tests = reach.tests(mutant)
    chosen, total_s = [], 0.0
    for test in tests:
        total_s += reach.durations_s[test]
        if chosen and total_s > limit_s:
            break
        chosen.append(test)
    if not chosen:
        return {"result": "not covered"}
    path = copy / mutant.path
    source = path.read_text()
    lines = source.splitlines(keepends=True)
    line = lines[mutant.line - 1]
    start = line.index(mutant.text) + mutant.column
    assert line[start:].startswith(mutant.before), (mutant, line)
    lines[mutant.line - 1] = line[:start] + mutant.after + line[start + len(mutant.before) :]
    selection = copy.parent / "selection.json"
    selection.write_text(json.dumps(chosen))
    files = sorted({test.partition("::")[0] for test in chosen})
    began = time.monotonic()
    try:
        write(path, "".join(lines))
        code, noted = run_tests(
            copy,
            python,
            ["-m", "pytest", "-x", "-q", "-p", PLUGIN, *files],
            timeout_s=60 + 3 * min(total_s, limit_s),
            MUTANTS_SELECTION=str(selection),
        )
    finally:
        write(path, source)
    return {
        "result": "survived" if code == 0 else "killed" if code != 5 else "not covered",
        "found_by": how,
        "tests": len(chosen),
        "exit_status": code,
        "by": noted["failed"][:1],
        "s": round(time.monotonic() - began, 1),
    }


def write(path: Path, text: str) -> None:
    """Writes a file with an ever later timestamp: Python compares whole seconds to find stale bytecode."""
    changed = path.stat().st_mtime + 2
    path.write_text(text)
    os.utime(path, (changed, changed))


def record(arguments: argparse.Namespace) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # Also ends the running tests.
    out, checkout = arguments.out.resolve(), arguments.checkout.resolve()
    out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    copy = Path(tempfile.gettempdir()) / f"mutants-{out.name}" / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    unneeded = shutil.ignore_patterns(".git", ".venv", "runs", "__pycache__")
    shutil.copytree(checkout, copy, symlinks=True, ignore=unneeded)
    shutil.copy(__file__, copy / f"{PLUGIN}.py")
    if not (out / "tests.json").exists():
        settings = copy.parent / "coverage.ini"
        settings.write_text(
            f"[run]\nsource = {','.join(SOURCES)}\ndata_file = {out / 'coverage'}\n"
        )
        code, noted = run_tests(
            copy,
            arguments.python,
            [
                "-m",
                "coverage",
                "run",
                f"--rcfile={settings}",
                "-m",
                "pytest",
                "-p",
                PLUGIN,
                "tests",
            ],
            arguments.coverage_limit_s,
        )
        shutil.copy(copy.parent / "output.txt", out / "coverage.txt")
        if code not in (0, 1):
            sys.exit(
                f"the tests did not run to their end (exit status {code}); see {out / 'coverage.txt'}"
            )
        print(
            f"coverage: exit status {code}, {len(noted['durations_s'])} tests, failed: {noted['failed']}",
            flush=True,
        )
        (out / "tests.json").write_text(json.dumps(noted, indent=0))
    here = all_mutants(copy)
    if arguments.like is None:
        there = here if arguments.also_in is None else all_mutants(arguments.also_in.resolve())
        drawn = (
            one
            for one in draw(here, len(here), arguments.seed)
            if locate(asdict(one), there) is not None
        )
        pairs: list[tuple[Mutant, Mutant | None]] = [
            (one, one) for one in islice(drawn, arguments.count)
        ]
    else:
        earlier = json.loads(arguments.like.read_text())
        pairs = [(Mutant(**entry["mutant"]), locate(entry["mutant"], here)) for entry in earlier]
    kept = out / "mutants.json"
    results = by_identity(kept) if kept.exists() else {}
    reach = Reach(out, copy)
    for wanted, mutant in pairs:
        if time.monotonic() - began > arguments.limit_s:
            print("out of time; the same command continues")
            break
        if wanted.identity in results:
            continue
        entry = {"mutant": asdict(wanted), "at": None, "result": "gone"}
        if mutant is not None:
            verdict = judge(mutant, reach, copy, arguments.python, arguments.tests_limit_s)
            entry |= {"at": f"{mutant.path}:{mutant.line}", **verdict}
        results[wanted.identity] = entry
        kept.write_text(json.dumps(list(results.values()), indent=1))
        print(len(results), entry, flush=True)


def by_identity(path: Path) -> dict[str, dict[str, Any]]:
    return {Mutant(**entry["mutant"]).identity: entry for entry in json.loads(path.read_text())}


def compare(arguments: argparse.Namespace) -> None:
    sides = [by_identity(path) for path in (arguments.before, arguments.after)]
    common = [
        identity
        for identity in sides[0]
        if identity in sides[1] and sides[1][identity]["result"] != "gone"
    ]
    print(f"{len(common)} mutants exist in both ({len(sides[0])} and {len(sides[1])} recorded)")
    for name, side in zip(("before", "after"), sides, strict=True):
        counts = Counter(side[identity]["result"] for identity in common)
        print(
            f"{name}: {counts['killed']} killed ({counts['killed'] / max(len(common), 1):.1%}), "
            f"{counts['survived']} survived, {counts['not covered']} not covered"
        )
    for one, other, name in ((0, 1, "before"), (1, 0, "after")):
        print(f"killed {name} only:")
        for identity in common:
            entry = sides[one][identity]
            if entry["result"] == "killed" and sides[other][identity]["result"] != "killed":
                mutant = entry["mutant"]
                print(
                    f"    {sides[1][identity]['at']} {mutant['text']}\n"
                    f"        {mutant['before']} → {mutant['after']}, found by {entry['by']}"
                )


# As a plugin of pytest, in the copy


class _Notes:
    durations_s: dict[str, float] = {}
    failed: list[str] = []


def pytest_collection_modifyitems(items: list[Any]) -> None:
    if (path := os.environ.get("MUTANTS_SELECTION")) is not None:
        rank = {test: index for index, test in enumerate(json.loads(Path(path).read_text()))}
        chosen = sorted(
            (item for item in items if item.nodeid in rank), key=lambda item: rank[item.nodeid]
        )
        # A file's tests remain together, because they share fixtures.
        first: dict[Any, int] = {}
        for item in chosen:
            first.setdefault(item.path, rank[item.nodeid])
        items[:] = sorted(chosen, key=lambda item: first[item.path])


def pytest_runtest_logstart(nodeid: str) -> None:
    if (module := sys.modules.get("coverage")) and (running := module.Coverage.current()):
        running.switch_context(nodeid)


def pytest_runtest_logfinish(nodeid: str) -> None:
    if (module := sys.modules.get("coverage")) and (running := module.Coverage.current()):
        running.switch_context("")


def pytest_runtest_logreport(report: Any) -> None:
    _Notes.durations_s[report.nodeid] = _Notes.durations_s.get(report.nodeid, 0.0) + report.duration
    if report.failed:
        _Notes.failed.append(report.nodeid)


def pytest_sessionfinish() -> None:
    Path(os.environ["MUTANTS_RESULT"]).write_text(
        json.dumps({"durations_s": _Notes.durations_s, "failed": sorted(set(_Notes.failed))})
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    recording = commands.add_parser("record", help="run mutants of a checkout")
    recording.add_argument("--checkout", type=Path, default=Path("."))
    recording.add_argument(
        "--out", type=Path, required=True, help="folder of the coverage and the results"
    )
    recording.add_argument(
        "--like", type=Path, help="mutants.json of an earlier recording, to run the same"
    )
    recording.add_argument(
        "--also-in",
        type=Path,
        metavar="CHECKOUT",
        help="draw only mutants that this other checkout also has",
    )
    recording.add_argument("--count", type=int, default=200)
    recording.add_argument("--seed", type=int, default=1)
    recording.add_argument(
        "--python", default=sys.executable, help="interpreter with the checkout's requirements"
    )
    recording.add_argument(
        "--tests-limit-s", type=float, default=60, help="seconds of tests per mutant"
    )
    recording.add_argument("--coverage-limit-s", type=float, default=7200)
    recording.add_argument(
        "--limit-s",
        type=float,
        default=4 * 3600,
        help="seconds after which no further mutant begins",
    )
    recording.set_defaults(run=record)
    comparing = commands.add_parser("compare", help="compare two recordings")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.set_defaults(run=compare)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
