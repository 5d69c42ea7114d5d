"""Data of the report's charts; a library draws them in the browser."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from runtime.records.estimates import CONFIDENCE, interval_estimate
from runtime.report.reading import Number, RecordedGroup, RecordedRun, Row

RESAMPLES = 2000
"""Resamples per point of a curve over seeds; the table of estimates uses more."""
_GRID_POINTS = 100
POINTS_MAX = 2000
"""Most points of a line: a browser cannot show more, and the page of a run of 100,000 rounds would have 36 MB."""
_EVALUATIONS_MIN = 3
"""With fewer evaluations in a run, curves of several runs show training episodes."""
_EVALUATION, _TRAINING = "evaluation_return_mean", "episode_return_mean"

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
    "instance_steps_s": ("Throughput of each instance that trains", "steps a second"),
    "reduce_s": ("Sums of gradients by instances", "s, mean over the instances"),
    "reduce_wait_s": ("Of these sums, waiting for other instances", "s, mean over the instances"),
}

Chart = dict[str, Any]
Curve = tuple[Sequence[float], Sequence[Number]]
Totals = Callable[[RecordedRun], Sequence[float]]
"""Returns what a run has used until each round."""
PartsOf = Callable[[Row], Mapping[str, Number | None]]
"""Divides a round's dollars or seconds by purpose."""


def dollar_parts(row: Row) -> dict[str, float | None]:
    """Returns the dollars of a round, which add up to `round_cost_usd`."""
    return {name: row[key] for key, name in DOLLARS.items()}


def measured_parts(row: Row) -> dict[str, float | None]:
    """Returns the measured seconds of a round, which add up to `round_s`."""
    collect, learn, whole = row["collect_s"], row["learn_s"], row["round_s"]
    rest = None if whole is None else max(0.0, whole - (collect or 0.0) - (learn or 0.0))
    return {"waiting for actors": collect, "updates": learn, "rest of the round": rest}


def modelled_parts(row: Row) -> dict[str, float | None]:
    """Returns the billed seconds of a round, which add up to `modelled_s` in `summary.json`."""
    learn, whole = row["modelled_learn_s"], row["modelled_round_s"]
    actors = None if whole is None else whole - (learn or 0.0)
    return {
        "actors and detector": actors,
        "updates": learn,
        "evaluations": row["modelled_evaluate_s"],
    }


def thinned(line: Chart) -> Chart:
    """Thins a line to at most `POINTS_MAX` evenly chosen points, including the first and the last."""
    count = len(line["x"])
    if count <= POINTS_MAX:
        return line
    kept = np.linspace(0, count - 1, POINTS_MAX).round().astype(int)
    return {
        key: [value[place] for place in kept] if key in ("x", "y", "low", "high") else value
        for key, value in line.items()
    }


def basis_of(groups: Iterable[RecordedGroup]) -> str:
    """Returns ``modelled``, ``metered``, or both."""
    return " and ".join(sorted({run.basis for group in groups for run in group.runs})) or "modelled"


def are_apart(groups: Iterable[RecordedGroup]) -> bool:
    """Returns whether the bill assumes a machine per actor: it is modelled, and there are no instances."""
    runs = [run for group in groups for run in group.runs]
    return all(run.basis == "modelled" for run in runs) and not any(
        row["instances"] for run in runs for row in run.rows
    )


