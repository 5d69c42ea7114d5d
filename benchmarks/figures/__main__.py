"""Measures and draws the figures of the papers.

    python -m benchmarks.figures NAME [NAME …] [--work build/figures] [--draw] [--all]
    python -m benchmarks.figures NAME --page
    python -m benchmarks.figures --docs

Each figure is a module of this folder: its docstring's first line says which figure it is, ``PAPER`` what the paper
says of it, ``METHOD`` how it is measured here; ``measure(work)`` returns its data, and goes on from what an interrupted
measurement left in that folder; ``draw(data, path)`` draws it; ``verdict(data)`` returns ``reproduced``, ``partly``,
``not`` or ``not measured here``, and why; ``page(data, path)``, if it is there, makes a page of it that can be turned,
which ``--page`` writes into the folder of what is measured. Data and picture become NAME.json and NAME.png in
benchmarks/results/figures, and docs/figures.md is written anew from all that are there.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks import audit
from benchmarks.work_rates import processor

ROOT = Path(__file__).resolve().parents[2]
RESULTS, DOCUMENT = ROOT / "benchmarks" / "results" / "figures", ROOT / "docs" / "figures.md"
NAMES = (*(f"nitro_{number}" for number in (2, 3, 4, 5, 7, 8, 9, 10, 11, 14, 15, 16, 17, 18, 20)),
         "minions_table_2", "minions_5", "minions_6", "minions_9")
"""In the order of the page."""
LONG = ("nitro_10", "nitro_11", "nitro_14", "nitro_15", "nitro_16", "nitro_17", "minions_9")
"""Not of `make figures`, measured only if they are named: up to 40 whole trainings each, some of which they share."""
VERDICTS = ("reproduced", "partly", "not", "not measured here")
_PAGE = """# The papers' figures

Which figures of the papers come out again on this engine? `python -m benchmarks.figures NAME` measures one of them, and
`make figures` all but those with many whole trainings. If it is interrupted, the same command goes on. The page is
written by `python -m benchmarks.figures`; data and pictures are in `benchmarks/results/figures`.

No claim about learning is judged on fewer than five seeds; here they are the seeds 0, 1, 2, 3 and 4. Intervals are
95 % percentile bootstraps of interquartile means over seeds ([guides/seeds](guides/seeds.md#the-estimates)). What is
modelled says so. A verdict is about what the paper claims: its text has no values for most figures.

"""


def figure(name: str) -> ModuleType:
    return importlib.import_module(f"benchmarks.figures.{name}")


def provenance(name: str) -> dict[str, Any]:
    """Command, commit, day and machine."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True,
                            check=False).stdout.strip()
    return {"command": f"python -m benchmarks.figures {name}", "commit": commit, "date": time.strftime("%Y-%m-%d"),
            "hardware": f"{os.cpu_count()} shared cores of {processor()}; one thread"}


def make(name: str, work: Path, *, is_drawn_only: bool) -> None:
    """Measures and draws one figure."""
    module, path = figure(name), RESULTS / f"{name}.json"
    RESULTS.mkdir(parents=True, exist_ok=True)
    if not is_drawn_only:
        path.write_text(json.dumps({**provenance(name), "data": module.measure(work)}, ensure_ascii=False) + "\n")
    data = json.loads(path.read_text())["data"]
    module.draw(data, path.with_suffix(".png"))
    print(name, *module.verdict(data), sep=": ")


def page() -> str:
    """docs/figures.md: of each figure that has data its verdict in a table, and a section."""
    known = {name: json.loads((RESULTS / f"{name}.json").read_text()) for name in NAMES
             if (RESULTS / f"{name}.json").exists()}
    table, sections = ["| figure | what it shows | verdict |", "|---|---|---|"], []
    for name, found in known.items():
        module = figure(name)
        title, _, what = str(module.__doc__).partition("\n")[0].rstrip(".").partition(": ")
        status, why = module.verdict(found["data"])
        note = audit.note(name)
        table.append(f"| [{title}](#{title.lower().replace('.', '').replace(' ', '-')}) | {what} | {status}"
                     f"{', under audit' if note else ''} |")
        beside = f"- {note}\n" if note else ""
        sections.append(
            f"\n## {title}\n\n{what[0].upper()}{what[1:]}.\n\n![{title}](../benchmarks/results/figures/{name}.png)\n\n"
            f"- **The paper**: {module.PAPER}\n- **Here**: {module.METHOD}\n- **Verdict: {status}.** {why}\n"
            f"{beside}- `{found['command']}`; commit {found['commit']}, {found['date']}, {found['hardware']};"
            f" [data](../benchmarks/results/figures/{name}.json)\n")
    missing = [f"`{name}`" for name in NAMES if name not in known]
    note = f"\nNot measured yet, though the command is there: {', '.join(missing)}.\n" if missing else ""
    return _PAGE + "\n".join(table) + "\n" + note + "".join(sections)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of: {', '.join(NAMES)}")
    parser.add_argument("--all", action="store_true", help=f"all of them but {', '.join(LONG)}: these take hours")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "figures",
                        help="folder of what is measured (default: build/figures)")
    parser.add_argument("--draw", action="store_true", help="only draw, from the data that are there")
    parser.add_argument("--page", action="store_true",
                        help="only make the page that can be turned, if the figure has one; needs requirements.txt")
    parser.add_argument("--docs", action="store_true", help="only write docs/figures.md")
    return parser


def _chosen(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Iterator[str]:
    for name in [one for one in NAMES if one not in LONG] if options.all else options.names:
        if name not in NAMES:
            parser.error(f"NAME = {name} is not known; known: {', '.join(NAMES)}")
        yield name


def main() -> None:
    parser = _parser()
    options = parser.parse_args()
    names = list(_chosen(parser, options))
    if not names and not options.docs:
        parser.error("name a figure, or --all, or --docs")
    for name in names:
        if options.page:
            path = options.work / f"{name}.html"
            figure(name).page(json.loads((RESULTS / f"{name}.json").read_text())["data"], path)
            print(path)
        else:
            make(name, options.work, is_drawn_only=options.draw)
    DOCUMENT.write_text(page())


if __name__ == "__main__":
    main()
