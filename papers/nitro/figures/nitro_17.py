"""Nitro Fig. 17: PPO on Hopper with Nitro, without serverless actors, and without boosting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.drawing import BLUE, ORANGE, panels
from papers.estimates import differences, excludes, over_seeds, status
from papers.nitro.figures import trainings
from papers.nitro.figures.trainings import HOPPER, NITRO, STATIC
from papers.runs import LARGE_ACTORS_USD_PER_HOUR

COLOURS = {NITRO: BLUE, STATIC: ORANGE}
BILLS = (
    "Nitro",
    "Nitro, without\nprovisioned",
    "without\nserverless",
    "without boosting",
    "without boosting\nor provisioned",
)


def measure(work: Path) -> dict[str, Any]:
    return {"runs": trainings.trained(HOPPER, [NITRO, STATIC], work)}


def bills(data: dict[str, Any]) -> dict[str, list[float]]:
    """Returns the cents of each seed by variant."""
    ours, static = data["runs"][NITRO], data["runs"][STATIC]
    on_instances = [
        sum(trainings.cents_on_instances(run, LARGE_ACTORS_USD_PER_HOUR).values()) for run in ours
    ]
    nitro, plain, unboosted, cheapest = (
        [*map(bill, runs)]
        for runs in (ours, static)
        for bill in (trainings.all_cents, trainings.cents)
    )
    return dict(zip(BILLS, (nitro, plain, on_instances, unboosted, cheapest), strict=True))


def draw(data: dict[str, Any]) -> Any:
    figure, (returns, costs) = panels(2, (12, 4.4))
    for arm, label in ((NITRO, "Nitro, with or without serverless"), (STATIC, "without boosting")):
        trainings.draw_returns(returns, data["runs"][arm], color=COLOURS[arm], label=label)
    returns.set(
        xlabel="round",
        ylabel="return of a round's episodes",
        title="(a) Mean and range of the seeds",
    )
    returns.legend(frameon=False, loc="upper left")
    found = bills(data)
    for place, one in enumerate(map(over_seeds, found.values())):
        costs.hlines(place, one["interval_low"], one["interval_high"], color=BLUE)
        costs.plot(one["interquartile_mean"], place, "o", color=BLUE)
    costs.set_yticks(range(len(found)), list(found), fontsize=11)
    costs.invert_yaxis()
    costs.set(xlabel="modelled cents of a training", xlim=(0, None), title="(b) Bills")
    return figure


def verdict(data: dict[str, Any]) -> dict[str, Any]:
    found = bills(data)
    nitro, _, serverful, static, _ = found.values()
    more = differences(data["runs"][NITRO], data["runs"][STATIC], trainings.final_return)
    return {
        "more": more,
        "bills": {name.replace("\n", " "): over_seeds(one) for name, one in found.items()},
        "status": status(
            excludes(one) == 1
            for one in (differences(serverful, nitro), differences(nitro, static), more)
        ),
    }
