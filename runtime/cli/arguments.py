"""Types of arguments, and what all commands print with."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.display.terminal import COLUMNS, laid_out, printable

if TYPE_CHECKING:
    from runtime.config.schema import Experiment

SEEDS_MAX = 1000


def add_parser(
    commands: Any, name: str, *, needs: str, summary: str, description: str, examples: Sequence[str],
    exit_codes: str = "",
) -> argparse.ArgumentParser:
    """Adds a command, whose help begins with what must be given and with examples.

    Args:
        commands: A parser's subparsers.
        name: The command's.
        needs: The arguments that must be given, and those that often are, as they stand behind the name.
        summary: What it does, in a line of the help that lists all commands.
        description: What it does, in sentences.
        examples: Whole lines, without ``python -m runtime``.
        exit_codes: What they say.
    """
    def folded(text: str, indent: str = "") -> str:
        return textwrap.fill(text, COLUMNS, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)

    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, usage=f"%(prog)s {needs} [options]".replace("  ", " "),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="\n".join([folded(description), "", "examples:"]
                              + [f"  python -m runtime {example}" for example in examples]),
        epilog=f"exit codes:\n{folded(exit_codes, '  ')}" if exit_codes else None)
    return parser


def add_experiment(command: argparse.ArgumentParser) -> None:
    """Adds the experiment file, and the option that changes it."""
    command.add_argument("experiment", type=Path, metavar="EXPERIMENT.yaml", help="the experiment file")
    command.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE",
                         help="override one key of the experiment file; may be repeated (default: none)")


def add_runs(command: argparse.ArgumentParser) -> None:
    """Adds the directories of runs."""
    command.add_argument("directories", type=Path, nargs="+", metavar="DIR",
                         help="a run's directory, or that of several seeds")


def add_trust(command: argparse.ArgumentParser) -> None:
    """Adds the option that lets a run name code."""
    command.add_argument("--trust", action="store_true",
                         help="run the code that the run's own config.yaml names, such as a scaler package.module:"
                         "Settings (default: refuse it)")


def project(text: str) -> str:
    """Returns a project of Weights & Biases, if a text can be one."""
    if not re.fullmatch(r"([^/\s]+/)?[^/\s]+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; allowed: PROJECT or ENTITY/PROJECT")
    return text


def whole_number(text: str, lowest: int, highest: int | None = None) -> int:
    """Returns the whole number that a text is, from ``lowest`` to ``highest``; None for no limit."""
    try:
        value = int(text)
        if lowest <= value and (highest is None or value <= highest):
            return value
    except ValueError:
        pass
    limit = "" if highest is None else f" to {highest}"
    raise argparse.ArgumentTypeError(f"{text!r} is not allowed; allowed: a whole number from {lowest}{limit}")


positive, not_negative = partial(whole_number, lowest=1), partial(whole_number, lowest=0)
seeds = partial(whole_number, lowest=1, highest=SEEDS_MAX)


def launcher() -> list[str]:
    """Returns the words with which the user called this program, as they were typed, without its arguments."""
    arguments = sys.argv[1:]
    words = sys.orig_argv[:len(sys.orig_argv) - len(arguments)]
    if not words or sys.orig_argv != [*words, *arguments]:
        # A program has started this one in its own process.
        return [sys.executable, "-m", "runtime"]
    name = Path(words[-1]).name
    # Of an installed command, Python gets the path at which the shell has found it.
    return [name] if shutil.which(name) == words[-1] else words


def say(line: str) -> None:
    """Prints a line at once, without what would change the terminal."""
    print(printable(line), flush=True)


def say_unused(experiment: Experiment) -> None:
    """Prints which keys of an experiment's files a run never reads, if there are some."""
    if text := experiment.unused_text:
        for line in laid_out({"not used": text}):
            say(line)
