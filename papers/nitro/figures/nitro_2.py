"""Nitro Fig. 2: ten rounds of PPO on Hopper, one of them boosted from 1 to 16 actors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.drawing import BLUE, GREY, dots, panels
from papers.estimates import differences, excludes, over_seeds
from papers.nitro.boosting.trainer import Trainer
from papers.nitro.figures import replays
from papers.nitro.figures.replays import ACTORS, OTHER_STREAMS, ROUNDS, SETTING_NAMES, SETTINGS

REPETITIONS, EPISODES = 2, 64
BOOSTED = (3, 4, 5)
"""The paper's rounds."""


def measure(work: Path) -> dict[str, Any]:
    return summary(
        replays.measured(work / "nitro_2.jsonl", f"{SETTINGS} {EPISODES}", SETTINGS, _training)
    )


def _training(file: str, seed: int) -> dict[str, Any]:
    """Returns each scheme's final return; without boosting also after each round, and after more rounds.

    The additional rounds bring it to the boosted schemes' number of actors.
    """
    training, always = (replays.trainer(file, seed) for _ in range(2))
    found: dict[str, Any] = {"none": [], "boosted": {}}
    for round_index in range(1, ROUNDS + 1):
        if round_index in BOOSTED:
            found["boosted"][str(round_index)] = [
                _end(training, round_index, one) for one in range(REPETITIONS)
            ]
        training.update(training.roll_out(round_index, 1))
        found["none"].append(replays.mean_return(training, EPISODES))
        always.update(always.roll_out(round_index, ACTORS))
    for round_index in range(ROUNDS + 1, ROUNDS + ACTORS):
        training.update(training.roll_out(round_index, 1))
    return {
        **found,
        "always": replays.mean_return(always, EPISODES),
        "more_rounds": replays.mean_return(training, EPISODES),
    }


def _end(training: Trainer, boosted: int, repetition: int) -> float:
    """Boosts one round and continues plainly. Returns the return after the last round."""
    streams = None if repetition == 0 else OTHER_STREAMS + repetition
    with replays.put_back(training):
        for round_index in range(boosted, ROUNDS + 1):
            training.update(
                training.roll_out(
                    round_index, ACTORS if round_index == boosted else 1, seed=streams
                )
            )
        return replays.mean_return(training, EPISODES)


def summary(lines: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Returns, by setting, curves, the final gain of boosting each round, and whether replays agree on the best."""
    result = {}
    for setting, rows in lines.items():
        rounds = [str(one) for one in BOOSTED]
        ends = np.array([[row["boosted"][k] for k in rounds] for row in rows])
        plain = np.array([row["none"][-1] for row in rows])
        gains = ends.mean(axis=2) - plain[:, None]
        more_rounds = [row["more_rounds"] for row in rows]
        result[setting] = {
            "seeds": [row["seed"] for row in rows],
            "gain_by_round": {k: over_seeds(gains[:, i]) for i, k in enumerate(rounds)},
            "gain_mean": over_seeds(gains.mean(axis=1)),
            "gain_of_more_rounds": differences(more_rounds, plain),
            "more_rounds_less_boosted": differences(more_rounds, ends.mean(axis=(1, 2))),
            "gain_of_always": differences([row["always"] for row in rows], plain),
            "best_round_in_the_other_replay": over_seeds(map(_held_out, ends)),
            "lines": rows,
        }
    return result


def _held_out(ends: np.ndarray) -> float:
    """Returns the gain of one replay's best round over the mean of all rounds in the other, ``[round, replay]``."""
    return float(
        np.mean([ends[ends[:, one].argmax(), 1 - one] - ends[:, 1 - one].mean() for one in (0, 1)])
    )


def draw(data: dict[str, Any]) -> Any:
    """Draws each scheme's final return, with a line per seed and a panel per setting."""
    figure, columns = panels(len(data), (7 * len(data), 4.6))
    names = [
        "never",
        *(f"in round {one}" for one in BOOSTED),
        "25 rounds\nof one",
        "in every\nround",
    ]
    for axes, (setting, found) in zip(columns, data.items(), strict=True):
        values = np.array(
            [
                [
                    row["none"][-1],
                    *(np.mean(row["boosted"][str(one)]) for one in BOOSTED),
                    row["more_rounds"],
                    row["always"],
                ]
                for row in found["lines"]
            ]
        )
        for row in values:
            axes.plot(range(len(names)), row, "o-", ms=3, lw=0.8, color=GREY, alpha=0.6)
        dots(axes, range(len(names)), [over_seeds(one) for one in values.T], color=BLUE, ms=7)
        axes.set_xticks(range(len(names)), names)
        axes.set(
            xlabel="16 actors (10, 25, 25, 25, 25 and 160 actors in all)",
            ylabel="return at the end",
            title=f"{SETTING_NAMES[setting]}: five seeds, 95 % intervals",
            yscale="log",
        )
        axes.yaxis.set_major_formatter("{x:.0f}")
        axes.yaxis.set_minor_formatter("{x:.0f}")
    return figure


def verdict(data: dict[str, Any]) -> dict[str, Any]:
    has_gain = [excludes(data[setting]["gain_mean"]) > 0 for setting in SETTINGS]
    is_told = excludes(data["ours"]["best_round_in_the_other_replay"]) > 0
    return {
        "is_told": is_told,
        "status": "reproduced"
        if all(has_gain) and is_told
        else "partly"
        if any(has_gain)
        else "not",
    }
