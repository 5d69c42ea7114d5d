"""The command ``report`` for runs, finished or not."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from runtime.cli.arguments import add_parser, say
from runtime.records import layout
from runtime.records.files import check_place


def add_commands(commands: Any) -> None:
    """Adds the command to a parser's subparsers."""
    report = add_parser(
        commands,
        "report",
        needs="DIR [DIR ...]",
        summary="write a page about a run, several seeds, or several of them",
        description="Write one page of HTML that needs no network: return against steps, time and dollars, actors with "
        "signal and score, where dollars and seconds went, events, and the configuration. Each finished run has one "
        "already, in its own directory. A directory of several seeds is shown with intervals; several directories are "
        "compared.",
        examples=["report runs/hopper", "report runs/nitro runs/fixed --out comparison.html"],
        exit_codes="0 written, 2 refused: a directory is not there, or the page cannot be written",
    )
    report.add_argument(
        "directories",
        type=Path,
        nargs="+",
        metavar="DIR",
        help="directory of a run or of several seeds",
    )
    report.add_argument(
        "--out",
        type=Path,
        default=Path(layout.REPORT),
        metavar="FILE.html",
        help=f"the file to write (default: {layout.REPORT})",
    )
    report.set_defaults(command=_report)


def _report(options: argparse.Namespace) -> int:
    from runtime.show.report import write_report

    check_place("--out", options.out, (".html",))
    write_report(options.directories, options.out)
    say(f"report       {options.out}")
    return 0
