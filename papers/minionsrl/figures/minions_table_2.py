"""MinionsRL Table 2: time and cost to the same return on Hopper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.drawing import BLUE, ORANGE, panels
from papers.competition.analyse import cents_without_serverless
from papers.estimates import differences, excludes, over_seeds, status
from papers.minionsrl.figures.minions_6 import competed
from papers.runs import INSTANCE_START_S

ROWS = {
    "minions": "MinionsRL",
    "max": "MinionsRL-Max",
    "minions-adapt": "MinionsRL-Adapt",
    "fixed": "fixed, on a machine",
}
PUBLISHED = {
    "minions": (241, 1.2),
    "max": (232, 1.7),
    "minions-adapt": (403, 4.4),
    "fixed": (277, 4.5),
}


def measure(work: Path) -> dict[str, Any]:
    """Measures nothing, because the runs are the competition's."""
    found: dict[str, Any] = {}
    for rule, runs in competed(*ROWS).items():
        seconds, cents = (
            [run["modelled_s"] for run in runs],
            [100.0 * run["spent_usd"] for run in runs],
        )
        if rule == "fixed":
            seconds = [one + INSTANCE_START_S for one in seconds]
            cents = [cents_without_serverless(run) for run in runs]
        found[rule] = {"seconds": seconds, "cents": cents}
    return {"rows": found}


def draw(data: dict[str, Any]) -> Any:
    figure, columns = panels(2, (11, 3.6), sharey=True)
    for axes, quantity, column, label in (
        (columns[0], "seconds", 0, "seconds"),
        (columns[1], "cents", 1, "cost"),
    ):
        own = over_seeds(data["rows"]["minions"][quantity])["interquartile_mean"]
        for place, rule in enumerate(ROWS):
            one = over_seeds(data["rows"][rule][quantity])
            axes.hlines(
                place, one["interval_low"] / own, one["interval_high"] / own, color=BLUE, lw=2
            )
            axes.plot(
                one["interquartile_mean"] / own,
                place,
                "o",
                color=BLUE,
                label="here" if place == 0 else None,
            )
            axes.plot(
                PUBLISHED[rule][column] / PUBLISHED["minions"][column],
                place,
                "D",
                color=ORANGE,
                label="paper" if place == 0 else None,
            )
        axes.set(xscale="log", xlabel=f"{label}, as a multiple of MinionsRL's")
        axes.set_xticks(ticks := (0.7, 1, 2, 4, 10)[: 4 + column], [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    columns[0].set_yticks(range(len(ROWS)), list(ROWS.values()))
    columns[0].invert_yaxis()
    columns[1].legend(frameon=False, loc="upper right")
    return figure


def verdict(data: dict[str, Any]) -> dict[str, Any]:
    rows = data["rows"]
    dearer = {
        rule: excludes(differences(rows[rule]["cents"], rows["minions"]["cents"])) == 1
        for rule in ROWS
        if rule != "minions"
    }
    return {
        "dearer": dearer,
        "status": status(dearer.values()),
        "found": {
            name: {what: over_seeds(values) for what, values in rows[rule].items()}
            for rule, name in ROWS.items()
        },
    }
