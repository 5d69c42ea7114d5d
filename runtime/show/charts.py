"""Data of the report's charts; a library draws them in the browser."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from runtime.show.estimates import CONFIDENCE, ended_by_itself, interval_estimate
from runtime.show.reading import RecordedGroup, RecordedRun

CURVE_RESAMPLES = 2000
"""Resamples per point of a curve over seeds; the table of estimates uses more."""
_GRID_POINTS = 100
POINTS_MAX = 2000
"""Most points of a line: a browser cannot show more, and the page of a run of 100,000 rounds would have 36 MB."""
_EVALUATIONS_MIN = 3
"""With fewer evaluations in a run, curves of several runs show training episodes."""
_RETURNS = {
    "evaluation_return_mean": "evaluation",
    "episode_return_mean": "training episodes",
}
INTERVAL = (
    f"mean over seeds, interquartile from four on, with a {CONFIDENCE:.0%} percentile interval by bootstrap "
    f"({CURVE_RESAMPLES:,} resamples of the seeds)"
)
_PER_ROUND = {
    "actor_count": ("Actors per round", "actors started"),
    "convexity_ratio": (
        "Signal: convexity ratio",
        "R = −λmax / λmin, low where the objective is flat",
    ),
    "boosting_score": ("Boosting score", "S of the scaler; more score, more actors"),
    "episode_length_mean": ("Episode length", "steps, mean of the episodes that ended"),
    "entropy": ("Entropy of the policy", "nats"),
    "kl": ("KL divergence of the update", "nats, from the policy before it"),
    "value_loss": ("Value loss", "mean over the update"),
    "explained_variance": ("Explained variance of returns", "1 = the critic predicts them exactly"),
    "gradient_staleness_mean": ("Staleness of gradients", "aggregations, mean"),
    "reduce_s": ("Sums of gradients by instances", "s, mean over the instances"),
    "reduce_wait_s": ("Of these sums, waiting for other instances", "s, mean over the instances"),
}

_AGAINST = {
    "steps": ("env_steps_total", "environment steps", "steps"),
    "time": ("round_s", "seconds of all rounds, by the clock", "s"),
    "dollars": ("spent_usd", "US dollars", "$"),
}
"""By tab, the column, the axis and its unit."""

Chart = dict[str, Any]
Curve = tuple[list[float], list[float]]


def return_charts(groups: Sequence[RecordedGroup]) -> list[Chart]:
    """Returns against steps, measured seconds, and dollars."""
    runs = [run for group in groups for run in group.runs]
    keys = list(_RETURNS)
    if len(runs) > 1:
        counts = [len(run.column(keys[0])) for run in runs if run.rows]
        keys = keys[:1] if min(counts, default=0) >= _EVALUATIONS_MIN else keys[1:]
    label = "mean return" if len(keys) > 1 else f"return in {_RETURNS[keys[0]]}"
    charts = []
    for tab, (used, x, unit) in _AGAINST.items():
        lines = [
            line
            for colour, group in enumerate(groups)
            for line in _group_lines(group, colour, keys, used, is_alone=len(groups) == 1)
        ]
        basis = basis_of(groups) if tab == "dollars" else "measured"
        chart = _chart(f"Return against {tab}", basis, x, label, lines)
        charts.append(chart | {"tab": tab, "unit": unit})
    return charts


def round_charts(groups: Sequence[RecordedGroup]) -> list[Chart]:
    """Charts actors, signals and score by round, averaged over the seeds that reached the round."""
    charts = []
    for key, (title, label) in _PER_ROUND.items():
        style = "step" if key == "actor_count" else "line"
        lines = [
            _line(group.name if len(groups) > 1 else title, *_means(group, key), colour, style)
            for colour, group in enumerate(groups)
        ]
        # Each scaler reads another signal.
        if any(line["x"] for line in lines):
            charts.append(_chart(title, "measured", "round", label, lines))
    return charts


def basis_of(groups: Sequence[RecordedGroup]) -> str:
    """Returns ``list prices``, ``metered``, or both."""
    return " and ".join(sorted({run.basis for group in groups for run in group.runs}))


def _chart(title: str, basis: str, x: str, y: str, lines: Sequence[Chart]) -> Chart:
    return {
        "title": title,
        "basis": basis,
        "x": x,
        "unit": x,
        "y": y,
        "series": [_thinned(line) for line in lines if line["x"]],
    }


def _means(group: RecordedGroup, key: str) -> Curve:
    """Returns a column's mean over the runs that reached a round, by round."""
    values: defaultdict[float, list[float]] = defaultdict(list)
    for run in group.runs:
        for row in run.rows:
            if row.get(key) is not None:
                values[row["round_index"]].append(row[key])
    rounds = sorted(values)
    return rounds, [fmean(values[index]) for index in rounds]


