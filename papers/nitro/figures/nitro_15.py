"""Nitro Fig. 15: how KungFu, Hydrozoa, MinionsRL and Nitro scale actors on Hopper, with costs and returns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.drawing import BLUE, GREEN, GREY, ORANGE, PURPLE, dots, panels
from papers.estimates import differences, excludes, over_seeds
from papers.nitro.figures.trainings import HOPPER, NITRO, cents, draw_returns, final_return, trained
from papers.trainings import by_round

RULES = {NITRO: BLUE, "kungfu": ORANGE, "hydrozoa": GREEN, "minions": PURPLE, "minions-adapt": GREY}


def measure(work: Path) -> dict[str, Any]:
    return {"runs": trained(HOPPER, RULES, work)}


def draw(data: dict[str, Any]) -> Any:
    figure, (actors, bills, returns) = panels(3, (13, 4.2))
    for place, (rule, colour) in enumerate(RULES.items()):
        runs = data["runs"][rule]
        counts = by_round(runs, "actor_count")
        actors.plot(
            range(1, counts.shape[1] + 1), counts.mean(axis=0), color=colour, lw=1.6, label=rule
        )
        dots(bills, [place], [over_seeds([cents(run) for run in runs])], color=colour)
        draw_returns(returns, runs, color=colour, label=rule)
    actors.set(xlabel="round", ylabel="actors", title="(a) Actors, mean of the seeds")
    bills.set_xticks(range(len(RULES)), list(RULES), rotation=20)
    bills.set(ylabel="modelled cents", ylim=(0, None), title="(b) Learner and actors")
    returns.set(
        xlabel="round",
        ylabel="return of a round's episodes",
        title="(c) Mean and range of the seeds",
    )
    returns.legend(frameon=False, loc="lower right", fontsize=9)
    return figure


def verdict(data: dict[str, Any]) -> dict[str, Any]:
    runs = data["runs"]
    others = [rule for rule in runs if rule != NITRO]
    dearer = [excludes(differences(runs[rule], runs[NITRO], cents)) for rule in others]
    better = [excludes(differences(runs[NITRO], runs[rule], final_return)) for rule in others]
    return {
        "dearer": dearer,
        "better": better,
        "found": {
            rule: {
                "cents": over_seeds(map(cents, of_rule)),
                "return": over_seeds(map(final_return, of_rule)),
            }
            for rule, of_rule in runs.items()
        },
        "status": "reproduced"
        if set(dearer + better) == {1}
        else "partly"
        if 1 in dearer + better
        else "not",
    }
