"""Shows predictions as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill

from runtime.cli.plan_prediction import Prediction

_COLUMNS = 80


def duration(seconds: float) -> str:
    """Returns minutes and seconds, or hours and minutes."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02} h" if minutes >= 60 else f"{minutes}:{rest:02} min"


def short_time(seconds: float) -> str:
    """Returns a time with three digits, in the unit that needs no exponent."""
    for factor, unit in ((1e6, "us"), (1e3, "ms")):
        if seconds * factor < 999.5:  # rounds to three digits
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s"


def folded(text: str) -> str:
    """Returns the text wrapped for a terminal; all lines but the first are indented."""
    return fill(text, _COLUMNS, subsequent_indent="  ")


def way_lines(predictions: Sequence[Prediction]) -> list[str]:
    """Returns a table of ways."""
    return [
        "     time  of it start  dollars  way",
        *(
            f"{duration(one.seconds):>9}  {duration(one.start_s):>11}  {one.usd:7.4f}  {one.name}"
            for one in predictions
        ),
    ]


def memory_lines(predictions: Sequence[Prediction], best: Prediction) -> list[str]:
    """Returns a table of memory sizes of an actor function, in which the best is marked."""
    return [
        "     memory   an actor  cents of it  the run: time  dollars",
        *(
            f"{'*' if one is best else ' '} {one.name:>9}  {short_time(one.actor_s):>9}  {100 * one.actor_usd:11.6f}  "
            f"{duration(one.seconds):>13}  {one.usd:7.4f}"
            for one in predictions
        ),
    ]