def return_charts(groups: Sequence[RecordedGroup]) -> list[Chart]:
    """Returns against steps, measured seconds, billed seconds, and dollars."""
    basis = basis_of(groups)
    runs = [run for group in groups for run in group.runs]
    machines = (
        "with every actor on a machine of its own" if are_apart(groups) else "that the bill counts"
    )
    axes: tuple[tuple[str, str, str, str, Totals], ...] = (
        ("steps", "environment steps", "steps", "measured", _totals(lambda row: row["env_steps"])),
        (
            "time",
            "seconds of all rounds, by the clock",
            "s",
            "measured",
            _totals(lambda row: row["round_s"]),
        ),
        ("time of the bill", f"seconds {machines}", "s", basis, _totals(_billed_s)),
        ("dollars", "US dollars", "$", basis, spent_usd),
    )
    keys = [_EVALUATION, _TRAINING]
    if len(runs) > 1:
        counts = [sum(row[_EVALUATION] is not None for row in run.rows) for run in runs if run.rows]
        keys = [_EVALUATION] if all(count >= _EVALUATIONS_MIN for count in counts) else [_TRAINING]
    charts = []
    for title, label, unit, kind, used in axes:
        series = [
            one
            for place, group in enumerate(groups)
            for one in _returns(group, place, keys, used, len(groups))
        ]
        what = "mean return of an episode" if len(keys) > 1 else f"return in {_WORDS[keys[0]]}"
        charts.append(
            {
                "title": f"Return against {title}",
                "basis": kind,
                "x": label,
                "unit": unit,
                "y": what,
                "kind": "lines",
                "series": series,
            }
        )
    return charts


def spent_usd(run: RecordedRun) -> list[float]:
    """Returns the dollars spent until each round, unfinished rounds included; the last one has all of the run."""
    found = [math.nan if row["spent_usd"] is None else row["spent_usd"] for row in run.rows]
    return [*found[:-1], *(max(run.spent_usd[0], last) for last in found[-1:])]


def _totals(cost: Callable[[Row], float | None]) -> Totals:
    return lambda run: np.cumsum(
        [math.nan if (one := cost(row)) is None else one for row in run.rows]
    ).tolist()


def _billed_s(row: Row) -> float | None:
    """Returns a round's seconds as counted by `modelled_s` in `summary.json`."""
    return (
        None
        if row["modelled_round_s"] is None
        else row["modelled_round_s"] + (row["modelled_evaluate_s"] or 0.0)
    )


_WORDS = {_EVALUATION: "evaluation", _TRAINING: "training episodes"}


def _returns(
    group: RecordedGroup, place: int, keys: Sequence[str], used: Totals, groups: int
) -> Iterable[Chart]:
    """Returns the lines of one group; ``place`` sets their color."""
    if len(group.runs) == 1:
        for index, key in enumerate(keys):
            xs, ys = _curve(group.runs[0], key, used)
            yield {
                "name": _WORDS[key] if len(keys) > 1 else group.name,
                "x": xs,
                "y": ys,
                "colour": place + index,
                "style": "dots" if key == _EVALUATION else "thin" if len(keys) > 1 else "line",
            }
        return
    curves = {run.name: _curve(run, keys[0], used) for run in group.runs}
    finished = [curves[run.name] for run in group.runs if run.is_finished and curves[run.name][0]]
    if len(finished) > 1:
        yield {
            "name": f"{group.name}, {len(finished)} seeds",
            **_band(finished),
            "colour": place,
            "style": "line",
        }
    if groups == 1 or len(finished) < 2:
        for index, (name, (xs, ys)) in enumerate(curves.items(), 1):
            yield {
                "name": name if groups == 1 else f"{group.name}, {name}",
                "x": xs,
                "y": ys,
                "colour": place + index if groups == 1 else place,
                "style": "thin",
            }


def _curve(run: RecordedRun, key: str, used: Totals) -> Curve:
    """Pairs each value of a column with the total used so far; evaluations are at the round of their policy."""
    totals, points = (
        dict(zip((row["round_index"] for row in run.rows), used(run), strict=True)),
        dict[float, Number](),
    )
    for row in run.rows:
        value, index = row[key], row["evaluation_round"] if key == _EVALUATION else None
        x = totals.get(index, totals[row["round_index"]])
        if value is not None and math.isfinite(x):
            points[x] = value
    ordered = sorted(points)
    return ordered, [points[x] for x in ordered]


