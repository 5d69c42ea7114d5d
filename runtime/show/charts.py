"""Data of the report's charts; a library draws them in the browser."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from runtime.records.estimates import CONFIDENCE, interval_estimate
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
    f"interquartile mean over seeds, with a {CONFIDENCE:.0%} percentile interval by bootstrap "
    f"({CURVE_RESAMPLES:,} resamples of the seeds)"
)
DOLLARS = {
    "actors_cost_usd": "actors",
    "provisioned_cost_usd": "provisioned",
    "learner_cost_usd": "learner",
    "infrastructure_cost_usd": "cache, disk, address",
}
"""Parts of a round's bill, with their names for people."""
UNFINISHED = "unfinished rounds"
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

Chart = dict[str, Any]
Curve = tuple[list[float], list[float]]
Totals = Callable[[RecordedRun], np.ndarray]
"""Returns what a run has used until each round."""


def spent_until(run: RecordedRun) -> np.ndarray:
    """Returns the dollars spent until each round, unfinished rounds included; the last one has all of the run."""
    found = run.column("spent_usd")
    return np.array([*found[:-1], *[run.spent.spent_usd] * bool(found)])


def return_charts(groups: Sequence[RecordedGroup]) -> list[Chart]:
    """Returns against steps, measured seconds, and dollars."""
    runs = [run for group in groups for run in group.runs]
    keys = list(_RETURNS)
    if len(runs) > 1:
        counts = [len(run.column(keys[0])) for run in runs if run.rows]
        keys = keys[:1] if min(counts, default=0) >= _EVALUATIONS_MIN else keys[1:]
    label = "mean return" if len(keys) > 1 else f"return in {_RETURNS[keys[0]]}"
    axes: tuple[tuple[str, str, str, str, Totals], ...] = (
        ("steps", "measured", "environment steps", "steps", partial(_sums, key="env_steps")),
        (
            "time",
            "measured",
            "seconds of all rounds, by the clock",
            "s",
            partial(_sums, key="round_s"),
        ),
        ("dollars", basis_of(groups), "US dollars", "$", spent_until),
    )
    return [
        _chart(
            f"Return against {title}",
            basis,
            (x, unit),
            label,
            [
                line
                for place, group in enumerate(groups)
                for line in _group_lines(group, place, keys, used, is_alone=len(groups) == 1)
            ],
        )
        | {"tab": title}
        for title, basis, x, unit, used in axes
    ]


def round_charts(groups: Sequence[RecordedGroup]) -> list[Chart]:
    """Charts actors, signals and score by round, averaged over the seeds that reached the round."""
    charts = []
    for key, (title, label) in _PER_ROUND.items():
        lines = []
        for place, group in enumerate(groups):
            found: dict[int, list[float]] = {}
            for row in (row for run in group.runs for row in run.rows):
                if row.get(key) is not None:
                    found.setdefault(row["round_index"], []).append(row[key])
            name = group.name if len(group.runs) == 1 else f"{group.name}, mean of seeds"
            style = "step" if key == "actor_count" else "line"
            means = [sum(found[index]) / len(found[index]) for index in sorted(found)]
            lines.append(_line(name, sorted(found), means, place, style))
        # Each scaler reads another signal.
        if any(one["x"] for one in lines):
            charts.append(_chart(title, "measured", ("round", "round"), label, lines))
    return charts


def part_charts(run: RecordedRun) -> list[Chart]:
    """Charts a run's cumulative dollars and seconds, stacked by part."""
    dollars = {name: _sums(run, key) for key, name in DOLLARS.items()}
    unfinished = spent_until(run) - _sums(run, "round_cost_usd")
    dollars[UNFINISHED] = np.fmax(0.0, unfinished).round(9)
    collect_s, learn_s = _sums(run, "collect_s"), _sums(run, "learn_s")
    seconds = {
        "waiting for actors": collect_s,
        "updates": learn_s,
        "rest of the round": np.fmax(0.0, _sums(run, "round_s") - collect_s - learn_s),
    }
    return [
        _chart(
            f"{title} until each round",
            basis,
            ("round", "round"),
            label,
            [
                _line(name, run.column("round_index"), sums.tolist(), place, "line")
                for place, (name, sums) in enumerate(parts.items())
                if sums.any()
            ],
            kind="stack",
        )
        for title, basis, label, parts in (
            ("Dollars", run.basis, "US dollars", dollars),
            ("Time", "measured", "seconds, by the clock", seconds),
        )
    ]


