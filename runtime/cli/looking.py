"""The commands ``compare`` and ``plot``: runs beside each other, as a table and as a picture."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.cli.arguments import say
from runtime.records.files import check_place

if TYPE_CHECKING:
    from runtime.report.reading import RecordedGroup

_COMPARE = """\
Print runs side by side: the settings that differ, then the last and the best evaluated return, steps, rounds, dollars
and time. A directory of several seeds is one column, with intervals; alone, it has a column for each of its seeds.

examples:
  python -m runtime compare runs/nitro runs/fixed
  python -m runtime compare runs/five-seeds

exit codes:
  0 printed, 2 refused: a directory is not there, holds no run, or no round of it has finished"""

_PLOT = """\
Draw runs as one picture. Of one run: its returns, where its dollars went, its actors and signals. Of several: return
against steps, dollars and modelled time, over each other. Runs that differ only in their seed are drawn as one line,
as are the seeds of a directory that --seeds made: the interquartile mean of those that have finished, in a band that is
its 95 % percentile interval by bootstrap.

examples:
  python -m runtime plot runs/hopper
  python -m runtime plot runs/nitro-* runs/fixed-* --out nitro-or-fixed.png

exit codes:
  0 written, 2 refused: a directory is not there, holds no run, or no round of it has finished; or matplotlib or the
  picture's folder is not there"""


def add_commands(commands: Any) -> None:
    """Adds the commands to a parser's subparsers."""
    compare = commands.add_parser("compare", help="print runs side by side, with what differs in their settings",
                                  usage="%(prog)s DIR [DIR ...]",
                                  formatter_class=argparse.RawDescriptionHelpFormatter, description=_COMPARE)
    compare.set_defaults(command=_compare)
    plot = commands.add_parser("plot", help="draw runs as one picture, over each other if there are several",
                               usage="%(prog)s DIR [DIR ...] [--out FILE.png]",
                               formatter_class=argparse.RawDescriptionHelpFormatter, description=_PLOT)
    plot.add_argument("--out", type=Path, default=Path("plot.png"), metavar="FILE.png",
                      help="the picture to write: .png, .pdf or .svg (default: plot.png)")
    plot.set_defaults(command=_plot)
    for command in (compare, plot):
        command.add_argument("directories", type=Path, nargs="+", metavar="DIR",
                             help="a run's directory, or that of several seeds")


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
            say(f"{group.name}: {finished} of {len(group.runs)} seeds have finished, and make its line and band")
    say(f"picture      {options.out}")
    return 0


def _tell_problems(groups: Sequence[RecordedGroup]) -> None:
    """Says what is missing or could not be read; the rest counts."""
    from runtime.display.terminal import printable

    for group in groups:
        told = [(run.name if run.name == group.name else f"{group.name}, {run.name}", run.problems)
                for run in group.runs]
        for name, problems in [*told, (group.name, group.problems)]:
            for problem in problems:
                print(printable(f"! {name}: {problem}"), file=sys.stderr)
