"""The command ``compare``: runs side by side."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from runtime.cli.arguments import add_parser, add_runs, say
from runtime.display.terminal import printable

if TYPE_CHECKING:
    from runtime.report.reading import RecordedGroup


def add_command(commands: Any) -> None:
    """Adds the command to a parser's subparsers."""
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


def _compare(options: argparse.Namespace) -> int:
    from runtime.report.comparison import comparison_lines
    from runtime.report.reading import read_comparable

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
