"""The commands ``report`` and ``compare`` for finished runs."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.cli.arguments import add_parser, add_runs, say
from runtime.records import layout
from runtime.records.files import check_place
from runtime.show.terminal import printable

if TYPE_CHECKING:
    from runtime.show.reading import RecordedGroup


def add_commands(commands: Any) -> None:
    """Adds the commands to a parser's subparsers."""
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
    add_runs(report)
    report.add_argument(
        "--out",
        type=Path,
        default=Path(layout.REPORT),
        metavar="FILE.html",
        help=f"the file to write (default: {layout.REPORT})",
    )
    report.set_defaults(command=_report)
    refused = "2 refused: a directory is not there, holds no run, or no round of it has finished"
    compare = add_parser(
        commands,
        "compare",
        needs="DIR [DIR ...]",
        summary="print runs side by side, with what differs in their settings",
        description="Print runs side by side: the settings that differ, then the last and the best evaluated return, "
        "steps, rounds, dollars and time. A directory of several seeds is one column, with intervals; alone, it has a "
        "column for each of its seeds.",
        examples=["compare runs/nitro runs/fixed", "compare runs/five-seeds"],
        exit_codes=f"0 printed, {refused}",
    )
    add_runs(compare)
    compare.set_defaults(command=_compare)


def _report(options: argparse.Namespace) -> int:
    from runtime.show.report import write_report

    check_place("--out", options.out, (".html",))
    write_report(options.directories, options.out)
    say(f"report       {options.out}")
    return 0


def _compare(options: argparse.Namespace) -> int:
    from runtime.show.comparison import comparison_lines
    from runtime.show.reading import read_comparable

    groups = read_comparable(options.directories)
    _tell_problems(groups)
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    say("\n".join(comparison_lines(groups, columns)))
    return 0


def _tell_problems(groups: Sequence[RecordedGroup]) -> None:
    """Prints missing or unreadable parts; the rest is used."""
    for group in groups:
        told = [
            (run.name if run.name == group.name else f"{group.name}, {run.name}", run.problems)
            for run in group.runs
        ]
        for name, problems in [*told, (group.name, group.problems)]:
            for problem in problems:
                print(printable(f"! {name}: {problem}"), file=sys.stderr)
