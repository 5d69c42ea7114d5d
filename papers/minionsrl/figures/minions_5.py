"""MinionsRL Fig. 5: how many actors its scheduler starts in each round, and the returns of these rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.drawing import BLUE, GREY, ORANGE, panels
from papers.estimates import differences, excludes, over_seeds
from papers.minionsrl.figures.minions_6 import competed
from runtime.scaler.saved_scheduler import load_scheduler

SCHEDULER = "hopper"
THIRDS = ("first", "second", "last")


def measure(work: Path) -> dict[str, Any]:
    """Measures nothing, because the runs are the competition's."""
    runs = [
        {
            "seed": run["seed"],
            "stop_reason": run["stop_reason"],
            "cents": 100.0 * run["spent_usd"],
            "seconds": run["modelled_s"],
            "actors": run["rows"]["actor_count"],
            "returns": run["rows"]["episode_return_mean"],
        }
        for run in competed("minions")["minions"]
    ]
    saved = load_scheduler(SCHEDULER)
    return {
        "scheduler": SCHEDULER,
        "sha256": saved.digest,
        "bounds": [saved.actors_min, saved.actors_max],
        "pretraining_cents": 100.0 * saved.spent_usd,
        "runs": runs,
        **summary(runs),
    }


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the mean actors in each third of a run over seeds, and their difference from the second third."""
    means = {
        name: [float(np.mean(np.array_split(run["actors"], 3)[place])) for run in runs]
        for place, name in enumerate(THIRDS)
    }
    return {
        "actors": {name: over_seeds(values) for name, values in means.items()},
        "more_than_in_the_second": {
            name: differences(means[name], means["second"]) for name in ("first", "last")
        },
        **{name: over_seeds(run[name] for run in runs) for name in ("cents", "seconds")},
    }


def draw(data: dict[str, Any]) -> Any:
    figure, (above, below) = panels(1, (9, 6.4), 2, sharex=True)
    for run in data["runs"]:
        rounds = range(1, len(run["actors"]) + 1)
        above.step(rounds, run["actors"], where="mid", lw=0.7, alpha=0.5, color=GREY)
        below.plot(
            rounds, [np.nan if one is None else one for one in run["returns"]], lw=0.9, color=ORANGE
        )
    longest = max(len(run["actors"]) for run in data["runs"])
    means = [
        np.mean([run["actors"][place] for run in data["runs"] if place < len(run["actors"])])
        for place in range(longest)
    ]
    smooth = [np.mean(means[max(place - 4, 0) : place + 5]) for place in range(longest)]
    above.plot(
        range(1, longest + 1), smooth, lw=2.2, color=BLUE, label="mean of seeds and of nine rounds"
    )
    for bound in data["bounds"]:
        above.axhline(bound, color=GREY, lw=0.8, ls=":")
    above.set(
        ylim=(0, data["bounds"][1] + 3),
        ylabel="actors",
        title="What the scheduler starts on Hopper; thin: each seed",
    )
    above.legend(frameon=False, loc="lower left")
    below.set(xlabel="round", ylabel="return of the round's episodes")
    return figure


def verdict(data: dict[str, Any]) -> dict[str, Any]:
    signs = [excludes(data["more_than_in_the_second"][name]) for name in ("first", "last")]
    return {"status": "reproduced" if signs == [1, 1] else "partly" if 1 in signs else "not"}
