"""Types of arguments, and what all commands print with."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
        return textwrap.fill(text, 96, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)

    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, usage=f"%(prog)s {needs} [options]".replace("  ", " "),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="\n".join([folded(description), "", "examples:"]
                              + [f"  python -m runtime {example}" for example in examples]),
        epilog=f"exit codes:\n{folded(exit_codes, '  ')}" if exit_codes else None)
    return parser


def add_trust(command: argparse.ArgumentParser) -> None:
    """Adds the option that lets a run name code."""
    command.add_argument("--trust", action="store_true",
                         help="run the code that the run's own config.yaml names, such as a scaler package.module:"
                         "Settings (default: refuse it)")


def positive(text: str) -> int:
    """Returns the whole number from 1 that a text is."""
    return _at_least(text, 1)


def not_negative(text: str) -> int:
    """Returns the whole number from 0 that a text is."""
    return _at_least(text, 0)


def project(text: str) -> str:
    """Returns a project of Weights & Biases, if a text can be one."""
    if not re.fullmatch(r"([^/\s]+/)?[^/\s]+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; allowed: PROJECT or ENTITY/PROJECT")
    return text


def seeds(text: str) -> int:
    """Returns a number of seeds."""
    count = positive(text)
    if count > SEEDS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; allowed: a whole number from 1 to {SEEDS_MAX}")
    return count


def _at_least(text: str, lowest: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = lowest - 1
    if value < lowest:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; allowed: a whole number from {lowest}")
    return value


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
    from runtime.display.terminal import printable

    print(printable(line), flush=True)


def say_unused(experiment: Experiment) -> None:
    """Prints which keys of an experiment's files a run never reads, if there are some."""
    from runtime.display.terminal import laid_out

    if text := experiment.unused_text:
        for line in laid_out({"not used": text}):
            say(line)
