"""Nitro Fig. 9: what boosting by 4 to 32 times gains through fifty rounds, and how efficiently."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as pyplot
import numpy as np

from benchmarks.boosting.trainer import Trainer
from benchmarks.figures import replays
from benchmarks.figures.replays import OURS

PAPER = (
    "§5.3: in fifty rounds of PPO on Hopper, the gain of boosting by 4, 8, 16 and 32 times, and the gain for its "
    "budget, fall through training. No values in the text.")
METHOD = (
    "the settings of `experiments/hopper.yaml`: fifty rounds of one actor with 256 steps, five seeds; of every "
    "ten rounds the one with the lowest R. The gain is the return after boosting less that before, as in the "
    "paper.")
ROUNDS, SPAN = 50, 10
"""One round is chosen of every ten: that with the lowest R."""
FACTORS = (4, 8, 16, 32)
SEEDS = replays.SEEDS
REPETITIONS, EPISODES = 1, 16


def measure(work: Path) -> dict[str, Any]:
    kept = replays.Measurements(work / "nitro_9.jsonl", f"{OURS} {REPETITIONS} {EPISODES}")
    for setting, file in OURS.items():
        for seed in SEEDS:
            kept.once({"setting": setting, "seed": seed}, lambda file=file, seed=seed: _training(file, seed))
    kept.close()
    return summary(kept.lines)


def _training(file: str, seed: int) -> dict[str, Any]:
    training, samples, lowest = replays.trainer(file, seed), None, {}
    for round_index in range(1, ROUNDS + 1):
        span = (round_index - 1) // SPAN
        if samples is not None and (ratio := replays.ratio(training, samples)) is not None \
                and ratio < lowest.get(span, (np.inf,))[0]:
            lowest[span] = (ratio, round_index, training.snapshot())
        samples = training.update(training.roll_out(round_index, 1)).samples
    return {"points": [_point(training, *found) for _, found in sorted(lowest.items())]}


def _point(training: Trainer, ratio: float, round_index: int, snapshot: Any) -> dict[str, Any]:
    returns: dict[str, list[float]] = {str(factor): [] for factor in (1, *FACTORS)}
    training.restore(snapshot)
    before = replays.mean_return(training, 2 * EPISODES)
    for repetition in range(REPETITIONS):
        training.restore(snapshot)
        fragments = training.roll_out(round_index, max(FACTORS), seed=replays.OTHER_STREAMS + repetition)
        for factor in (1, *FACTORS):
            training.restore(snapshot)
            training.update(fragments[:factor])
            returns[str(factor)].append(replays.mean_return(training, EPISODES, repetition))
    return {"round_index": round_index, "ratio": ratio, "before": before, "returns": returns}


def summary(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """By setting and factor: gain over a plain round and per actor more, at each of the five points."""
    result: dict[str, Any] = {}
    for setting in OURS:
        rows = [line for line in lines if line["setting"] == setting]
        if not rows:
            continue
        factors = {}
        for factor in FACTORS:
            gains = np.array([[np.mean(point["returns"][str(factor)]) - point["before"] for point in row["points"]]
                              for row in rows])
            over_plain = np.array([[np.mean(point["returns"][str(factor)]) - np.mean(point["returns"]["1"])
                                    for point in row["points"]] for row in rows])
            factors[str(factor)] = {
                "gain": [replays.over_seeds(one) for one in gains.T],
                "gain_over_plain": [replays.over_seeds(one) for one in over_plain.T],
                "efficiency": [replays.over_seeds(one / factor) for one in gains.T],
                "trend": replays.over_seeds([replays.spearman(range(len(one)), one) for one in gains]),
                "last_less_first": replays.over_seeds(gains[:, -1] - gains[:, 0])}
        result[setting] = {"seeds": [row["seed"] for row in rows], "factors": factors,
                           "rounds": [[point["round_index"] for point in row["points"]] for row in rows],
                           "before": [replays.over_seeds([row["points"][i]["before"] for row in rows])
                                      for i in range(ROUNDS // SPAN)]}
    return result


def draw(data: dict[str, Any], path: Path) -> None:
    figure, rows = pyplot.subplots(len(data), 2, figsize=(12, 4.2 * len(data)), constrained_layout=True, squeeze=False)
    colours = (replays.BLUE, replays.ORANGE, replays.GREEN, replays.PURPLE)
    places = np.arange(ROUNDS // SPAN)
    for (gains, efficiencies), (setting, found) in zip(rows, data.items(), strict=True):
        for axes, key, what in ((gains, "gain", "reward gain"), (efficiencies, "efficiency", "reward gain an actor")):
            for shift, (factor, colour) in enumerate(zip(FACTORS, colours, strict=True)):
                replays.dots(axes, places + 0.16 * (shift - 1.5), found["factors"][str(factor)][key], color=colour,
                             label=f"{factor}×", ms=5)
            axes.axhline(0.0, color=replays.GREY, ls="--", lw=1)
            axes.set_xticks(places, [f"{SPAN * i + 1} to {SPAN * (i + 1)}" for i in places])
            axes.set(xlabel="of these rounds, the one with the lowest R", ylabel=what,
                     title=f"{replays.SETTING_NAMES[setting]}: {what}, five seeds")
        gains.legend(frameon=False, ncols=4, fontsize=9)
    replays.saved(figure, path)


def verdict(data: dict[str, Any]) -> tuple[str, str]:
    falls = {setting: [replays.excludes(found["factors"][str(factor)]["last_less_first"]) < 0 for factor in FACTORS]
             for setting, found in data.items()}
    texts = "; ".join(
        f"in the first ten rounds {replays.text(most['gain'][0])}, in the last ten {replays.text(most['gain'][-1])} "
        f"({replays.SETTING_NAMES[setting]}); of that, over a plain round from the same policy, "
        f"{replays.text(most['gain_over_plain'][0])} and {replays.text(most['gain_over_plain'][-1])}"
        for setting, found in data.items() for most in [found["factors"][str(FACTORS[-1])]])
    less = all(found["factors"]["4"]["efficiency"][i]["interquartile_mean"]
               > found["factors"]["32"]["efficiency"][i]["interquartile_mean"]
               for found in data.values() for i in range(ROUNDS // SPAN))
    status = "reproduced" if all(all(one) for one in falls.values()) else (
        "partly" if any(any(one) for one in falls.values()) else "not")
    return status, (f"32 times as many actors gain {texts}. "
                    f"{'With 32 times as many, each gains less than with 4 times, at every point.' if less else ''}")
