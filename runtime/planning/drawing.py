"""Shows predictions: a table, and time against dollars as text and as a picture."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from textwrap import fill

from runtime.planning.prediction import KINDS, Prediction, front
from runtime.report.figure import new_figure, save_figure

_MARKS = {"cheapest": "C", "fastest": "F", "knee": "K"}
WIDTH, HEIGHT = 66, 14
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


def folded(text: str, *, indent: int = 2) -> str:
    """Returns the text wrapped for a terminal; all lines but the first are indented."""
    return fill(text, _COLUMNS, subsequent_indent=" " * indent)


def table_lines(
    predictions: Sequence[Prediction], picks: Mapping[str, Prediction], *, rows: int = 12
) -> list[str]:
    """Returns table lines: the file's own way, the front with the fastest first, and the best of the others."""
    best = front(predictions)
    if len(best) > rows:
        step = (len(best) - 1) / (rows - 1)
        kept = {round(index * step) for index in range(rows)} | {
            best.index(one) for one in picks.values()
        }
        best = [best[index] for index in sorted(kept)]
    beaten = [
        one
        for kind in KINDS
        for of_kind in [[one for one in predictions if one.way.kind == kind]]
        if of_kind
        for one in (
            min(of_kind, key=lambda one: one.seconds),
            min(of_kind, key=lambda one: one.usd),
        )
    ]
    shown = list({id(one): one for one in (predictions[0], *best, *beaten)}.values())
    lines = [f"   {'time':>9}  {'dollars':>7}  {'decides':7}  way (actors x steps of a fragment)"]
    for one in shown:
        marks = "".join(mark for name, mark in _MARKS.items() if picks[name] is one)
        line = (
            f"{marks:2} {duration(one.seconds):>9}  {one.usd:7.4f}  {one.bound:7}  {one.way.name}"
        )
        lines += folded(line, indent=32).splitlines()
    return lines


def scatter_lines(predictions: Sequence[Prediction], picks: Mapping[str, Prediction]) -> list[str]:
    """Returns a plot of time (to the right) against dollars (upwards), both logarithmic."""
    times = [math.log(one.seconds) for one in predictions]
    dollars = [math.log(one.usd) for one in predictions]
    best = set(map(id, front(predictions)))
    marks = {id(one): _MARKS[name] for name, one in picks.items()}
    cells = [[" "] * WIDTH for _ in range(HEIGHT)]

    def place(values: Sequence[float], value: float, size: int) -> int:
        low, high = min(values), max(values)
        return round((value - low) / (high - low) * (size - 1)) if high > low else 0

    def rank(one: Prediction) -> int:
        return (
            3 if id(one) in marks else 2 if one is predictions[0] else 1 if id(one) in best else 0
        )

    for one in sorted(predictions, key=rank):
        row = HEIGHT - 1 - place(dollars, math.log(one.usd), HEIGHT)
        mark = marks.get(id(one)) or (
            "@" if one is predictions[0] else "o" if id(one) in best else "."
        )
        cells[row][place(times, math.log(one.seconds), WIDTH)] = mark
    lines = []
    for index, row_cells in enumerate(cells):
        label = {0: math.exp(max(dollars)), HEIGHT - 1: math.exp(min(dollars))}.get(index)
        lines.append(
            f"{'' if label is None else f'${label:.3f}':>8} |{''.join(row_cells)}".rstrip()
        )
    left, right = duration(math.exp(min(times))), duration(math.exp(max(times)))
    lines.append(" " * 9 + "+" + "-" * WIDTH)
    lines.append(" " * 10 + left + right.rjust(WIDTH - len(left)))
    lines.append("C cheapest  F fastest  K knee  o none is both faster and cheaper  @ the file")
    return lines


def _labels(digits: str) -> Callable[[float, float], str]:
    """Returns a formatter that labels the values that begin with one of these digits."""
    return lambda value, _: f"{value:g}" if f"{value:e}"[0] in digits else ""


def draw(
    predictions: Sequence[Prediction], picks: Mapping[str, Prediction], picture: Path, *, title: str
) -> None:
    """Draws time against dollars.

    Raises:
        RunError: matplotlib is not installed, or the picture cannot be written.
    """
    figure = new_figure(9, 5.6, "--picture")
    axes = figure.add_subplot()
    for kind, colour in zip(KINDS, ("#3a8f4d", "#2f6fb0", "#d9822b", "#8e4aa8"), strict=True):
        of_it = [one for one in predictions if one.way.kind == kind]
        if not of_it:
            continue
        axes.scatter(
            [one.seconds / 60 for one in of_it],
            [one.usd for one in of_it],
            s=16,
            alpha=0.6,
            color=colour,
            linewidths=0,
            label=kind,
        )
    best = front(predictions)
    axes.plot(
        [one.seconds / 60 for one in best],
        [one.usd for one in best],
        color="black",
        lw=0.8,
        zorder=1,
    )
    marked = {**picks, "the file": predictions[0]}
    for one in {id(one): one for one in marked.values()}.values():
        names = ", ".join(name for name, other in marked.items() if other is one)
        at = one.seconds / 60, one.usd
        axes.scatter(*at, s=46, facecolors="none", edgecolors="black", zorder=3)
        axes.annotate(
            f"{names}: {duration(one.seconds)}, ${one.usd:.3f}",
            at,
            xytext=(9, 7),
            textcoords="offset points",
            fontsize=9,
            zorder=4,
            bbox={"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 1},
        )
    axes.set(
        xscale="log",
        yscale="log",
        title=title,
        xlabel="minutes, start included (modelled)",
        ylabel="dollars, all in (modelled)",
    )
    # Minutes span about a decade, so there is room for more labels.
    for axis, digits in ((axes.xaxis, "234568"), (axes.yaxis, "2346")):
        axis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_minor_formatter(_labels(digits))
    axes.grid(alpha=0.25, which="both", lw=0.5)
    axes.legend(frameon=False, fontsize=9)
    save_figure(figure, picture, "--picture")
