"""Draws two sides' learning curves and last scores (needs requirements-dev.txt)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from benchmarks.drawing import panels, saved
from benchmarks.parity.estimates import smoothed
from runtime.records.estimates import interval_estimate

COLOURS = {"ours": "#2f6fb0", "peer": "#d9822b"}
MEASURES = ("evaluation_return_mean", "training_return_mean")
_LABELS = {
    "evaluation_return_mean": "last policy, best actions",
    "training_return_mean": "mean over the training",
}
_RESAMPLES = 2000


def draw(
    picture: Path,
    results: Sequence[Mapping[str, Any]],
    statistics: Mapping[str, Any],
    *,
    titles: tuple[str, str],
) -> None:
    """Draws a column for each environment: training returns over steps, then each measure of `MEASURES`."""
    names = dict(zip(COLOURS, titles, strict=True))
    columns = list(statistics[MEASURES[0]]["environments"])
    figure, axes = panels(
        len(columns),
        (max(8.6, 4.1 * len(columns)), 7.4),
        1 + len(MEASURES),
        squeeze=False,
        height_ratios=(5, 2, 2),
    )
    for column, environment_id in enumerate(columns):
        of_environment = [
            result for result in results if result["environment_id"] == environment_id
        ]
        for side in COLOURS:
            runs = [result for result in of_environment if result["side"] == side]
            _draw_curves(axes[0][column], runs, COLOURS[side], names[side])
        for row, measure in enumerate(MEASURES, start=1):
            estimates = statistics[measure]["environments"][environment_id]
            _draw_scores(
                axes[row][column],
                of_environment,
                measure,
                estimates,
                names if column == 0 else None,
            )
        axes[0][column].set(title=environment_id, xlabel="environment steps, thousands")
    axes[0][0].set_ylabel("return of training episodes")
    axes[0][0].legend(frameon=False)
    figure.suptitle(_told(statistics), fontsize=10)
    saved(figure, picture, 110)


def _draw_curves(axes: Axes, runs: Sequence[Mapping[str, Any]], colour: str, label: str) -> None:
    last = min(run["env_steps"] for run in runs)
    curves = [smoothed(run["curve"], last) for run in runs]
    steps, means = curves[0][0], np.array([curve for _, curve in curves])
    is_known = np.isfinite(means).all(0)
    estimates = [interval_estimate(column, resamples=_RESAMPLES) for column in means.T[is_known]]
    thousands = steps[is_known] / 1000
    axes.plot(
        thousands,
        [estimate["interquartile_mean"] for estimate in estimates],
        color=colour,
        label=label,
    )
    if len(runs) > 1:
        axes.fill_between(
            thousands,
            [estimate["interval_low"] for estimate in estimates],
            [estimate["interval_high"] for estimate in estimates],
            color=colour,
            alpha=0.2,
            lw=0,
        )


def _draw_scores(
    axes: Axes,
    results: Sequence[Mapping[str, Any]],
    measure: str,
    estimates: Mapping[str, Any],
    names: Mapping[str, str] | None,
) -> None:
    for row, side in enumerate(COLOURS):
        values = [result[measure] for result in results if result["side"] == side]
        axes.plot(values, [row] * len(values), "o", color=COLOURS[side], ms=5, alpha=0.35, mew=0)
        estimate = estimates[side]
        if estimate["interval_low"] is not None:
            axes.plot(
                [estimate["interval_low"], estimate["interval_high"]],
                [row, row],
                color=COLOURS[side],
                lw=2.5,
            )
        axes.plot(estimate["interquartile_mean"], row, "|", color=COLOURS[side], ms=18, mew=2.5)
    axes.set_yticks(range(len(COLOURS)), [names[side] if names else "" for side in COLOURS])
    axes.set_ylim(len(COLOURS) - 0.5, -0.5)
    axes.set_xlabel(_LABELS[measure])


def _told(statistics: Mapping[str, Any]) -> str:
    lines = ["Interquartile means over seeds with 95 % intervals"]
    for measure in MEASURES:
        overall = statistics[measure]["all_environments"]
        lines.append(
            f"{_LABELS[measure]}: P(ours > peer) {_with_interval(overall['probability_of_improvement'])}, "
            f"difference of normalised scores {_with_interval(overall['difference'])}"
        )
    return "\n".join(lines)


def _with_interval(estimate: Mapping[str, float | None]) -> str:
    low, high = estimate["interval_low"], estimate["interval_high"]
    return f"{estimate['estimate']:.2f}" + (f" [{low:.2f}, {high:.2f}]" if low is not None else "")
