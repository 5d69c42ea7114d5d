"""Nitro Fig. 17: PPO on Hopper with Nitro, without serverless actors, and without boosting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as pyplot

from benchmarks.figures import replays
from benchmarks.figures.efficiency import short
from benchmarks.figures.trainings import (
    HOPPER,
    LARGE_ACTORS_USD_PER_HOUR,
    NITRO,
    STATIC,
    cents_of,
    cents_on_instances,
    draw_returns,
    final_return,
    trained,
)

PAPER = (
    "§8.5: without boosting, with 16 actors in every round, the bill is the smallest and the return lower than with "
    "Nitro; without serverless actors, on a c5.9xlarge, the return is about the same and the bill excessive.")
METHOD = (
    "experiments/paper/hopper-ppo.yaml, five seeds, fifty rounds. Without serverless: Nitro's own histories, if their "
    "actors, as fast as on Lambda, had a c5.9xlarge that stands as long as the training takes, its start not counted. "
    "Cents are modelled. A minibatch is 4,096 samples, so a round of 64 actors makes four times the optimiser steps of "
    "one with 16.")
COLOURS = {NITRO: replays.BLUE, STATIC: replays.ORANGE}
BILLS = ("Nitro", "Nitro, without\nprovisioned", "without\nserverless", "without boosting",
         "without boosting,\nnor provisioned")


def measure(work: Path) -> dict[str, Any]:
    return {"runs": {arm: [short(run) for run in runs]
                     for arm, runs in trained([HOPPER], [NITRO, STATIC], work)[HOPPER].items()}}


def bills(data: dict[str, Any]) -> dict[str, list[float]]:
    """Cents of each seed by variant."""
    ours, static = ([cents_of(run) for run in data["runs"][arm]] for arm in (NITRO, STATIC))
    instances = [cents_on_instances(run, LARGE_ACTORS_USD_PER_HOUR) for run in data["runs"][NITRO]]
    return dict(zip(BILLS, (
        [sum(one.values()) for one in ours], [one["learner"] + one["actors"] for one in ours],
        [sum(one.values()) for one in instances],
        [sum(one.values()) for one in static], [one["learner"] + one["actors"] for one in static]), strict=True))


def draw(data: dict[str, Any], path: Path) -> None:
    figure, (returns, costs) = pyplot.subplots(1, 2, figsize=(12, 4.4), constrained_layout=True)
    for arm, label in ((NITRO, "Nitro, with or without serverless"), (STATIC, "without boosting")):
        draw_returns(returns, data["runs"][arm], color=COLOURS[arm], label=label)
    returns.set(xlabel="round", ylabel="return of a round's episodes", title="(a) Mean and range of the seeds")
    returns.legend(frameon=False, loc="upper left")
    found = bills(data)
    replays.dots(costs, range(len(found)), [replays.over_seeds(one) for one in found.values()], color=replays.BLUE)
    costs.set_xticks(range(len(found)), list(found), fontsize=8)
    costs.set(ylabel="modelled cents of a training", ylim=(0, None), title="(b) Bills")
    replays.saved(figure, path)


def verdict(data: dict[str, Any]) -> tuple[str, str]:
    found = bills(data)

    def less(one: str, other: str) -> int:
        return replays.excludes(replays.over_seeds([b - a for a, b in zip(found[one], found[other], strict=True)]))

    more = replays.over_seeds([final_return(a) - final_return(b) for a, b in zip(
        data["runs"][NITRO], data["runs"][STATIC], strict=True)])
    claims = [less(BILLS[0], BILLS[2]) == 1, less(BILLS[3], BILLS[0]) == 1, replays.excludes(more) == 1]
    names = [name.replace("\n", " ") for name in BILLS]
    return "reproduced" if all(claims) else "partly" if any(claims) else "not", (
        f"Nitro's final return is {replays.text(more, 0)} higher than without boosting. Cents: " + "; ".join(
            f"{name} {replays.text(replays.over_seeds(one), 2)}"
            for name, one in zip(names, found.values(), strict=True)) +
        ". Fifty rounds take half a minute here, and provisioned functions are billed for five.")