def _line(
    name: str, x: Sequence[float], y: Sequence[Any], colour: int, style: str, **interval: Any
) -> Chart:
    return {"name": name, "x": x, "y": y, "colour": colour, "style": style, **interval}


def _evenly_chosen(count: int, most: int) -> np.ndarray:
    """Returns up to ``most`` indices below ``count``, evenly chosen, including the first and the last."""
    indices: np.ndarray = np.linspace(0, count - 1, min(count, most)).round().astype(int)
    return indices


def _thinned(line: Chart) -> Chart:
    """Thins a line to at most `POINTS_MAX` evenly chosen points, including the first and the last."""
    chosen = _evenly_chosen(len(line["x"]), POINTS_MAX)
    return line | {key: [line[key][index] for index in chosen] for key in ("x", "y")}


def _group_lines(
    group: RecordedGroup, colour: int, keys: Sequence[str], used: str, *, is_alone: bool
) -> Iterator[Chart]:
    """Yields the lines of one group against the column ``used``."""
    if len(group.runs) == 1:
        for index, key in enumerate(keys):
            name = _RETURNS[key] if len(keys) > 1 else group.name
            style = "dots" if key == "evaluation_return_mean" else "line"
            yield _line(name, *_curve(group.runs[0], key, used), colour + index, style)
        return
    curves = {run.name: _curve(run, keys[0], used) for run in group.runs}
    ended = [
        curves[run.name]
        for run in group.runs
        if ended_by_itself(run.summary) and curves[run.name][0]
    ]
    if len(ended) > 1:
        yield _band(f"{group.name}, {len(ended)} seeds", colour, ended)
    if is_alone or len(ended) < 2:
        for index, (name, curve) in enumerate(curves.items(), 1):
            label = name if is_alone else f"{group.name}, {name}"
            yield _line(label, *curve, colour + index * is_alone, "thin")


def _curve(run: RecordedRun, key: str, used: str) -> Curve:
    """Pairs each value of a column with what was used by then; evaluations are at the round of their policy."""
    total = run.column(used)
    if used == "round_s":
        total = np.cumsum(total).tolist()
    used_by = dict(zip(run.column("round_index"), total, strict=True))
    points = {}
    for row in run.rows:
        if row.get(key) is not None:
            index = row["round_index"]
            if key == "evaluation_return_mean" and row["evaluation_round"] in used_by:
                index = row["evaluation_round"]
            points[used_by[index]] = row[key]
    return sorted(points), [points[x] for x in sorted(points)]


def _band(name: str, colour: int, curves: Sequence[Curve]) -> Chart:
    """Returns the interquartile mean over runs and its interval, where one of them has a new value.

    A run counts with its last value until its next one. Straight lines between two values would cross those of other
    runs, and an interval of them would be smaller than any that was measured.
    """
    start = max(xs[0] for xs, _ in curves)
    grid = np.unique(np.concatenate([xs for xs, _ in curves]))
    grid = grid[grid >= start]
    grid = grid[_evenly_chosen(len(grid), _GRID_POINTS)]
    values = np.array(
        [np.array(ys)[np.searchsorted(xs, grid, side="right") - 1] for xs, ys in curves]
    ).T
    points = [interval_estimate(list(returns), resamples=CURVE_RESAMPLES) for returns in values]
    interval = {side: [point[f"interval_{side}"] for point in points] for side in ("low", "high")}
    means = [point["interquartile_mean"] for point in points]
    return _line(name, grid.tolist(), means, colour, "line", **interval)
