"""Nitro Fig. 2: ten rounds of PPO on Hopper, of which one is boosted from 1 to 16 actors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as pyplot
import numpy as np

from benchmarks.boosting.trainer import Trainer
from benchmarks.figures import replays
from benchmarks.figures.replays import ACTORS, ROUNDS, SEEDS, SETTINGS

PAPER = (
    "§2.2: of ten rounds on Hopper, boosting round 4 from 1 to 16 actors raises the return far above boosting "
    "round 3 or 5, with as many actors; sixteen in every round are the upper bound. One run; the text gives no "
    "values.")
METHOD = (
    "ten rounds of PPO with one actor of 256 steps; rounds 3, 4 and 5 boosted to 16, each in two replays from the "
    "same policy; five seeds, with Table 1's settings (ten steps a round, at a learning rate of 5e-5) and with "
    "those of `experiments/hopper.yaml`. Besides, as many actors in 25 rounds of one each. What [the study of the "
    "detector](design/detector.md) has on the same question (`benchmarks/results/boosting.json`) is of rounds of "
    "eight actors and more, and of three seeds.")
REPETITIONS, EPISODES = 2, 64
BOOSTED = (3, 4, 5)
"""The paper's rounds."""


def measure(work: Path) -> dict[str, Any]:
    kept = replays.Measurements(work / "nitro_2.jsonl", f"{SETTINGS} {EPISODES}")
    for setting, file in SETTINGS.items():
        for seed in SEEDS:
            kept.once({"setting": setting, "seed": seed}, lambda file=file, seed=seed: _training(file, seed))
    kept.close()
    return summary(kept.lines)


def _training(file: str, seed: int) -> dict[str, Any]:
    """What each scheme returns at its end; that without boosting after each round, and after more rounds.

    In those it has had as many actors as a boosted one.
    """
    training, always = (replays.trainer(file, seed) for _ in range(2))
    found: dict[str, Any] = {"none": [], "boosted": {}}
    for round_index in range(1, ROUNDS + 1):
        if round_index in BOOSTED:
            found["boosted"][str(round_index)] = [_end(training, round_index, one) for one in range(REPETITIONS)]
        training.update(training.roll_out(round_index, 1))
        found["none"].append(replays.mean_return(training, EPISODES))
        always.update(always.roll_out(round_index, ACTORS))
    for round_index in range(ROUNDS + 1, ROUNDS + ACTORS):
        training.update(training.roll_out(round_index, 1))
    return {**found, "always": replays.mean_return(always, EPISODES),
            "more_rounds": replays.mean_return(training, EPISODES)}


def _end(training: Trainer, boosted: int, repetition: int) -> float:
    """Boosts that round and goes on plainly; the return after the last."""
    streams = None if repetition == 0 else replays.OTHER_STREAMS + repetition
    with replays.put_back(training):
        for round_index in range(boosted, ROUNDS + 1):
            training.update(training.roll_out(
                round_index, ACTORS if round_index == boosted else 1, seed=streams))
        return replays.mean_return(training, EPISODES)


def summary(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """By setting: curves, what boosting each round gains at the end, and whether replays agree which round is best."""
    result = {}
    for setting in SETTINGS:
        rows = [line for line in lines if line["setting"] == setting]
        rounds = [str(one) for one in BOOSTED]
        ends = np.array([[row["boosted"][k] for k in rounds] for row in rows])
        plain = np.array([row["none"][-1] for row in rows])
        gains = ends.mean(axis=2) - plain[:, None]
        result[setting] = {
            "seeds": [row["seed"] for row in rows],
            "gain_by_round": {k: replays.over_seeds(gains[:, i]) for i, k in enumerate(rounds)},
            "gain_mean": replays.over_seeds(gains.mean(axis=1)),
            "gain_of_more_rounds": replays.over_seeds([row["more_rounds"] - row["none"][-1] for row in rows]),
            "more_rounds_less_boosted": replays.over_seeds(
                [row["more_rounds"] for row in rows] - ends.mean(axis=(1, 2))),
            "gain_of_always": replays.over_seeds([row["always"] - row["none"][-1] for row in rows]),
            "best_round_in_the_other_replay": replays.over_seeds([_held_out(one) for one in ends]),
            "lines": rows,
        }
    return result


def _held_out(ends: np.ndarray) -> float:
    """What the round that is best in one replay gains over the mean of all in the other, ``[round, replay]``."""
    return float(np.mean([ends[ends[:, one].argmax(), 1 - one] - ends[:, 1 - one].mean() for one in (0, 1)]))


def draw(data: dict[str, Any], path: Path) -> None:
    """What each scheme returns at the end, each seed's training as a line; a panel for each setting."""
    figure, panels = pyplot.subplots(1, len(data), figsize=(7 * len(data), 4.6), constrained_layout=True)
    names = ["never", *(f"in round {one}" for one in BOOSTED), "25 rounds\nof one", "in every\nround"]
    for axes, (setting, found) in zip(panels, data.items(), strict=True):
        values = np.array([[row["none"][-1], *(np.mean(row["boosted"][str(one)]) for one in BOOSTED),
                            row["more_rounds"], row["always"]] for row in found["lines"]])
        for row in values:
            axes.plot(range(len(names)), row, "o-", ms=3, lw=0.8, color=replays.GREY, alpha=0.6)
        replays.dots(axes, range(len(names)), [replays.over_seeds(one) for one in values.T], color=replays.BLUE, ms=7)
        axes.set_xticks(range(len(names)), names)
        axes.set(xlabel="16 actors (10, 25, 25, 25, 25 and 160 actors in all)", ylabel="return at the end",
                 title=f"{replays.SETTING_NAMES[setting]}: five seeds, 95 % intervals", yscale="log")
        axes.yaxis.set_major_formatter("{x:.0f}")
        axes.yaxis.set_minor_formatter("{x:.0f}")
    replays.saved(figure, path)


def verdict(data: dict[str, Any]) -> tuple[str, str]:
    paper, ours = (data[setting] for setting in SETTINGS)
    has_gain = {setting: replays.excludes(data[setting]["gain_mean"]) > 0 for setting in SETTINGS}
    is_told = replays.excludes(ours["best_round_in_the_other_replay"]) > 0
    status = "reproduced" if all(has_gain.values()) and is_told else "partly" if any(has_gain.values()) else "not"
    return status, (
        f"Boosting one round of ten gains {replays.text(ours['gain_mean'])} in return with our settings and "
        f"{replays.text(paper['gain_mean'])} with Table 1's. "
        f"{'Some rounds are' if is_told else 'No round could be shown to be'} better to boost than others: the "
        "best of rounds 3, 4 and 5 in one replay gains "
        f"{replays.text(ours['best_round_in_the_other_replay'])} more than their mean in another one. "
        "The same 25 actors in 25 rounds of one each return more by "
        f"{replays.text(ours['more_rounds_less_boosted'])} and {replays.text(paper['more_rounds_less_boosted'])}.")
