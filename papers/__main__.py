"""Measures and draws the figures of the papers.

    python -m papers NAME [NAME …] [--work build/figures] [--draw] [--all]
    python -m papers NAME --page
    python -m papers --docs

Each figure is a module of papers/PAPER/figures with a Markdown template, which describes the paper's figure, our
measurement and its result. ``measure(work)`` returns its data, and continues an interrupted measurement in that folder.
``draw(data)`` returns its picture. ``verdict(data)`` returns the ``status`` (one of ``VERDICTS``) and other values for
the template. The optional ``page(data, path)`` writes an interactive page, which ``--page`` puts into the folder of the
measurement. Data and picture become NAME.json and NAME.png in papers/PAPER/results. docs/figures.md and the papers'
READMEs are rewritten from all results.
"""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.drawing import saved
from benchmarks.pages import rendered, table, with_part
from benchmarks.provenance import ROOT, origin
from papers import audit
from papers.estimates import number, text

PAPERS = Path(__file__).parent
DOCUMENT = ROOT / "docs" / "figures.md"
FIGURES = {
    "nitro": [
        f"nitro_{number}" for number in (2, 3, 4, 5, 7, 8, 9, 10, 11, 14, 15, 16, 17, 18, 20)
    ],
    "minionsrl": ["minions_table_2", "minions_5", "minions_6", "minions_9"],
}
"""By paper, in the order of the page."""
NAMES = {name: paper for paper, names in FIGURES.items() for name in names}
LONG = ("nitro_10", "nitro_11", "nitro_14", "nitro_15", "nitro_16", "nitro_17", "minions_9")
"""Not part of `make figures`, only measured by name: up to 40 whole trainings each, some of them shared."""
VERDICTS = ("reproduced", "partly", "not", "not measured here")


def module(name: str) -> ModuleType:
    return importlib.import_module(f"papers.{NAMES[name]}.figures.{name}")


def results(name: str) -> Path:
    """Returns the path of a figure's data."""
    return PAPERS / NAMES[name] / "results" / f"{name}.json"


def make(name: str, work: Path, *, is_drawn_only: bool) -> None:
    """Measures and draws one figure."""
    figure, path = module(name), results(name)
    if not is_drawn_only:
        path.write_text(
            json.dumps(
                {**origin(f"python -m papers {name}"), "data": figure.measure(work)},
                ensure_ascii=False,
            )
            + "\n"
        )
    data = json.loads(path.read_text())["data"]
    saved(figure.draw(data), path.with_suffix(".png"))
    print(f"{name}: {figure.verdict(data)['status']}")


@dataclass(frozen=True)
class Section:
    """The description of a measured figure.

    Attributes:
        text: Markdown, including its heading.
    """

    name: str
    text: str
    status: str

    @property
    def title(self) -> str:
        return self.text.partition("\n")[0].removeprefix("## ")

    @property
    def row(self) -> list[str]:
        """Its line in a table of figures: a link, its subject, its verdict."""
        what = self.text.split("\n\n")[1].rstrip(".")
        what = what if what[1].isupper() else what[0].lower() + what[1:]
        anchor = self.title.lower().replace(".", "").replace(" ", "-")
        return [
            f"[{self.title}](#{anchor})",
            what,
            self.status + (", under audit" if self.name in audit.OBJECTIONS else ""),
        ]


def template_of(name: str) -> Path:
    return PAPERS / NAMES[name] / "figures" / f"{name}.md"


def title_of(name: str) -> str:
    return template_of(name).read_text().partition("\n")[0].removeprefix("## ")


def section(name: str) -> Section:
    found, path = (
        json.loads(results(name).read_text()),
        Path("..") / results(name).relative_to(ROOT),
    )
    facts, template = module(name).verdict(found["data"]), template_of(name)
    return Section(
        name,
        rendered(
            template,
            data=found["data"],
            text=text,
            texts=_texts,
            number=number,
            picture=f"![{title_of(name)}]({path.with_suffix('.png')})",
            origin=f"[Data]({path}).",
            **facts,
        ),
        facts["status"],
    )


def _texts(estimates: Sequence[Mapping[str, Any]], what: str, digits: int = 1) -> str:
    return ", ".join(text(one[what], digits) for one in estimates)


def pages() -> dict[Path, str]:
    """Returns docs/figures.md, and each paper's README with the verdicts on its figures."""
    sections = {name: section(name) for name in NAMES if results(name).exists()}
    heads, rows = ["figure", "what it shows", "verdict"], [one.row for one in sections.values()]
    found = {
        DOCUMENT: rendered(
            PAPERS / "figures.md",
            table=table([heads[0], heads[2]], [[row[0], row[2]] for row in rows]),
            missing=[f"{title_of(name)} (`{name}`)" for name in NAMES if name not in sections],
            sections=[one.text for one in sections.values()],
        )
    }
    for paper, names in FIGURES.items():
        readme = PAPERS / paper / "README.md"
        lines = [
            [
                *sections[name].row[:2],
                ", ".join(filter(None, (sections[name].status, audit.short(name)))),
            ]
            for name in names
            if name in sections
        ]
        found[readme] = with_part(
            readme.read_text(),
            "figures",
            table(
                heads,
                [
                    [cell.replace("(#", "(../../docs/figures.md#") for cell in line]
                    for line in lines
                ],
            ),
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of: {', '.join(NAMES)}")
    parser.add_argument(
        "--all", action="store_true", help=f"all except {', '.join(LONG)}, which take hours"
    )
    parser.add_argument(
        "--work",
        type=Path,
        default=ROOT / "build" / "figures",
        help="folder of the measurements (default: build/figures)",
    )
    parser.add_argument("--draw", action="store_true", help="only draw, from existing data")
    parser.add_argument(
        "--page",
        action="store_true",
        help="only make the interactive page, if the figure has one; needs requirements.txt",
    )
    parser.add_argument(
        "--docs", action="store_true", help="only write docs/figures.md and the READMEs"
    )
    options = parser.parse_args()
    names = [name for name in NAMES if name not in LONG] if options.all else options.names
    if unknown := [name for name in names if name not in NAMES]:
        parser.error(f"NAME = {unknown[0]} is not known; known: {', '.join(NAMES)}")
    if not names and not options.docs:
        parser.error("name a figure, or --all, or --docs")
    for name in names:
        if options.page:
            path = options.work / f"{name}.html"
            module(name).page(json.loads(results(name).read_text())["data"], path)
            print(path)
        else:
            make(name, options.work, is_drawn_only=options.draw)
    for path, page in pages().items():
        path.write_text(page)


if __name__ == "__main__":
    main()
