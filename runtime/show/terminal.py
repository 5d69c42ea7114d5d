"""Text for a terminal, and questions asked there."""

from __future__ import annotations

import math
import sys
import textwrap
from collections.abc import Mapping
from contextlib import suppress

from runtime.errors import RunError

COLUMNS = 96
_INDENT = 13


def laid_out(facts: Mapping[str, str], margin: int = 0) -> list[str]:
    """Lays out labeled texts, wrapped; words are never broken."""
    indent = " " * _INDENT
    return [
        " " * margin + line
        for label, text in facts.items()
        for line in textwrap.wrap(
            text,
            COLUMNS - margin,
            initial_indent=label.ljust(_INDENT),
            subsequent_indent=indent,
            break_on_hyphens=False,
            break_long_words=False,
        )
    ]


def spent_of(spent_usd: float, budget_usd: float) -> str:
    """Describes how much of a budget is spent, with the same decimals, and at least three digits of the budget."""
    digits = max(4, 2 - math.floor(math.log10(budget_usd))) if budget_usd > 0.0 else 4
    return f"${spent_usd:.{digits}f} of ${budget_usd:.{digits}f}"


def duration(seconds: float) -> str:
    """Describes seconds as hours, minutes and seconds: ``1:02:03``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def short_time(seconds: float) -> str:
    """Returns a time with three digits, in the unit that needs no exponent."""
    for factor, unit in ((1e6, "us"), (1e3, "ms")):
        if seconds * factor < 999.5:  # rounds to three digits
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s"


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun: ``1 actor``, ``2 actors``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def has_terminal() -> bool:
    """Returns whether a person can answer; Python has no ``sys.stdin`` if it is closed."""
    return sys.stdin is not None and sys.stdin.isatty()


def confirm(question: str, nothing: str) -> None:
    """Asks on the terminal; anything but yes means no, including the end of the input.

    Args:
        question: A yes-or-no question.
        nothing: Outcome without a yes: ``nothing was deleted``.

    Raises:
        RunError: There was no yes.
    """
    if not has_terminal():
        raise RunError(f"{nothing}: there is no terminal to ask on; say --yes")
    with suppress(EOFError):
        if input(f"{question} [y/N] ").strip().lower() in ("y", "yes"):
            return
    raise RunError(nothing)


def printable(text: str) -> str:
    """Removes terminal control characters; actors and learners print whatever an environment wants."""
    return "".join(
        character if character.isprintable() or character in "\n\t" else "?" for character in text
    )
