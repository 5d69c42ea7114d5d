"""MinionsRL Fig. 6: returns with its scheduler, with the most actors in every round, and with the adaptive rule."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.drawing import BLUE, GREEN, ORANGE, panels
from papers.competition.plan import RESULTS
from papers.estimates import differences, excludes, over_seeds, status
from papers.trainings import by_round

RULES = {"minions": BLUE, "max": ORANGE, "minions-adapt": GREEN}
ROUNDS, LOOKS = 50, (25, 50)


def competed(*rules: str) -> dict[str, list[dict[str, Any]]]:
    """Returns the competition's runs by rule, in the order of their seeds."""
    runs = sorted(
        json.loads((RESULTS / "hopper.json").read_text())["runs"], key=lambda run: run["seed"]
    )
    return {rule: [run for run in runs if run["rule"] == rule] for rule in rules}


def measure(work: Path) -> dict[str, Any]:
    """Measures nothing, because the runs are the competition's."""
    return {
        "returns": {rule: [smooth(run) for run in runs] for rule, runs in competed(*RULES).items()}
    }


def smooth(run: dict[str, Any]) -> list[float]:
    """Returns the mean return of the last five rounds' episodes, for each round."""
    [returns] = by_round([run], "episode_return_mean")
    found = [
        float(np.nanmean(returns[max(place - 4, 0) : place + 1]))
        for place in range(min(ROUNDS, len(returns)))
    ]
    return found + [found[-1]] * (ROUNDS - len(found))


def draw(data: dict[str, Any]) -> Any:
    figure, axes = panels(1, (8, 4.4))
    for rule, colour in RULES.items():
        values = np.array(data["returns"][rule])
        axes.fill_between(
            range(1, ROUNDS + 1),
            values.min(axis=0),
            values.max(axis=0),
            color=colour,
            alpha=0.15,
            lw=0,
        )
        axes.plot(range(1, ROUNDS + 1), values.mean(axis=0), color=colour, lw=1.8, label=rule)
    axes.set(
        xlabel="round",
        ylabel="return of the last five rounds' episodes",
        title="Mean and range of five seeds; who is at the target stays there",
    )
    axes.legend(frameon=False, loc="upper left")
    return figure


def verdict(data: dict[str, Any]) -> dict[str, Any]:
    after = {
        rule: {look: [one[look - 1] for one in of_rule] for look in LOOKS}
        for rule, of_rule in data["returns"].items()
    }
    signs = {
        rule: [excludes(differences(after["minions"][look], after[rule][look])) for look in LOOKS]
        for rule in ("max", "minions-adapt")
    }
    as_good, better = (
        -1 not in signs["max"],
        1 in signs["minions-adapt"] and -1 not in signs["minions-adapt"],
    )
    return {
        "after": {look: {rule: over_seeds(after[rule][look]) for rule in RULES} for look in LOOKS},
        "status": status([as_good, better]),
    }
