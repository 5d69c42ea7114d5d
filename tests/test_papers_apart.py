"""The product works without the papers: with their parts removed from a copy of the tree, the rest still imports."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.helpers import ROOT

REGISTRY = "runtime/registry.py"
"""Its lines that name a part are removed with the part."""
PAPERS = ("papers", "tests/papers")
MINIONSRL = (
    *PAPERS,
    "runtime/scaler/minions.py",
    "runtime/scaler/minions_settings.py",
    "runtime/scaler/saved_scheduler.py",
    "runtime/scaler/schedulers",
    "tests/scaler/schedulers.py",
    "tests/scaler/test_minions.py",
)
STILL_IN_THE_WAY = {
    "tests/experiment/test_resolved.py": "has an example of each kind's settings, imported from its own module",
    "tests/scaler/test_every_kind.py": "makes a scheduler for the kind that needs one",
}
"""Names that reach MinionsRL's parts without the registry."""
ROOMS = ("runtime", "lambda_actor", "stacks", "benchmarks")


def imported(source: str) -> Iterator[str]:
    """Returns a file's imports, each with the name that it takes from a module, and strings that name a class."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and ":" in node.value:
            yield from re.findall(r"^([\w.]+):\w+$", node.value)


def needs(source: str, parts: Iterable[str]) -> bool:
    """Whether a file imports from these parts of the tree."""
    modules = [part.removesuffix(".py").replace("/", ".") for part in parts]
    return any(module.rpartition(".")[2] in source for module in modules) and any(
        f"{one}.".startswith(f"{module}.") for one in imported(source) for module in modules
    )


def in_the_way(parts: tuple[str, ...]) -> set[str]:
    """Returns the files outside these parts that import from them, except the registry."""
    paths = [path for room in (*ROOMS, "tests", "docs") for path in (ROOT / room).rglob("*.py")]
    return {
        name
        for path in paths
        if (name := str(path.relative_to(ROOT))) != REGISTRY
        and not name.startswith(parts)
        and needs(path.read_text(), parts)
    }


def output_without(parts: tuple[str, ...], copy: Path, code: str) -> str:
    """Returns a program's output in a copy of the tree without these parts and their lines in the registry."""

    def is_left_out(folder: str, names: list[str]) -> list[str]:
        return [
            name
            for name in names
            if str((Path(folder) / name).relative_to(ROOT)) in (*parts, "benchmarks/results")
        ]

    for room in ROOMS:
        shutil.copytree(ROOT / room, copy / room, ignore=is_left_out)
    lines = (copy / REGISTRY).read_text().splitlines()
    (copy / REGISTRY).write_text(
        "\n".join(
            line
            for line in lines
            if not any(f'"{part.removesuffix(".py").replace("/", ".")}:' in line for part in parts)
        )
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_product_does_without_the_papers(tmp_path: Path) -> None:
    assert in_the_way(PAPERS) == set()
    output_without(
        PAPERS,
        tmp_path,
        "import runtime.cli.main, runtime.training.run, stacks.plan, benchmarks.seeds",
    )


def test_what_reaches_minionsrl_by_other_ways_than_the_registry_is_known(tmp_path: Path) -> None:
    assert in_the_way(MINIONSRL) == STILL_IN_THE_WAY.keys()
    kinds = output_without(
        MINIONSRL,
        tmp_path,
        "import runtime.training.run\n"
        "from runtime.experiment.schema import SCALERS\nprint(*SCALERS.settings)",
    ).split()
    assert "nitro" in kinds
    assert not [kind for kind in kinds if "minions" in kind]


@pytest.mark.parametrize(
    "line",
    [
        "import papers.estimates",
        "from papers import estimates",
        "from papers.estimates import text",
        "if TYPE_CHECKING:\n    from papers.estimates import text",
        'PLACE = "papers.estimates:text"',
    ],
)
def test_the_search_sees_every_way_to_import_a_module(line: str) -> None:
    assert needs(line, PAPERS)
    assert not needs("import papers_of_others", PAPERS)
