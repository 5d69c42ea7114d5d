"""MinionsRL Fig. 5: how many actors its scheduler starts in each round, and the returns of these rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as pyplot
import numpy as np

from benchmarks.figures import replays
from benchmarks.figures.minions_6 import competed
from runtime.scaler.saved_scheduler import load_scheduler

PAPER = (
    "§Actor Scheduling: on Hopper the scheduler starts more actors at the beginning, gradually fewer when the "
    "performance gets stable, and more again at the very end. No values in the text.")
METHOD = (
    "the shipped scheduler `hopper` in the competition on Hopper ([results](results.md)): 4 to 32 actors, drawn as in "
    "its training, until a return of 3,000 is evaluated; five seeds that it was not trained on. A third of a run is "
    "one of its rounds.")
SCHEDULER = "hopper"
THIRDS = ("first", "second", "last")


def measure(work: Path) -> dict[str, Any]:
    """Measures nothing: the runs are the competition's."""
    runs = [{"seed": run["seed"], "stop_reason": run["stop_reason"], "cents": 100.0 * run["spent_usd"],
             "seconds": run["modelled_s"], "actors": run["rows"]["actor_count"],
             "returns": run["rows"]["episode_return_mean"]} for run in competed("minions")["minions"]]
    saved = load_scheduler(SCHEDULER)
    return {"scheduler": SCHEDULER, "sha256": saved.digest, "bounds": [saved.actors_min, saved.actors_max],
            "pretraining_cents": 100.0 * saved.spent_usd, "runs": runs, **summary(runs)}


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean actors of the first, second and last third of a run over seeds, and how they differ from the second."""
    means = {name: [float(np.mean(np.array_split(run["actors"], 3)[place])) for run in runs]
             for place, name in enumerate(THIRDS)}
    return {"actors": {name: replays.over_seeds(values) for name, values in means.items()},
            "more_than_in_the_second": {
                name: replays.over_seeds([a - b for a, b in zip(means[name], means["second"], strict=True)])
                for name in ("first", "last")},
            "cents": replays.over_seeds([run["cents"] for run in runs]),
            "seconds": replays.over_seeds([run["seconds"] for run in runs])}


def draw(data: dict[str, Any], path: Path) -> None:
    figure, (above, below) = pyplot.subplots(2, 1, figsize=(9, 6.4), sharex=True, constrained_layout=True)
    for run in data["runs"]:
        rounds = range(1, len(run["actors"]) + 1)
        above.step(rounds, run["actors"], where="mid", lw=0.7, alpha=0.5, color=replays.GREY)
        below.plot(rounds, [np.nan if one is None else one for one in run["returns"]], lw=0.9, color=replays.ORANGE)
    longest = max(len(run["actors"]) for run in data["runs"])
    means = [np.mean([run["actors"][place] for run in data["runs"] if place < len(run["actors"])])
             for place in range(longest)]
    smooth = [np.mean(means[max(place - 4, 0):place + 5]) for place in range(longest)]
    above.plot(range(1, longest + 1), smooth, lw=2.2, color=replays.BLUE, label="mean of seeds and of nine rounds")
    for bound in data["bounds"]:
        above.axhline(bound, color=replays.GREY, lw=0.8, ls=":")
    above.set(ylim=(0, data["bounds"][1] + 3), ylabel="actors",
              title="What the scheduler starts on Hopper; thin: each seed")
    above.legend(frameon=False, loc="lower left")
    below.set(xlabel="round", ylabel="return of the round's episodes")
    replays.saved(figure, path)


def verdict(data: dict[str, Any]) -> tuple[str, str]:
    more = data["more_than_in_the_second"]
    signs = [replays.excludes(more[name]) for name in ("first", "last")]
    status = "reproduced" if signs == [1, 1] else "partly" if 1 in signs else "not"
    return status, (
        f"The scheduler starts {replays.text(data['actors']['first'])} actors in the first third of a run, "
        f"{replays.text(data['actors']['second'])} in the second, {replays.text(data['actors']['last'])} in the last: "
        f"{replays.text(more['first'])} more in the first than in the second, and {replays.text(more['last'])} more in "
        f"the last. Runs cost {replays.text(data['cents'], 2)} modelled cents; the "
        f"scheduler's training cost {data['pretraining_cents']:.1f} cents before the first of these runs.")
