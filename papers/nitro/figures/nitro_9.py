"""Nitro Fig. 9: the gain and efficiency of boosting by 4 to 32 times through fifty rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.drawing import BLUE, GREEN, GREY, ORANGE, PURPLE, dots, panels
from papers.estimates import differences, excludes, over_seeds, status
from papers.nitro.boosting.trainer import Trainer
from papers.nitro.figures.replays import (
    OTHER_STREAMS,
    OURS,
    SETTING_NAMES,
    mean_return,
    measured,
    ratio,
    trainer,
)

ROUNDS, SPAN = 50, 10
"""Length of the spans in each of which the round with the lowest R is chosen."""
FACTORS = (4, 8, 16, 32)
REPETITIONS, EPISODES = 1, 16


def measure(work: Path) -> dict[str, Any]:
    return summary(
        measured(work / "nitro_9.jsonl", f"{OURS} {REPETITIONS} {EPISODES}", OURS, _training)
    )


def _training(file: str, seed: int) -> dict[str, Any]:
    training, samples, lowest = trainer(file, seed), None, {}
    for round_index in range(1, ROUNDS + 1):
        span = (round_index - 1) // SPAN
        if (
            samples is not None
            and (found := ratio(training, samples)) is not None
            and found < lowest.get(span, (np.inf,))[0]
        ):
            lowest[span] = (found, round_index, training.snapshot())
        samples = training.update(training.roll_out(round_index, 1)).samples
    return {"points": [_point(training, *one) for _, one in sorted(lowest.items())]}


def _point(
    training: Trainer, convexity_ratio: float, round_index: int, snapshot: Any
) -> dict[str, Any]:
    returns: dict[str, list[float]] = {str(factor): [] for factor in (1, *FACTORS)}
    training.restore(snapshot)
    before = mean_return(training, 2 * EPISODES)
    for repetition in range(REPETITIONS):
        training.restore(snapshot)
        fragments = training.roll_out(round_index, max(FACTORS), seed=OTHER_STREAMS + repetition)
        for factor in (1, *FACTORS):
            training.restore(snapshot)
            training.update(fragments[:factor])
            returns[str(factor)].append(mean_return(training, EPISODES, repetition))
    return {
        "round_index": round_index,
        "ratio": convexity_ratio,
        "before": before,
        "returns": returns,
    }


def summary(lines: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Returns, by setting and factor, the gain over a plain round and per additional actor, at each of five points."""
    result: dict[str, Any] = {}
    for setting, rows in lines.items():
        before = np.array([[point["before"] for point in row["points"]] for row in rows])
        after = {
            factor: np.array(
                [
                    [np.mean(point["returns"][str(factor)]) for point in row["points"]]
                    for row in rows
                ]
            )
            for factor in (1, *FACTORS)
        }
        factors = {}
        for factor in FACTORS:
            gains = after[factor] - before
            factors[str(factor)] = {
                "gain": [over_seeds(one) for one in gains.T],
                "gain_over_plain": [over_seeds(one) for one in (after[factor] - after[1]).T],
                "efficiency": [over_seeds(one / factor) for one in gains.T],
                "last_less_first": differences(gains[:, -1], gains[:, 0]),
            }
        result[setting] = {
            "seeds": [row["seed"] for row in rows],
            "factors": factors,
            "rounds": [[point["round_index"] for point in row["points"]] for row in rows],
            "before": [over_seeds(one) for one in before.T],
        }
    return result


def draw(data: dict[str, Any]) -> Any:
    figure, rows = panels(2, (12, 4.2 * len(data)), len(data), squeeze=False)
    colours = (BLUE, ORANGE, GREEN, PURPLE)
    places = np.arange(ROUNDS // SPAN)
    for (gains, efficiencies), (setting, found) in zip(rows, data.items(), strict=True):
        for axes, key, what in (
            (gains, "gain", "reward gain"),
            (efficiencies, "efficiency", "reward gain an actor"),
        ):
            for shift, (factor, colour) in enumerate(zip(FACTORS, colours, strict=True)):
                dots(
                    axes,
                    places + 0.16 * (shift - 1.5),
                    found["factors"][str(factor)][key],
                    color=colour,
                    label=f"{factor}×",
                    ms=5,
                )
            axes.axhline(0.0, color=GREY, ls="--", lw=1)
            axes.set_xticks(places, [f"{SPAN * i + 1} to {SPAN * (i + 1)}" for i in places])
            axes.set(
                xlabel="of these rounds, the one with the lowest R",
                ylabel=what,
                title=f"{SETTING_NAMES[setting]}: {what}, five seeds",
            )
        gains.legend(frameon=False, ncols=4, fontsize=9)
    return figure


def verdict(data: dict[str, Any]) -> dict[str, Any]:
    found = {setting: one["factors"] for setting, one in data.items()}
    gains_less = all(
        few["interquartile_mean"] > many["interquartile_mean"]
        for factors in found.values()
        for few, many in zip(
            factors[str(FACTORS[0])]["efficiency"],
            factors[str(FACTORS[-1])]["efficiency"],
            strict=True,
        )
    )
    return {
        "most": {
            SETTING_NAMES[setting]: factors[str(FACTORS[-1])] for setting, factors in found.items()
        },
        "gains_less": gains_less,
        "status": status(
            excludes(factors[str(factor)]["last_less_first"]) < 0
            for factors in found.values()
            for factor in FACTORS
        ),
    }
