"""Draws papers/nitro/results/boosting.json as boosting.png and boosting_dollars.png.

python -m papers.nitro.boosting.picture
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.drawing import BLUE, GREEN, GREY, ORANGE, panels, saved

RESULTS = Path(__file__).parents[1] / "results"
COLOURS = {"log_prob": BLUE, "surrogate": ORANGE, "total_loss": GREEN}
SHOWN = (
    "R log_prob-1024",
    "R log_prob-1024, Nitro's window",
    "R log_prob-1024, mean of 3 rounds",
    "R log_prob-all",
    "R log_prob-pooled",
    "R surrogate-1024",
    "R total_loss-1024",
    "gradient_noise_scale",
    "gradient_norm",
    "advantage_std",
    "explained_variance",
    "kl",
    "entropy",
    "episode_return_mean",
    "round_index",
)


HOW = {
    "": "boosted by {}",
    "permuted": "boosted by its scores\nin another order",
    "even": "as many in each round",
    "rounds": "more rounds, never boosted",
}
"""Descriptions of the arms of papers/nitro/boosting/dollars.py, by the suffix of the signal's name."""


def draw(tasks: dict[str, dict[str, Any]], picture: Path) -> None:
    """Draws a row per task: signal to noise by size, gain by round, and each signal's correlation with the gain."""
    figure, rows = panels(
        3, (20, 5.2 * len(tasks)), len(tasks), squeeze=False, width_ratios=(1, 1, 1.05)
    )
    figure.get_layout_engine().set(wspace=0.04)
    for (noise, gain, signals), (name, task) in zip(rows, tasks.items(), strict=True):
        if task["noise"]["of_independent_batches"]:
            _draw_noise(noise, name, task["noise"]["of_independent_batches"])
        else:
            noise.set_axis_off()
        _draw_gain(gain, name, task["gain"])
        _draw_correlations(signals, name, task["gain"])
    saved(figure, picture)


def _draw_noise(axes: Any, name: str, cells: dict[str, dict[str, Any]]) -> None:
    for shift, (objective, colour) in enumerate(COLOURS.items()):
        points = sorted(
            (int(key.split(", ")[1].split()[0]), cell)
            for key, cell in cells.items()
            if key.startswith(objective) and cell["rounds"]
        )
        if not points:
            continue
        xs = [size * 1.12 ** (shift - 1) for size, _ in points]
        ys = [max(cell["signal_to_noise"], 1e-2) for _, cell in points]
        low = [max(cell["interval"][0], 1e-2) for _, cell in points]
        high = [max(cell["interval"][1], 1e-2) for _, cell in points]
        firm = [index for index, (_, cell) in enumerate(points) if cell["blocks"] > 2]
        axes.plot([xs[i] for i in firm], [ys[i] for i in firm], "o-", color=colour, label=objective)
        axes.plot(xs, ys, "o", color=colour, fillstyle="none")
        axes.vlines(xs, low, high, color=colour, lw=1)
    axes.axhline(1.0, color=GREY, ls="--", lw=1)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="samples that R is measured on",
        ylabel="variance of log R: between rounds / within one (0.01: or less)",
        title=f"{name}: R from round to round, against its noise\n"
        "(below 1 there is more noise; hollow: two blocks only)",
    )
    axes.set_xticks(sizes := (1024, 4096, 32768), [f"{size:,}" for size in sizes])
    axes.minorticks_off()
    axes.legend(frameon=False, loc="upper left")


def _draw_gain(axes: Any, name: str, gain: dict[str, Any]) -> None:
    trainings = sorted({one["training"] for one in gain["by_round"]})
    for shift, (training, colour) in enumerate(zip(trainings, COLOURS.values(), strict=False)):
        points = [one for one in gain["by_round"] if one["training"] == training]
        axes.errorbar(
            [one["round_index"] + 0.15 * (shift - 1) for one in points],
            [one["gain"] for one in points],
            [1.96 * one["standard_error"] for one in points],
            fmt="o",
            ms=4,
            lw=1,
            color=colour,
            label=f"seed {training}",
        )
    axes.axhline(0.0, color=GREY, ls="--", lw=1)
    axes.margins(y=0.12)
    axes.set(
        xlabel="round",
        ylabel="return with I_max actors less that with I_min",
        title=f"{name}: what boosting a round gains\n(mean of {points[0]['repetitions']} replays, 95 % intervals)",
    )
    axes.legend(frameon=False, loc="upper left", ncols=3)


def _draw_correlations(axes: Any, name: str, gain: dict[str, Any]) -> None:
    shown = [
        (signal, gain["signals"][signal]["spearman"])
        for signal in SHOWN
        if signal in gain["signals"]
    ]
    for place, (_, found) in enumerate(reversed(shown)):
        axes.hlines(place, *found["interval"], color=COLOURS["log_prob"])
        axes.plot(found["mean"], place, "o", color=COLOURS["log_prob"])
    axes.set_yticks(range(len(shown)), [signal for signal, _ in reversed(shown)])
    axes.axvline(0.0, color=GREY, ls="--", lw=1)
    for side in (-1, 1):
        axes.axvline(side * gain["largest_by_chance"], color=GREY, ls=":", lw=1)
    axes.set(
        xlim=(-1, 1),
        xlabel="Spearman's ρ with what boosting gained in that round, 95 % interval",
        title=f"{name}: which signal knows when it pays?\n"
        f"(Nitro expects ρ < 0; dotted: largest of {len(gain['signals'])} by chance)",
    )


def draw_dollars(task: str, found: dict[str, Any], picture: Path) -> None:
    """Draws each arm's return, at the end and along the way, with intervals over seeds."""
    figure, sides = panels(2, (12, 1.6 + 0.6 * len(found["arms"])), sharey=True)
    split = sorted(
        ((*name.partition("-")[::2], arm) for name, arm in found["arms"].items()),
        key=lambda one: list(HOW).index(one[1]),
    )
    arms = [(HOW[how].format(signal), arm) for signal, how, arm in split]
    for axes, (key, title) in zip(
        sides,
        (
            ("return_at_the_end", "after the last round"),
            ("return_along_the_way", "along the way, mean over actors"),
        ),
        strict=True,
    ):
        for place, (_, arm) in enumerate(reversed(arms)):
            axes.hlines(
                place,
                arm[key]["interval_low"],
                arm[key]["interval_high"],
                color=COLOURS["log_prob"],
            )
            axes.plot(arm[key]["interquartile_mean"], place, "o", color=COLOURS["log_prob"])
            by_seed = list(arm[f"{key}_by_seed"].values())
            axes.plot(by_seed, [place - 0.2] * len(by_seed), "|", color=GREY)
        axes.set(xlabel=f"return {title}")
    sides[0].set_yticks(
        range(len(arms)),
        [f"{name}\n{arm['actors_mean']:.0f} actors" for name, arm in reversed(arms)],
    )
    sides[0].margins(y=0.15)
    figure.suptitle(
        f"{task}: trainings at equal dollars, {arms[0][1]['return_at_the_end']['seeds']} seeds "
        "(interquartile mean, 95 % interval; grey: each seed)"
    )
    saved(figure, picture)


if __name__ == "__main__":
    results = json.loads((RESULTS / "boosting.json").read_text())
    tasks = {
        name: task
        for name, task in sorted(results.items(), key=lambda item: item[0].endswith("-paper"))
        if isinstance(task, dict) and task.get("gain")
    }
    draw(tasks, RESULTS / "boosting.png")
    for name, task in results.items():
        if name.endswith("-dollars"):
            draw_dollars(name.removesuffix("-dollars"), task, RESULTS / "boosting_dollars.png")
