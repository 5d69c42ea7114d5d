"""Types of arguments, and output shared by all commands."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from runtime.show.terminal import COLUMNS, printable

SEEDS_MAX = 1000


def add_parser(
    commands: Any,
    name: str,
    *,
    needs: str,
    summary: str,
    description: str,
    examples: Sequence[str],
    exit_codes: str = "",
) -> argparse.ArgumentParser:
    """Adds a command, whose help begins with required arguments and examples.

    Args:
        commands: A parser's subparsers.
        name: Name of the command.
        needs: Required and common arguments, to be shown after the name.
        summary: One line for the list of commands.
        description: A description in sentences.
        examples: Whole lines, without ``python -m runtime``.
        exit_codes: Their meaning.
    """

    def folded(text: str, indent: str = "") -> str:
        return textwrap.fill(
            text, COLUMNS, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
        )

    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=summary,
        usage=f"%(prog)s {needs} [options]".replace("  ", " "),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="\n".join(
            [folded(description), "", "examples:"]
            + [f"  python -m runtime {example}" for example in examples]
        ),
        epilog=f"exit codes:\n{folded(exit_codes, '  ')}" if exit_codes else None,
    )
    return parser


def add_experiment(command: argparse.ArgumentParser, *, unless: str = "") -> None:
    """Adds the experiment file, and the option that changes it.

    Args:
        unless: When the file may be left out, in words; never if empty.
    """
    command.add_argument(
        "experiment",
        type=Path,
        nargs="?" if unless else None,
        metavar="EXPERIMENT.yaml",
        help=f"the experiment file{unless}",
    )
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="override one key of the experiment file; may be repeated (default: none)",
    )


def add_trust(command: argparse.ArgumentParser) -> None:
    """Adds the option that lets a run name code."""
    command.add_argument(
        "--trust",
        action="store_true",
        help="run the code that the run's own config.yaml names, such as a scaler package.module:"
        "Settings (default: refuse it)",
    )


def whole_number(text: str, lowest: int, highest: int | None = None) -> int:
    """Returns a whole number from ``lowest`` to ``highest``; None = no limit."""
    try:
        value = int(text)
        if lowest <= value and (highest is None or value <= highest):
            return value
    except ValueError:
        pass
    limit = "" if highest is None else f" to {highest}"
    raise argparse.ArgumentTypeError(
        f"{text!r} is not allowed; allowed: a whole number from {lowest}{limit}"
    )


positive = partial(whole_number, lowest=1)
not_negative = partial(whole_number, lowest=0)
seeds = partial(whole_number, lowest=1, highest=SEEDS_MAX)


def launcher() -> list[str]:
    """Returns words that start this program again, without its arguments."""
    is_installed = Path(sys.argv[0]).name == "nitro-rl"
    return sys.argv[:1] if is_installed else [sys.executable, "-m", "runtime"]


def say(line: str) -> None:
    """Prints a line at once, without terminal control characters."""
    print(printable(line), flush=True)
