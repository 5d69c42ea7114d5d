"""Nitro Fig. 7: what boosting gains at the rounds with the lowest, the median and the highest R of ten."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as pyplot
import numpy as np

from benchmarks.boosting.trainer import Trainer
from benchmarks.figures import replays
from benchmarks.figures.replays import ACTORS, ROUNDS

PAPER = (
    "§5.2: of ten rounds, boosting the one with the lowest R gains more return than that with the median or "
    "highest R, in six environments, and R rises by boosting. No values in the text.")
METHOD = (
    "the same protocol on Hopper with the settings of `experiments/hopper.yaml`, five seeds, two replays; R on the "
    "256 samples that made the policy, and after boosting on 256 of the new ones. The other environments were not "
    "measured. [The study of the detector](design/detector.md) asks the same of every fourth round of trainings with "
    "eight actors and more on Hopper and Walker2d, and of ten rounds with Table 1's settings, with three seeds each: "
    "there R tells how fast a training moves, and not whether boosting adds to it.")
CASES = {"Hopper-v5": replays.SETTINGS["ours"]}
SEEDS = replays.SEEDS
REPETITIONS, EPISODES = 2, 32
PLACES = ("lowest", "median", "highest")


def chosen_rounds(training: Trainer) -> dict[str, dict[str, Any]]:
    """The rounds of a plain training with these R, each as it stands before the round.

    A round's R is that of the policy which its actors roll out, on the samples that made it; so the first has none.
    """
    samples, before = None, []
    for round_index in range(1, ROUNDS + 1):
        if samples is not None and (ratio := replays.ratio(training, samples)) is not None:
            before.append({"round_index": round_index, "ratio": ratio, "snapshot": training.snapshot(),
                           "samples": samples})
        samples = training.update(training.roll_out(round_index, 1)).samples
    ordered = sorted(before, key=lambda one: one["ratio"])
    return dict(zip(PLACES, (ordered[0], ordered[len(ordered) // 2], ordered[-1]), strict=True))


def measure(work: Path) -> dict[str, Any]:
    kept = replays.Measurements(work / "nitro_7.jsonl", f"{CASES} {REPETITIONS} {EPISODES}")
    for case, file in CASES.items():
        for seed in SEEDS:
            kept.once({"case": case, "seed": seed}, lambda file=file, seed=seed: _training(file, seed))
    kept.close()
    return summary(kept.lines)


def _training(file: str, seed: int) -> dict[str, Any]:
    training = replays.trainer(file, seed)
    return {place: _boosted(training, chosen) for place, chosen in chosen_rounds(training).items()}


def _boosted(training: Trainer, chosen: dict[str, Any]) -> dict[str, Any]:
    """The round with one actor and with sixteen: what the policy returns before and after, and R after."""
    round_index, found = chosen["round_index"], {"plain": [], "boosted": [], "ratio_after": [], "ratio_after_all": []}
    training.restore(chosen["snapshot"])
    before = replays.mean_return(training, EPISODES * REPETITIONS)
    for repetition in range(REPETITIONS):
        training.restore(chosen["snapshot"])
        fragments = training.roll_out(round_index, ACTORS, seed=replays.OTHER_STREAMS + repetition)
        training.update(fragments[:1])
        found["plain"].append(replays.mean_return(training, EPISODES, repetition))
        training.restore(chosen["snapshot"])
        samples = training.update(fragments).samples
        found["boosted"].append(replays.mean_return(training, EPISODES, repetition))
        found["ratio_after"].append(replays.ratio(training, samples, replays.STEPS))
        if repetition == 0:
            found["ratio_after_all"].append(replays.ratio(training, samples))
    return {"round_index": round_index, "ratio": chosen["ratio"], "before": before, **found}


def summary(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """By case and place: the paper's gain, the gain over a plain round, and R's; and lowest against highest."""
    result: dict[str, Any] = {}
    for case in CASES:
        rows = [line for line in lines if line["case"] == case]
        if not rows:
            continue
        gains = {place: np.array([np.mean(row[place]["boosted"]) - row[place]["before"] for row in rows])
                 for place in PLACES}
        over_plain = {place: np.array([np.mean(row[place]["boosted"]) - np.mean(row[place]["plain"]) for row in rows])
                      for place in PLACES}
        ratios = {place: np.array([_mean(row[place]["ratio_after"]) - row[place]["ratio"] for row in rows])
                  for place in PLACES}
        result[case] = {"seeds": [row["seed"] for row in rows], "places": {place: {
            "ratio": replays.over_seeds([row[place]["ratio"] for row in rows]),
            "gain": replays.over_seeds(gains[place]), "gain_over_plain": replays.over_seeds(over_plain[place]),
            "ratio_gain": replays.over_seeds(ratios[place]), "rounds": [row[place]["round_index"] for row in rows],
        } for place in PLACES}, "lowest_less_highest": {
            "gain": replays.over_seeds(gains["lowest"] - gains["highest"]),
            "gain_over_plain": replays.over_seeds(over_plain["lowest"] - over_plain["highest"])}}
    return result


def _mean(ratios: list[float | None]) -> float:
    known = [one for one in ratios if one is not None]
    return float(np.mean(known)) if known else float("nan")


def draw(data: dict[str, Any], path: Path) -> None:
    figure, panels = pyplot.subplots(1, 3, figsize=(14, 4.2), constrained_layout=True)
    colours = dict(zip(PLACES, (replays.BLUE, replays.ORANGE, replays.GREEN), strict=True))
    titles = {"gain": "Return after boosting less that before (the paper's gain)",
              "gain_over_plain": "Return after boosting less that after a plain round",
              "ratio_gain": "R after boosting less R before"}
    for axes, (key, title) in zip(panels, titles.items(), strict=True):
        for shift, place in enumerate(PLACES):
            replays.dots(axes, [index + 0.2 * (shift - 1) for index in range(len(data))],
                         [case["places"][place][key] for case in data.values()], color=colours[place],
                         label=f"{place} R of the ten rounds")
        axes.axhline(0.0, color=replays.GREY, ls="--", lw=1)
        axes.set_xticks(range(len(data)), list(data))
        axes.set_xlim(-0.5, len(data) - 0.5)
        axes.set_title(title, fontsize=10)
    panels[0].legend(frameon=False, fontsize=9, loc="lower left", bbox_to_anchor=(0.0, 0.08))
    replays.saved(figure, path)


def verdict(data: dict[str, Any]) -> tuple[str, str]:
    found = [replays.excludes(one["lowest_less_highest"]["gain"]) for one in data.values()]
    texts = "; ".join(f"{case} {replays.text(one['lowest_less_highest']['gain'])} in return and "
                      f"{replays.text(one['lowest_less_highest']['gain_over_plain'])} over a plain round. R itself "
                      f"changes by {replays.text(one['places']['lowest']['ratio_gain'], 2)} at its lowest and by "
                      f"{replays.text(one['places']['highest']['ratio_gain'], 2)} at its highest"
                      for case, one in data.items())
    return "reproduced" if min(found) > 0 else "partly" if max(found) > 0 else "not", (
        f"What boosting gains at the lowest R, less that at the highest: {texts}. Something nearer the mean follows an "
        "extreme of a noisy measurement, boosted or not.")