def _band(curves: Sequence[Curve]) -> dict[str, Any]:
    """Returns the interquartile mean over runs and its interval; runs that have ended keep their last value."""
    start, end = max(xs[0] for xs, _ in curves), max(xs[-1] for xs, _ in curves)
    grid = np.linspace(start, end, _GRID_POINTS if end > start else 1)
    values = np.array([np.interp(grid, xs, ys) for xs, ys in curves]).T
    estimates = [interval_estimate(list(column), resamples=RESAMPLES) for column in values]
    return {
        "x": grid.tolist(),
        "y": [one["interquartile_mean"] for one in estimates],
        "low": [one["interval_low"] for one in estimates],
        "high": [one["interval_high"] for one in estimates],
    }


def _throughput(row: Row) -> float | None:
    """Returns the steps per second that each instance trained on; None without instances."""
    instances, steps, seconds = row["instances"], row["env_steps"], row["round_s"]
    return steps / instances / seconds if instances and steps and seconds else None


def round_charts(groups: Sequence[RecordedGroup]) -> list[Chart]:
    """Charts actors, signals and score by round, averaged over the seeds that reached the round."""
    charts = []
    for key, (title, label) in _PER_ROUND.items():
        series = []
        for place, group in enumerate(groups):
            found: dict[Number, list[Number]] = {}
            for row in (row for run in group.runs for row in run.rows):
                if (
                    value := _throughput(row) if key == "instance_steps_s" else row[key]
                ) is not None:
                    found.setdefault(row["round_index"] or 0, []).append(value)
            rounds = sorted(found)
            name = group.name if len(group.runs) == 1 else f"{group.name}, mean of seeds"
            series.append(
                {
                    "name": name if len(groups) > 1 or len(group.runs) > 1 else title,
                    "x": rounds,
                    "y": [sum(found[index]) / len(found[index]) for index in rounds],
                    "colour": place,
                    "style": "step" if key == "actor_count" else "line",
                }
            )
        # Each scaler reads another signal.
        if any(one["x"] for one in series):
            charts.append(
                {
                    "title": title,
                    "basis": "measured",
                    "x": "round",
                    "unit": "round",
                    "y": label,
                    "kind": "lines",
                    "series": series,
                }
            )
    return charts


def part_charts(run: RecordedRun) -> list[Chart]:
    """Charts a run's cumulative dollars and seconds, stacked by part."""
    kinds: tuple[tuple[str, str, str, PartsOf], ...] = (
        ("Dollars until each round", run.basis, "US dollars", dollar_parts),
        ("Time until each round", "measured", "seconds, by the clock", measured_parts),
        ("Time of the bill until each round", run.basis, "seconds", modelled_parts),
    )
    charts: list[Chart] = [
        {
            "title": title,
            "basis": basis,
            "x": "round",
            "unit": "round",
            "y": label,
            "kind": "stack",
            "series": _sums(run.rows, parts),
        }
        for title, basis, label, parts in kinds
    ]
    finished = np.cumsum([row["round_cost_usd"] or 0.0 for row in run.rows])
    unfinished = np.fmax(0.0, np.subtract(spent_usd(run), finished)).round(9).tolist()
    if any(unfinished):
        charts[0]["series"].append(
            {
                "name": UNFINISHED,
                "x": [row["round_index"] for row in run.rows],
                "y": unfinished,
                "colour": len(DOLLARS),
                "style": "line",
            }
        )
    return charts


def _sums(rows: Sequence[Row], parts: PartsOf) -> list[dict[str, Any]]:
    """Returns running sums of each part that is not always 0; unknown values count as 0."""
    found = [parts(row) for row in rows]
    rounds = [row["round_index"] for row in rows]
    series = []
    for place, name in enumerate(found[0] if found else ()):
        sums = np.cumsum([one[name] or 0.0 for one in found]).tolist()
        if sums[-1] > 0:
            series.append({"name": name, "x": rounds, "y": sums, "colour": place, "style": "line"})
    return series


INTERVAL = (
    f"interquartile mean over seeds, with a {CONFIDENCE:.0%} percentile interval by bootstrap "
    f"({RESAMPLES:,} resamples of the seeds)"
)
