"""Types of arguments, and what all commands print with."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runtime.config.schema import Experiment

SEEDS_MAX = 1000


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
    """Prints which keys of an experiment file nobody reads, if there are some."""
    if experiment.unused:
        say(f"not used     {', '.join(experiment.unused)}: there is no instance "
            f"(learner.kind = {experiment.learner.kind})")
