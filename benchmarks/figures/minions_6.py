"""MinionsRL Fig. 6: returns with its scheduler, with the most actors in every round, and with the adaptive rule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as pyplot
import numpy as np

from benchmarks.figures import replays
from benchmarks.figures.replays import ROOT
from benchmarks.figures.trainings import by_round

PAPER = (
    "Ablation study: on Hopper and Qbert the scheduler trains as well as 32 actors in every round, and better than the "
    "adaptive rule. Five repeats.")
METHOD = (
    "the competition's runs on Hopper ([results](results.md)), five seeds: settings of experiments/hopper.yaml until a "
    "return of 3,000 is evaluated; the scheduler had 4 to 32 actors, the adaptive rule 4 to 16, as tuning chose. "
    "Returns of the last 20,480 steps' episodes after so many rounds; a training that has ended stays at its last.")
COMPETITION = ROOT / "benchmarks" / "results" / "competition" / "hopper.json"
RULES = {"minions": replays.BLUE, "max": replays.ORANGE, "minions-adapt": replays.GREEN}
ROUNDS, LOOKS = 50, (25, 50)


def competed(*rules: str) -> dict[str, list[dict[str, Any]]]:
    """The competition's runs by rule, in the order of their seeds."""
    runs = sorted(json.loads(COMPETITION.read_text())["runs"], key=lambda run: run["seed"])
    return {rule: [run for run in runs if run["rule"] == rule] for rule in rules}


def measure(work: Path) -> dict[str, Any]:
    """Measures nothing: the runs are the competition's."""
    return {"returns": {rule: [smooth(run) for run in runs] for rule, runs in competed(*RULES).items()}}


def smooth(run: dict[str, Any]) -> list[float]:
    """The mean return of the last five rounds' episodes, for each round."""
    [returns] = by_round([run], "episode_return_mean")
    found = [float(np.nanmean(returns[max(place - 4, 0):place + 1])) for place in range(min(ROUNDS, len(returns)))]
    return found + [found[-1]] * (ROUNDS - len(found))


def draw(data: dict[str, Any], path: Path) -> None:
    figure, axes = pyplot.subplots(figsize=(8, 4.4), constrained_layout=True)
    for rule, colour in RULES.items():
        values = np.array(data["returns"][rule])
        axes.fill_between(range(1, ROUNDS + 1), values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, lw=0)
        axes.plot(range(1, ROUNDS + 1), values.mean(axis=0), color=colour, lw=1.8, label=rule)
    axes.set(xlabel="round", ylabel="return of the last five rounds' episodes",
             title="Mean and range of five seeds; who is at the target stays there")
    axes.legend(frameon=False, loc="upper left")
    replays.saved(figure, path)


def verdict(data: dict[str, Any]) -> tuple[str, str]:
    ours = data["returns"]["minions"]
    signs = {rule: [replays.excludes(replays.over_seeds(
        [a[look - 1] - b[look - 1] for a, b in zip(ours, data["returns"][rule], strict=True)])) for look in LOOKS]
        for rule in ("max", "minions-adapt")}
    as_good, better = -1 not in signs["max"], 1 in signs["minions-adapt"] and -1 not in signs["minions-adapt"]
    status = "reproduced" if as_good and better else "partly" if as_good or better else "not"
    return status, "Returns after " + "; ".join(
        f"{look} rounds: " + ", ".join(
            f"`{rule}` {replays.text(replays.over_seeds([one[look - 1] for one in data['returns'][rule]]), 0)}"
            for rule in RULES) for look in LOOKS) + "."
