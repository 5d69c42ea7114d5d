"""Nitro Fig. 15: how KungFu, Hydrozoa, MinionsRL and Nitro scale actors on Hopper, and what that costs and returns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as pyplot

from benchmarks.figures import replays
from benchmarks.figures.efficiency import short
from benchmarks.figures.trainings import HOPPER, NITRO, by_round, cents_of, draw_returns, final_return, trained

PAPER = (
    "§8.3: KungFu and Hydrozoa quickly reach the most actors and cost far more than Nitro; MinionsRL starts many "
    "actors early and fewer later, and costs more than Nitro even without its pre-training. Nitro's returns are "
    "higher than those of all three, at the least cost.")
METHOD = (
    "experiments/paper/hopper-ppo.yaml with each scaler, five seeds, fifty rounds. `minions` asks the scheduler that "
    "is shipped, which was trained on Hopper with the settings of experiments/hopper.yaml and 4 to 32 actors, not "
    "these; `minions-adapt` is its paper's rule without a scheduler. Cents are modelled, without provisioned "
    "functions, whose bill is the same for all. A minibatch is 4,096 samples, so a round of 64 actors makes four times "
    "the optimiser steps of one with 16.")
RULES = {NITRO: replays.BLUE, "kungfu": replays.ORANGE, "hydrozoa": replays.GREEN, "minions": replays.PURPLE,
         "minions-adapt": replays.GREY}


def measure(work: Path) -> dict[str, Any]:
    return {"runs": {arm: [short(run) for run in runs]
                     for arm, runs in trained([HOPPER], list(RULES), work)[HOPPER].items()}}


def cents(run: dict[str, Any]) -> float:
    """Of learner and actors."""
    return cents_of(run)["learner"] + cents_of(run)["actors"]


def draw(data: dict[str, Any], path: Path) -> None:
    figure, (actors, bills, returns) = pyplot.subplots(1, 3, figsize=(13, 4.2), constrained_layout=True)
    for place, (rule, colour) in enumerate(RULES.items()):
        runs = data["runs"][rule]
        counts = by_round(runs, "actor_count")
        actors.plot(range(1, counts.shape[1] + 1), counts.mean(axis=0), color=colour, lw=1.6, label=rule)
        replays.dots(bills, [place], [replays.over_seeds([cents(run) for run in runs])], color=colour)
        draw_returns(returns, runs, color=colour, label=rule)
    actors.set(xlabel="round", ylabel="actors", title="(a) Actors, mean of the seeds")
    bills.set_xticks(range(len(RULES)), list(RULES), rotation=20)
    bills.set(ylabel="modelled cents", ylim=(0, None), title="(b) Learner and actors")
    returns.set(xlabel="round", ylabel="return of a round's episodes", title="(c) Mean and range of the seeds")
    returns.legend(frameon=False, loc="lower right", fontsize=9)
    replays.saved(figure, path)


def verdict(data: dict[str, Any]) -> tuple[str, str]:
    ours = data["runs"][NITRO]
    dearer, better, parts = [], [], []
    for rule, runs in data["runs"].items():
        if rule != NITRO:
            dearer.append(replays.excludes(replays.over_seeds(
                [cents(run) - cents(own) for run, own in zip(runs, ours, strict=True)])))
            better.append(replays.excludes(replays.over_seeds(
                [final_return(own) - final_return(run) for run, own in zip(runs, ours, strict=True)])))
        parts.append(f"`{rule}` {replays.text(replays.over_seeds([cents(run) for run in runs]), 2)} cents, "
                     f"{replays.text(replays.over_seeds([final_return(run) for run in runs]), 0)}")
    is_cheapest, is_best = set(dearer) == {1}, set(better) == {1}
    return "reproduced" if is_cheapest and is_best else "partly" if 1 in dearer or 1 in better else "not", (
        "Bill and final return: " + "; ".join(parts) + f". Nitro costs less than {dearer.count(1)} of "
        f"{len(dearer)} and more than {dearer.count(-1)}; it returns more than {better.count(1)} and less than "
        f"{better.count(-1)}.")
