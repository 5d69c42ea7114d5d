"""The commands ``compare`` and ``plot``, which compare runs in a table or a picture."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.cli.arguments import add_parser, add_runs, say
from runtime.display.terminal import printable
from runtime.records.files import check_place

if TYPE_CHECKING:
    from runtime.report.reading import RecordedGroup


def add_commands(commands: Any) -> None:
    """Adds the commands to a parser's subparsers."""
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
    plot = add_parser(
        commands,
        "plot",
        needs="DIR [DIR ...]",
        summary="draw runs as one picture, over each other if there are several",
        description="Draw runs as one picture. One run: its returns, costs, actors and signals. Several runs: "
        "return against steps, dollars and modelled time, overlaid. Runs that differ only in their seed are drawn as "
        "one line, like the seeds of a directory that --seeds made: the interquartile mean of finished runs, with its "
        "95 % percentile interval by bootstrap as a band.",
        examples=["plot runs/hopper", "plot runs/nitro-* runs/fixed-* --out nitro-or-fixed.png"],
        exit_codes=f"0 written, {refused}; or matplotlib or the picture's folder is not there",
    )
    add_runs(plot)
    plot.add_argument(
        "--out",
        type=Path,
        default=Path("plot.png"),
        metavar="FILE.png",
        help="the picture to write: .png, .pdf or .svg (default: plot.png)",
    )
    plot.set_defaults(command=_plot)


def _compare(options: argparse.Namespace) -> int:
    from runtime.report.comparison import comparison_lines
    from runtime.report.reading import read_comparable

    groups = read_comparable(options.directories)
    _tell_problems(groups)
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize
    say("\n".join(comparison_lines(groups, columns)))
    return 0


def _plot(options: argparse.Namespace) -> int:
    from runtime.report.figure import FORMATS
    from runtime.report.plot import draw_runs
    from runtime.report.reading import merged_seeds, read_comparable

    check_place("--out", options.out, FORMATS)
    groups = merged_seeds(read_comparable(options.directories))
    _tell_problems(groups)
    draw_runs(groups, options.out)
    for group in groups:
        finished = sum(run.is_finished for run in group.runs)
        if len(group.runs) > 1:
            say(
                f"{group.name}: {finished} of {len(group.runs)} seeds have finished, and make its line and band"
            )
    say(f"picture      {options.out}")
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