def basis_of(groups: Sequence[RecordedGroup]) -> str:
    """Returns ``list prices``, ``metered``, or both."""
    return " and ".join(sorted({run.basis for group in groups for run in group.runs}))


def _chart(
    title: str,
    basis: str,
    x: tuple[str, str],
    y: str,
    lines: Sequence[Chart],
    kind: str = "lines",
) -> Chart:
    series = [_thinned(line) for line in lines if line["x"]]
    return {
        "title": title,
        "basis": basis,
        "x": x[0],
        "unit": x[1],
        "y": y,
        "kind": kind,
        "series": series,
    }


def _line(
    name: str, x: Sequence[float], y: Sequence[float], colour: int, style: str, **interval: Any
) -> Chart:
    return {"name": name, "x": x, "y": y, "colour": colour, "style": style, **interval}


def _thinned(line: Chart) -> Chart:
    """Thins a line to at most `POINTS_MAX` evenly chosen points, including the first and the last."""
    count = len(line["x"])
    if count <= POINTS_MAX:
        return line
    kept = np.linspace(0, count - 1, POINTS_MAX).round().astype(int)
    return line | {key: [line[key][place] for place in kept] for key in ("x", "y")}


def _sums(run: RecordedRun, key: str) -> np.ndarray:
    return np.cumsum(run.column(key))


def _group_lines(
    group: RecordedGroup, place: int, keys: Sequence[str], used: Totals, *, is_alone: bool
) -> Iterator[Chart]:
    """Returns the lines of one group; ``place`` sets their color."""
    if len(group.runs) == 1:
        for index, key in enumerate(keys):
            name = _RETURNS[key] if len(keys) > 1 else group.name
            style = "dots" if key == "evaluation_return_mean" else "line"
            yield _line(name, *_curve(group.runs[0], key, used), place + index, style)
        return
    curves = [_curve(run, keys[0], used) for run in group.runs]
    ended = [
        curve for run, curve in zip(group.runs, curves, strict=True) if run.is_finished and curve[0]
    ]
    if len(ended) > 1:
        yield _band(f"{group.name}, {len(ended)} seeds", place, ended)
    if is_alone or len(ended) < 2:
        for index, (run, curve) in enumerate(zip(group.runs, curves, strict=True), 1):
            name = run.name if is_alone else f"{group.name}, {run.name}"
            yield _line(name, *curve, place + index * is_alone, "thin")


def _curve(run: RecordedRun, key: str, used: Totals) -> Curve:
    """Pairs each value of a column with the total used so far; evaluations are at the round of their policy."""
    totals = dict(zip(run.column("round_index"), used(run).tolist(), strict=True))
    points = {}
    for row in run.rows:
        if row.get(key) is not None:
            is_evaluation = key == "evaluation_return_mean" and row["evaluation_round"] in totals
            points[totals[row["evaluation_round" if is_evaluation else "round_index"]]] = row[key]
    return sorted(points), [points[x] for x in sorted(points)]


def _band(name: str, colour: int, curves: Sequence[Curve]) -> Chart:
    """Returns the interquartile mean over runs and its interval; runs that have ended keep their last value."""
    start, end = max(xs[0] for xs, _ in curves), max(xs[-1] for xs, _ in curves)
    grid = np.linspace(start, end, _GRID_POINTS if end > start else 1)
    values = np.array([np.interp(grid, xs, ys) for xs, ys in curves]).T
    found: list[Any] = [interval_estimate(list(one), resamples=CURVE_RESAMPLES) for one in values]
    mean, low, high = (
        [one[key] for one in found]
        for key in ("interquartile_mean", "interval_low", "interval_high")
    )
    return _line(name, grid.tolist(), mean, colour, "line", low=low, high=high)
