"""Draws runs as one picture, with the report's curves, for a page or a slide."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from runtime.errors import RunError
from runtime.report.charts import INTERVAL, Chart, part_charts, return_charts, round_charts, thinned
from runtime.report.figure import COLOURS, new_figure, plain, save_figure
from runtime.report.reading import RecordedGroup

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PANEL_INCHES = 5.5, 3.3
_COLUMNS = 2
_TITLE_CHARACTERS = 100
_LEGEND_ROWS_MAX = 10


def draw_runs(groups: Sequence[RecordedGroup], picture: Path) -> None:
    """Draws one run's curves and bill, or overlays those of several runs.

    Args:
        groups: At least one; a group of several runs gets the band of its seeds.
        picture: The file to write: PNG, PDF or SVG.

    Raises:
        RunError: matplotlib is not installed, the picture cannot be written, or there is nothing to draw.
    """
    charts = [
        chart | {"series": [thinned(one) for one in chart["series"] if one["x"]]}
        for chart in _charts(groups)
    ]
    charts = [chart for chart in charts if chart["series"]]
    if not charts:
        raise RunError("there is nothing to draw: none of these runs has finished an episode yet")
    rows = -(-len(charts) // _COLUMNS)
    figure = new_figure(
        _PANEL_INCHES[0] * min(_COLUMNS, len(charts)), _PANEL_INCHES[1] * rows + 0.5, "plot"
    )
    for place, chart in enumerate(charts):
        _draw_chart(figure.add_subplot(rows, min(_COLUMNS, len(charts)), place + 1), chart)
    title = " · ".join(plain(group.name) for group in groups)
    figure.suptitle(textwrap.shorten(title, _TITLE_CHARACTERS, placeholder=" …"))
    if any("low" in one for chart in charts for one in chart["series"]):
        figure.supxlabel(INTERVAL[0].upper() + INTERVAL[1:], fontsize=9, color="#555555")
    save_figure(figure, picture, "--out")


def _charts(groups: Sequence[RecordedGroup]) -> list[Chart]:
    """Chooses returns, bill and rounds for one run, returns and actors for several."""
    returns = return_charts(groups)
    # Constant actors are not worth a chart.
    rounds = [
        chart
        for chart in round_charts(groups)
        if len({y for one in chart["series"] for y in one["y"]}) > 1
    ]
    if len(groups) == 1 and len(groups[0].runs) == 1:
        return [returns[0], part_charts(groups[0].runs[0])[0], *rounds]
    actors = [chart for chart in rounds if any(one["style"] == "step" for one in chart["series"])]
    by_steps, _, by_seconds, by_dollars = returns
    return [by_steps, by_dollars, by_seconds, *actors]


def _draw_chart(axes: Axes, chart: Chart) -> None:
    series = chart["series"]
    if chart["kind"] == "stack":
        axes.stackplot(
            series[0]["x"],
            [one["y"] for one in series],
            labels=[plain(one["name"]) for one in series],
            colors=[COLOURS[one["colour"] % len(COLOURS)] for one in series],
            alpha=0.85,
        )
    else:
        for one in series:
            _draw_line(axes, one)
    basis = "" if chart["basis"] == "measured" else f" ({chart['basis']})"
    axes.set(title=chart["title"] + basis, xlabel=chart["x"], ylabel=chart["y"])
    axes.margins(x=0.01)
    if any(one["style"] == "step" for one in series):
        axes.set_ylim(bottom=0)
    axes.xaxis.set_major_formatter(_shortened)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(alpha=0.25, lw=0.5)
    if len(series) > 1:
        axes.legend(
            frameon=False, fontsize=8, loc="best", ncols=-(-len(series) // _LEGEND_ROWS_MAX)
        )


def _draw_line(axes: Axes, one: Chart) -> None:
    colour, is_thin = COLOURS[one["colour"] % len(COLOURS)], one["style"] == "thin"
    marker = "o" if one["style"] == "dots" or len(one["x"]) == 1 else ""
    axes.plot(
        one["x"],
        one["y"],
        color=colour,
        lw=0.8 if is_thin else 1.6,
        alpha=0.6 if is_thin else 1.0,
        ms=4,
        marker=marker,
        drawstyle="steps-post" if one["style"] == "step" else "default",
        label=plain(one["name"]),
    )
    if one.get("low") and one["low"][0] is not None:
        axes.fill_between(
            one["x"], np.array(one["low"]), np.array(one["high"]), color=colour, alpha=0.2, lw=0
        )


def _shortened(value: float, _place: float) -> str:
    """Formats a number of an axis: 1k, 250k, 2M."""
    for unit, sign in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:g}{sign}"
    return f"{value:g}"
