"""Draws benchmarks/results/boosting.json: ``python -m benchmarks.boosting.picture``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

RESULTS = Path(__file__).resolve().parents[1] / "results"
COLOURS = {"log_prob": "#2f6fb0", "surrogate": "#d9822b", "total_loss": "#3a8f4d"}
GREY = "#777777"
SHOWN = (
    "R log_prob-1024", "R log_prob-1024, Nitro's window", "R log_prob-1024, mean of 3 rounds", "R log_prob-all",
    "R log_prob-pooled", "R surrogate-1024", "R total_loss-1024", "gradient_noise_scale", "gradient_norm",
    "advantage_std", "explained_variance", "kl", "entropy", "episode_return_mean", "round_index")


def draw(tasks: dict[str, dict[str, Any]], picture: Path) -> None:
    """One row for each task: the ratio of signal to noise by size, and each signal's correlation with the gain."""
    figure, rows = plt.subplots(len(tasks), 2, figsize=(12, 5.2 * len(tasks)), constrained_layout=True, squeeze=False,
                                width_ratios=(1, 1.5))
    for (noise, gain), (name, task) in zip(rows, tasks.items(), strict=True):
        _draw_noise(noise, name, task["noise"]["of_independent_batches"])
        _draw_gain(gain, name, task["gain"])
        for axes in (noise, gain):
            axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(picture, dpi=110)
    plt.close(figure)


def _draw_noise(axes: Any, name: str, cells: dict[str, dict[str, Any]]) -> None:
    for shift, (objective, colour) in enumerate(COLOURS.items()):
        points = sorted((int(key.split(", ")[1].split()[0]), cell) for key, cell in cells.items()
                        if key.startswith(objective) and cell["rounds"])
        if not points:
            continue
        xs = [size * 1.12**(shift - 1) for size, _ in points]
        ys = [max(cell["signal_to_noise"], 1e-2) for _, cell in points]
        low = [max(cell["interval"][0], 1e-2) for _, cell in points]
        high = [max(cell["interval"][1], 1e-2) for _, cell in points]
        axes.plot(xs, ys, "o-", color=colour, label=objective)
        axes.vlines(xs, low, high, color=colour, lw=1)
    axes.axhline(1.0, color=GREY, ls="--", lw=1)
    axes.set(xscale="log", yscale="log", xlabel="samples that R is measured on",
             ylabel="variance of log R: between rounds / within one",
             title=f"{name}: R from round to round, against its noise\n(below the dashed line there is more noise)")
    axes.legend(frameon=False)


def _draw_gain(axes: Any, name: str, gain: dict[str, Any]) -> None:
    shown = [(signal, gain["signals"][signal]["spearman"]) for signal in SHOWN if signal in gain["signals"]]
    for place, (_, found) in enumerate(reversed(shown)):
        axes.hlines(place, *found["interval"], color=COLOURS["log_prob"])
        axes.plot(found["mean"], place, "o", color=COLOURS["log_prob"])
    axes.set_yticks(range(len(shown)), [signal for signal, _ in reversed(shown)])
    axes.axvline(0.0, color=GREY, ls="--", lw=1)
    limit = max(0.0, gain["reliability_of_the_gain"])**0.5
    for side in (-limit, limit):
        axes.axvline(side, color=GREY, ls=":", lw=1)
    axes.set(xlim=(-1, 1), xlabel="Spearman's ρ with what boosting gained in that round, 95 % interval",
             title=f"{name}: which signal knows when boosting pays?\n"
             "(Nitro: a low R, so ρ < 0; dotted: the most that the gain's own noise allows)")


if __name__ == "__main__":
    results = json.loads((RESULTS / "boosting.json").read_text())
    found = {name: task for name, task in results.items()
             if isinstance(task, dict) and task.get("gain", {}).get("signals") and task.get("noise")}
    draw(found, RESULTS / "boosting.png")
